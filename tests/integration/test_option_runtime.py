"""``--feature-contract-runtime NAME[==V]``: groups, references, and what cannot be checked."""

from __future__ import annotations

import pytest


def run(pytester, *runtimes, extra=()):
    args = [arg for name in runtimes for arg in ("--feature-contract-runtime", name)]
    return pytester.runpytest("--feature-contract", "ckpt", *args, "-v", *extra)


def test_the_right_contract_passes(pytester, kimi, outcomes):
    kimi(pytester.path / "ckpt", features="3,31,59")
    result = run(pytester, "sglang==0.5.12")
    assert result.ret == 0
    assert set(outcomes(result).values()) == {"PASSED"}


def test_a_shift_is_said_once_in_full_and_twice_by_reference(pytester, kimi, outcomes):
    kimi(pytester.path / "ckpt", features="3,31,59")
    result = run(pytester, "sglang==0.5.13")
    slots = [f"predicted-sglang-0.5.13::slot-{slot}" for slot in range(3)]
    assert outcomes(result).of("FAILED") == slots
    text = result.stdout.str()
    assert text.count("every slot, 1 block too early") == 1
    assert text.count(f"see ckpt/feature_contract.json::{slots[0]}") == 2
    assert result.stdout.str().count("FC301 layer-shift") >= 3


def test_the_first_that_runs_holds_the_text(pytester, kimi):
    kimi(pytester.path / "ckpt", features="3,31,59")
    text = run(pytester, "sglang==0.5.13", extra=("-k", "slot-1 or slot-2")).stdout.str()
    assert text.count("every slot, 1 block too early") == 1
    assert text.count("see ckpt/feature_contract.json::predicted-sglang-0.5.13::slot-1") == 1
    assert "slot-0" not in text


def test_two_versions_are_two_groups(pytester, kimi, outcomes):
    kimi(pytester.path / "ckpt", features="3,31,59")
    found = outcomes(run(pytester, "sglang==0.5.12", "sglang==0.5.13"))
    assert [name for name in found if name.endswith("slot-0")] == [
        "predicted-sglang-0.5.12::slot-0",
        "predicted-sglang-0.5.13::slot-0",
    ]
    assert all(name.startswith("predicted-sglang-0.5.13") for name in found.of("FAILED"))


def test_vllm_stands_for_both_of_its_runners(pytester, kimi, outcomes):
    kimi(pytester.path / "ckpt", features="3,31,59")
    groups = {name.partition("::")[0] for name in outcomes(run(pytester, "vllm==0.33.0"))}
    assert {"predicted-vllm-v1-0.33.0", "predicted-vllm-v2-0.33.0"} <= groups


def test_the_contracts_own_runtimes_are_used_when_none_is_given(pytester, kimi, outcomes):
    kimi.edit_contract(kimi(pytester.path / "ckpt"), serving={"runtimes": ["sglang==0.5.12"]})
    result = run(pytester)
    assert outcomes(result).of("FAILED") == ["predicted-sglang-0.5.12::slot-0"]
    result.stdout.no_fnmatch_line("*no runtime was named*")


def test_no_runtime_anywhere_is_said_in_the_summary(pytester, kimi):
    kimi(pytester.path / "ckpt")
    result = run(pytester)
    assert result.ret == 0
    result.stdout.fnmatch_lines(
        ["*feature contracts*", "ckpt: no runtime was named*--feature-contract-runtime NAME==VERSION*"]
    )


def test_an_unknown_runtime_is_an_error_of_its_item(pytester, kimi, outcomes):
    kimi(pytester.path / "ckpt", features="3,31,59")
    result = run(pytester, "sgland==0.5.12", "sglang==0.5.12")
    assert outcomes(result).of("ERROR") == ["predicted-sgland-0.5.12::runtime"]
    result.stdout.fnmatch_lines(["could not check FC105 runtime-unknown*", "*did you mean sglang*"])
    assert result.parseoutcomes()["errors"] == 1
    assert "failed" not in result.parseoutcomes()


def test_a_version_older_than_the_rules_errors_every_statement_of_it(pytester, kimi, outcomes):
    kimi(pytester.path / "ckpt", features="3,31,59")
    found = outcomes(run(pytester, "sglang==0.0.1"))
    predicted = [name for name in found if name.startswith("predicted-")]
    assert len(predicted) == 5
    assert "PASSED" not in {found[name] for name in predicted}
    # The oldest rules already refuse this target, so it also fails.
    assert found["predicted-sglang-0.0.1::runtime"] in {"ERROR", "FAILED"}


def test_a_rule_that_depends_on_an_unnamed_architecture_errors_every_slot(pytester, kimi, outcomes):
    path = kimi(pytester.path / "ckpt", features="3,31,59")
    target = '"architecture": "DeepseekV3ForCausalLM",'
    file = path / "feature_contract.json"
    assert target in file.read_text()
    file.write_text(file.read_text().replace(target, ""))
    found = outcomes(run(pytester, "sglang==0.5.12"))
    if "ERROR" not in found.values():
        pytest.fail("the rules no longer depend on the architecture: find another version for this test")
    assert len(found.of("ERROR")) == 5


def test_a_version_newer_than_the_rules_is_a_warning_in_the_summary(pytester, kimi):
    kimi(pytester.path / "ckpt", features="2,30,58")
    result = run(pytester, "sglang==99.1")
    result.stdout.fnmatch_lines(["*feature contracts*", "ckpt: warning * runtime-newer*", "*sglang 99.1 is newer*"])


def test_no_version_is_the_newest_known_and_a_warning(pytester, kimi):
    kimi(pytester.path / "ckpt")
    result = run(pytester, "sglang")
    result.stdout.fnmatch_lines(["*no version given for sglang*", "*--feature-contract-runtime sglang==*"])


def test_a_runtime_that_feeds_nothing_passes_no_slot(pytester, kimi, outcomes):
    kimi(pytester.path / "ckpt", features="3,31,59")
    result = run(pytester, "transformers")
    found = outcomes(result)
    predicted = [name for name in found if name.startswith("predicted-transformers")]
    assert len(predicted) == 5
    assert found.of("FAILED") == predicted
    assert result.stdout.str().count("method-unsupported") >= 5


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ("sglang=0.5", "*'sglang=0.5' is not NAME or NAME==VERSION; names: sglang, vllm, *"),
        ("==1", "*names: sglang, vllm, *"),
        ("sglang==", "*names: sglang, vllm, *"),
        ("sglang==new", "*'new' is not a version such as 0.5.12*"),
    ],
)
def test_another_syntax_is_a_usage_error(pytester, kimi, value, told):
    kimi(pytester.path / "ckpt")
    result = run(pytester, value)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: --feature-contract-runtime: {told}"])


def test_without_a_checkpoint_it_is_a_usage_error(pytester):
    result = pytester.runpytest("--feature-contract-runtime", "sglang")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: --feature-contract-runtime needs a checkpoint*--feature-contract CKPT"])
