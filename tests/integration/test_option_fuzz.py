"""``--feature-contract-fuzz N``: the order, layers and dims of this contract, and what a runtime makes of other ids."""

from __future__ import annotations

import json

import pytest

from featurecontract.contract import Wiring
from featurecontract.gate import write_contract
from featurecontract.plugin import _fuzz

SGLANG = ("--feature-contract-runtime", "sglang==0.5.12")
EVERY = ["fuzz::order", "fuzz::layers", "fuzz::dims", "fuzz::equivalent"]
RIGHT = "3,31,59"


@pytest.fixture
def run(pytester, kimi):
    def start(*more, count="40", features=RIGHT):
        if not (pytester.path / "ckpt").exists():
            ckpt = kimi(pytester.path / "ckpt", features=None)
            planes = len(features.split(","))
            kimi.write_sparse(ckpt / "model.safetensors", kimi.tensors(planes=planes))
            write_contract(str(ckpt), target="K:61,7168,DeepseekV3ForCausalLM", features=features, force=True)
        args = ("--feature-contract=ckpt", f"--feature-contract-fuzz={count}", "-k", "fuzz", "-v")
        return pytester.runpytest(*args, *more)

    return start


def test_every_statement_holds_for_a_real_contract(run, outcomes):
    found = outcomes(run(*SGLANG, "--feature-contract-runtime=vllm==0.33.0"))
    assert found == dict.fromkeys(
        [*EVERY, *(f"fuzz::runtime-{name}" for name in ("sglang-0.5.12", "vllm-v1-0.33.0", "vllm-v2-0.33.0"))],
        "PASSED",
    )


@pytest.mark.parametrize("features", ["0,3,31", "embedding", "61,final_norm", "3,3,3,3,3,3,3,3", "61"])
def test_the_corners_hold_as_well(run, outcomes, features):
    found = outcomes(run(features=features))
    assert set(found.values()) == {"PASSED"}
    # One slice, or equal ones, have no other order.
    assert ("fuzz::order" in found) == (features in ("0,3,31", "61,final_norm"))


def test_the_other_statements_stay_and_nothing_comes_without_the_option(pytester, kimi, collected):
    kimi(pytester.path / "ckpt")
    assert not [n for n in collected(pytester.runpytest("--feature-contract=ckpt", "--co", "-q")) if "fuzz" in n]
    both = collected(pytester.runpytest("--feature-contract=ckpt", "--feature-contract-fuzz=1", "--co", "-q"))
    assert [name.partition(".json::")[2] for name in both][-4:] == EVERY


def test_a_wrong_wiring_that_the_diff_lets_through_is_printed_at_its_smallest(run, outcomes, monkeypatch):
    monkeypatch.setattr(_fuzz, "diff", lambda *_: ())
    result = run()
    assert outcomes(result).of("FAILED") == EVERY[:3]
    text = result.stdout.str()
    assert "a wrong wiring survives: the diff says no finding" in text
    assert "contract says: [h[3], h[31], h[59]]" in text
    # Of all other orders and layers the least ones: the last two exchanged, every slot one block early.
    assert "example:       [h[3], h[59], h[31]]" in text
    assert "example:       [h[2], h[30], h[58]]" in text
    assert "dims:          [1, 7168, 7168]" in text
    assert "Traceback" not in text
    assert [line for line in run().outlines if "example" in line] == [
        line for line in result.outlines if "example" in line
    ]


def test_an_equivalent_wiring_that_is_refused_is_a_failure(run, outcomes, monkeypatch):
    original = _fuzz.diff

    def strict(declared, fed):
        return original(declared, fed) or original(declared, Wiring.from_boundaries((1,)))

    monkeypatch.setattr(_fuzz, "diff", strict)
    result = run()
    assert "fuzz::equivalent" in outcomes(result).of("FAILED")
    assert "an equivalent wiring is refused: the diff says" in result.stdout.str()


def test_a_partial_hole_of_the_diff_is_found(run, outcomes, monkeypatch):
    original = _fuzz.diff
    monkeypatch.setattr(_fuzz, "diff", lambda a, b: [f for f in original(a, b) if f.slug != "slot-duplicate"])
    assert outcomes(run(count="100")).of("FAILED") == ["fuzz::layers"]


def test_ids_that_the_check_of_a_runtime_lets_through_are_printed(run, outcomes, monkeypatch):
    import featurecontract.gate._judge

    monkeypatch.setattr(featurecontract.gate._judge, "judge", lambda *_: ((), 1))
    result = run(*SGLANG)
    assert outcomes(result).of("FAILED") == ["fuzz::runtime-sglang-0.5.12"]
    text = result.stdout.str()
    assert "a wrong wiring survives: the check of sglang==0.5.12 says no error" in text
    assert "example:       eagle_config.eagle_aux_hidden_state_layer_ids = [" in text


def test_the_right_ids_that_the_check_of_a_runtime_refuses_are_printed(run, outcomes, monkeypatch):
    import featurecontract.gate._judge
    from featurecontract.findings import finding

    calls = []

    def refuse(*_):
        calls.append(1)
        # Not for the first call: what fails with the right ids from the start is the contract's own matter.
        return ((finding("layer-mismatch", "m") if len(calls) > 1 else finding("rope", "m")),), 1

    monkeypatch.setattr(featurecontract.gate._judge, "judge", refuse)
    result = run(*SGLANG)
    assert outcomes(result).of("FAILED") == ["fuzz::runtime-sglang-0.5.12"]
    assert "an equivalent wiring is refused" in result.stdout.str()


def test_no_example_is_no_pass(run, outcomes, monkeypatch):
    from hypothesis import strategies as st

    import featurecontract.strategies

    monkeypatch.setattr(featurecontract.strategies, "orderings", lambda _: st.nothing())
    monkeypatch.setattr(featurecontract.strategies, "wirings", lambda **_: st.integers().filter(lambda _: False))
    monkeypatch.setattr(featurecontract.strategies, "can_mutate", lambda *_, **__: False)
    result = run()
    assert outcomes(result).of("FAILED") == ["fuzz::order", "fuzz::layers"]
    assert result.stdout.str().count("no example ran, so nothing is known") == 2


def test_as_many_examples_run_as_were_asked_for():
    from hypothesis import strategies as st

    seen = []
    found = _fuzz.run_examples(st.integers(), lambda example: seen.append(example) or "", 37)
    assert (found.examples, found.survivor, len(seen)) == (37, "", 37)
    least = _fuzz.run_examples(st.integers(), lambda example: "" if example < 1000 else str(example), 400)
    assert least.survivor == "1000"


@pytest.mark.parametrize("value", ["0", "-1", "1.5", "many", "²", "9999999999999"])
def test_a_count_that_is_none_is_a_usage_error(run, value):
    result = run(count=value)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: --feature-contract-fuzz: '{value}' is no number of examples from 1*"])


def test_without_hypothesis_the_usage_error_says_how_to_install_it(run, monkeypatch):
    from featurecontract.plugin import _settings

    monkeypatch.setattr(_settings, "find_spec", lambda _: None)
    result = run()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(['ERROR: *: hypothesis is not installed: pip install "featurecontract[[]pytest[]]"'])


@pytest.mark.parametrize("plugin", [(), ("-p", "no:hypothesispytest")])
def test_nothing_is_written_into_the_project(pytester, kimi, plugin):
    kimi(pytester.path / "ckpt", features=RIGHT)
    args = ("--feature-contract=ckpt", "--feature-contract-fuzz=30", *SGLANG, "-p", "no:cacheprovider", *plugin)
    assert pytester.runpytest_subprocess(*args).ret == 0
    assert not (pytester.path / ".hypothesis").exists()
    # The rest is pytester's own.
    assert {item.name for item in pytester.path.iterdir()} <= {
        "ckpt",
        "stdout",
        "stderr",
        "runpytest-0",
        "runpytest-current",
    }


def test_a_contract_that_cannot_be_read_is_one_error(pytester, kimi, outcomes):
    (kimi(pytester.path / "ckpt") / "feature_contract.json").write_text("{")
    result = pytester.runpytest("--feature-contract=ckpt", "--feature-contract-fuzz=5", "-v")
    assert outcomes(result) == {"contract::schema": "ERROR"}


def test_the_ini_twin_lf_a_pasted_id_and_the_report(pytester, kimi, outcomes, monkeypatch):
    kimi(pytester.path / "ckpt", features=RIGHT)
    pytester.makeini("[pytest]\nfeature_contract = ckpt\nfeature_contract_fuzz = 20\n")
    assert set(EVERY) <= set(outcomes(pytester.runpytest("-v", *SGLANG)))
    pytester.runpytest("ckpt/feature_contract.json::fuzz::order").assert_outcomes(passed=1)
    monkeypatch.setattr(_fuzz, "diff", lambda *_: ())
    pytester.runpytest("--feature-contract-report=r.json", *SGLANG).assert_outcomes(passed=14, failed=3)
    # A survivor is a fault of the tool: the report is about the checkpoint.
    assert json.loads((pytester.path / "r.json").read_text())["exit_status"] == 0
    assert pytester.runpytest("--lf").parseoutcomes()["failed"] == 3


def test_xdist(run):
    pytest.importorskip("xdist")
    assert run("-n", "2").parseoutcomes()["passed"] == 4
