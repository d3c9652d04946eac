"""``--feature-contract-rules FILE``: a fork's rules, by the name that the file gives it."""

from __future__ import annotations

import json
from importlib.resources import files

import pytest


def run(pytester, *args):
    return pytester.runpytest("--feature-contract", "ckpt", "-v", *args)


def test_a_forks_rules_stand_for_its_name(pytester, kimi, outcomes):
    kimi(pytester.path / "ckpt", features="3,31,59")
    raw = json.loads(files("featurecontract.runtimes").joinpath("data", "sglang.json").read_text("utf-8"))
    text = json.dumps(raw | {"runtime": "our-sglang"})
    (pytester.path / "fork.json").write_text(text)
    args = ("--feature-contract-runtime", "our-sglang==0.5.12")
    without = outcomes(run(pytester, *args))
    assert without.of("ERROR") == ["predicted-our-sglang-0.5.12::runtime"]
    found = outcomes(run(pytester, *args, "--feature-contract-rules", "fork.json"))
    assert not found.of("ERROR")
    assert [name for name in found if name.endswith("slot-2")]


@pytest.mark.parametrize("content", [None, b"{", b"{}", b"[]"])
def test_a_file_that_cannot_be_used_is_a_usage_error(pytester, kimi, content):
    kimi(pytester.path / "ckpt")
    if content is not None:
        (pytester.path / "fork.json").write_bytes(content)
    result = run(pytester, "--feature-contract-rules", "fork.json")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: --feature-contract-rules: {pytester.path}/fork.json: *;*"])
