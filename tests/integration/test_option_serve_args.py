"""``--feature-contract-serve-args ARGS``: one more statement for each runtime whose flags are known."""

from __future__ import annotations

import pytest

FORCED = (
    "--speculative-algorithm EAGLE3 --speculative-num-steps 3 --speculative-eagle-topk 1 "
    "--speculative-num-draft-tokens 16"
)
FITTING = FORCED.replace("16", "4")


def run(pytester, arguments, *args, runtime="sglang==0.5.12"):
    # With an equals sign: pytest itself reads a word that begins with @ from a file.
    option = () if arguments is None else (f"--feature-contract-serve-args={arguments}",)
    return pytester.runpytest("--feature-contract", "ckpt", "--feature-contract-runtime", runtime, *option, "-v", *args)


@pytest.fixture(autouse=True)
def ckpt(pytester, kimi):
    return kimi(pytester.path / "ckpt", features="3,31,59")


def test_without_arguments_there_is_no_such_statement(pytester, outcomes):
    assert not [name for name in outcomes(run(pytester, None)) if "serve-args" in name]


def test_a_forced_value_fails_the_statement(pytester, outcomes):
    result = run(pytester, FORCED)
    assert outcomes(result).of("FAILED") == ["predicted-sglang-0.5.12::serve-args"]
    result.stdout.fnmatch_lines(["error * draft-tokens-forced: *"])


def test_fitting_arguments_pass(pytester, outcomes):
    found = outcomes(run(pytester, FITTING))
    assert found["predicted-sglang-0.5.12::serve-args"] == "PASSED"
    assert not found.of("FAILED")


@pytest.mark.parametrize("text", ["serve.args", "@serve.args"])
def test_a_file_also_when_a_test_changes_the_directory(pytester, outcomes, text):
    (pytester.path / "serve.args").write_text(FORCED)
    pytester.makepyfile("import os\ndef test_moves(tmp_path): os.chdir(tmp_path)")
    assert outcomes(run(pytester, text)).of("FAILED") == ["predicted-sglang-0.5.12::serve-args"]


def test_a_runtime_without_flag_rules_is_said_in_the_summary(pytester, outcomes):
    result = run(pytester, FITTING, runtime="lmdeploy")
    assert not [name for name in outcomes(result) if "serve-args" in name]
    result.stdout.fnmatch_lines(["ckpt: the serving arguments were not checked for lmdeploy==*"])


@pytest.mark.parametrize("value", ["--speculative-num-steps 'x", "--speculative-num-steps many", "@nowhere.args", "@"])
def test_arguments_that_cannot_be_read_are_a_usage_error(pytester, value):
    result = run(pytester, value)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: --feature-contract-serve-args: *"])
