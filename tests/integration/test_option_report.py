"""``--feature-contract-report FILE``: the JSON report, with the exit status that pytest's own does not show."""

from __future__ import annotations

import json
import os

import jsonschema
import pytest

from featurecontract.render import report_schema

SGLANG = ("--feature-contract-runtime", "sglang==0.5.12")


def run(pytester, *args, ckpts=("ckpt",)):
    named = [arg for name in ckpts for arg in ("--feature-contract", name)]
    return pytester.runpytest(*named, "--feature-contract-report", "out.json", *args)


def read(pytester):
    return json.loads((pytester.path / "out.json").read_text("utf-8"))


@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["alone", "xdist"])
@pytest.mark.parametrize(
    "case",
    [
        ("3,31,59", "sglang==0.5.12", 0, 0),
        ("0,3,31", "sglang==0.5.12", 1, 1),
        ("3,31,59", "sgland==0.5.12", 2, 1),
        ("3,31,59", None, 2, 0),
    ],
)
def test_the_status_stands_there(pytester, kimi, case, workers):
    features, runtime, status, ret = case
    kimi(pytester.path / "ckpt", features=features)
    chosen = ("--feature-contract-runtime", runtime) if runtime else ()
    result = run(pytester, *chosen, *workers)
    assert result.ret == ret
    found = read(pytester)
    jsonschema.validate(found, report_schema())
    assert found["exit_status"] == status


def test_several_checkpoints_are_a_list_in_their_order(pytester, kimi):
    kimi(pytester.path / "a", features="0,3,31")
    kimi(pytester.path / "b", features="3,31,59")
    kimi(pytester.path / "c", features=None)
    for workers in ((), ("-n", "2")):
        run(pytester, *SGLANG, *workers, ckpts=("a", "b", "c"))
        assert [item["exit_status"] for item in read(pytester)] == [1, 0, 2]


def test_it_is_about_every_checkpoint_whatever_ran(pytester, kimi):
    kimi(pytester.path / "ckpt")
    result = run(pytester, *SGLANG, "-k", "nothing_of_this_name")
    assert result.ret == pytest.ExitCode.NO_TESTS_COLLECTED
    assert read(pytester)["exit_status"] == 1


def test_an_old_report_never_survives_a_failed_collection(pytester, kimi):
    kimi(pytester.path / "ckpt")
    (pytester.path / "out.json").write_text('{"exit_status": 0}')
    pytester.makepyfile("import nothing_of_this_name")
    run(pytester, *SGLANG)
    assert read(pytester)["exit_status"] == 1


def test_collecting_only_writes_nothing(pytester, kimi):
    kimi(pytester.path / "ckpt")
    run(pytester, "--collect-only")
    assert not (pytester.path / "out.json").exists()


@pytest.mark.parametrize("value", ["nowhere/out.json", "ckpt"])
def test_a_file_that_cannot_be_written_is_a_usage_error(pytester, kimi, value):
    kimi(pytester.path / "ckpt")
    result = pytester.runpytest("--feature-contract", "ckpt", "--feature-contract-report", value)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: --feature-contract-report: '{value}' *; name a file in a directory*"])


def test_a_directory_that_vanishes_fails_the_run(pytester, kimi):
    kimi(pytester.path / "ckpt", features="3,31,59")
    out = pytester.mkdir("out")
    pytester.makepyfile(f"import shutil\ndef test_removes(): shutil.rmtree({os.fspath(out)!r})")
    args = ("--feature-contract", "ckpt", *SGLANG, "--feature-contract-report", "out/r.json")
    result = pytester.runpytest(*args)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["--feature-contract-report: the report could not be written to *"])
