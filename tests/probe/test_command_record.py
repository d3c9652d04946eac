"""`featurecontract record`: one line on failure, and what is there without transformers."""

from __future__ import annotations

import importlib.util
import sys

import pytest

from featurecontract.cli import main


def run(capsys, *arguments):
    try:
        main(["record", *arguments])
        status = 0
    except SystemExit as stop:
        status = stop.code or 0
    out, err = capsys.readouterr()
    return status, out, err


def test_a_model_that_is_not_there(tmp_path, capsys):
    status, out, err = run(capsys, str(tmp_path / "none"), "--wiring", "0,3", "--out", str(tmp_path))
    assert (status, out) == (2, "")
    assert "is no directory" in err
    assert err.splitlines()[-1].startswith("error: ")


def test_options_are_checked_before_anything_is_loaded(tmp_path, capsys):
    for wrong in (["--wiring", "0,x"], [], ["--wiring", "0", "--rows", "3"], ["--wiring", "0", "--second-dtype", "x"]):
        status, _, err = run(capsys, str(tmp_path), "--out", str(tmp_path), *wrong)
        assert status == 2
        assert len(err.splitlines()) == 1, err
    (tmp_path / "ids").write_text("one two")
    status, _, err = run(
        capsys, str(tmp_path), "--out", str(tmp_path), "--wiring", "0", "--tokens", str(tmp_path / "ids")
    )
    assert status == 2
    assert "is no token id" in err


@pytest.mark.parametrize("seed", [-1, 2**63, 2**64])
def test_seeds_out_of_range(tmp_path, capsys, seed):
    status, _, err = run(capsys, str(tmp_path), "--out", str(tmp_path), "--wiring", "0", "--seed", str(seed))
    assert status == 2
    assert "'--seed'" in err.splitlines()[-1]


@pytest.mark.skipif(importlib.util.find_spec("transformers") is not None, reason="transformers is installed")
def test_without_transformers(tmp_path, capsys):
    status, _, err = run(capsys, str(tmp_path), "--out", str(tmp_path), "--wiring", "0,3")
    assert status == 2
    assert "pip install transformers" in err


def test_without_torch(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    status, _, err = run(capsys, str(tmp_path), "--out", str(tmp_path), "--wiring", "0,3")
    assert (status, err) == (2, "error: recording needs torch: pip install 'featurecontract[torch]'\n")
