"""The split verdict, as a table: which evidence ends in which cause, and in which sentence."""

from __future__ import annotations

from dataclasses import replace

import pytest

from featurecontract.contract import Contract, Drafter, Feature, Quality, Target, Wiring
from featurecontract.errors import InputError
from featurecontract.findings import (
    CAUSES,
    Drafted,
    DraftedStep,
    Estimate,
    Observed,
    Predicted,
    Replayed,
    catalogue,
    finding,
)
from featurecontract.gate._conclude import Gathered, Stage, cause_of, conclude, failed

DECLARED = Wiring(features=tuple(Feature(slot=slot, boundary=b) for slot, b in enumerate((0, 3, 16))))
FED = Wiring(features=tuple(Feature(slot=slot, boundary=b) for slot, b in enumerate((2, 15, 27))))
SWAPPED = Wiring(features=tuple(Feature(slot=slot, boundary=b) for slot, b in enumerate((3, 0, 16))))
VLLM = "vllm-v1==0.32.0"


def contract(**quality):
    return Contract(
        name="drafter",
        method="eagle3",
        target=Target(num_hidden_layers=30, hidden_size=576),
        drafter=Drafter(hidden_size=576),
        features=DECLARED.features,
        quality=Quality(**quality) if quality else None,
    )


def error(slug, message="it differs", **fields):
    return finding(slug, message, severity="error", **fields)


def figures(wiring, value, length, *, declared=False):
    return Replayed(
        wiring=wiring,
        declared=declared,
        accuracy=(Estimate(value=value, low=value - 0.03, high=value + 0.03, samples=900),),
        acceptance_length=Estimate(value=length, low=length - 0.05, high=length + 0.05, samples=900),
        sequences=24,
        rows=900,
    )


def absent(name):
    return Stage(name=name, ran=False, text="nothing was given")


STATIC = Stage(name="static", ran=True, compared=12, predicted=(Predicted(runtime=VLLM, wiring=DECLARED),))
SEEN = Observed(phase="prefill", point="features", wiring=DECLARED, slots=(), rows=64, runtime="vllm==0.32.0")
DRAFTED = Drafted(runtime="vllm==0.32.0", rounds=8, steps=(DraftedStep(step=1, equal=7, near_ties=1),))
CAPTURED = Stage(name="captured", ran=True, compared=3, observed=(SEEN,), drafted=(DRAFTED,))
ROWS = Stage(name="rows", ran=True, text="golden rows: step 1 right in 20 of 62")
REPLAY = Stage(name="replay", ran=True, compared=1, replayed=(figures(DECLARED, 0.28, 1.4, declared=True),))
ALL = {
    "static": STATIC,
    "captured": CAPTURED,
    "rows": ROWS,
    "replay": REPLAY,
    "named_runtimes": True,
    "served_arguments": True,
}


def of(known=None, **changed):
    return conclude(Gathered(contract=known or contract(step_accuracies=(0.28,)), **(ALL | changed)))


def with_findings(stage, *found):
    return replace(stage, findings=found)


def test_all_evidence_that_holds_is_no_fault():
    found = of()
    assert found.cause == "none"
    assert found.missing == ()
    assert "the drafter's own (1.40 [1.35, 1.45] tokens per round in the replay)" in found.sentence
    assert [(item.name, item.ran) for item in found.evidence] == [
        (name, True) for name in ("static", "captured", "drafts", "rows", "replay")
    ]


def test_draft_tokens_that_were_not_compared_are_not_claimed():
    found = of(captured=replace(CAPTURED, drafted=(replace(DRAFTED, steps=(), reason="it shares the head"),)))
    assert found.cause == "undecided"
    assert found.missing == ("draft tokens of the runtime that can be drafted again (it shares the head)",)
    assert "drafts what the weights draft" not in found.sentence
    lost = of(captured=replace(CAPTURED, drafted=()), acceptance=1.1)
    assert "drafts hold" not in lost.sentence
    assert next(item.text for item in found.evidence if item.name == "drafts") == "it shares the head"
    assert "drafts what the weights draft" in of().sentence
    assert next(item.text for item in of().evidence if item.name == "drafts").startswith("7 of 8 draft tokens")


@pytest.mark.parametrize(
    ("stage", "slug", "cause"),
    [
        ("captured", "embedding-missing", "wiring"),
        ("captured", "rows-shifted", "wiring"),
        ("captured", "stale", "wiring"),
        ("captured", "draft-tokens-differ", "runtime"),
        ("static", "recurrent-state", "flags"),
        ("static", "rope", "flags"),
        ("static", "forced-acceptance", "flags"),
        ("static", "runtime-crash", "runtime"),
        ("static", "vocab-map", "checkpoint"),
        ("static", "width", "checkpoint"),
        ("replay", "wiring-disagrees", "wiring"),
        ("replay", "accuracy-below", "drafter"),
    ],
)
def test_one_error_is_one_cause(stage, slug, cause):
    found = of(**{stage: with_findings(ALL[stage], error(slug, "this is what differs"))})
    assert (found.cause, found.also) == (cause, ())
    assert found.sentence.startswith(cause)
    assert "this is what differs" in found.sentence


def test_every_rule_has_a_cause():
    assert {cause_of(slug) for slug in catalogue()} <= set(CAUSES)


def test_what_is_fed_is_replayed_and_its_effect_is_said():
    tag = "vllm==0.32.0 prefill"
    captured = replace(
        CAPTURED,
        observed=(replace(SEEN, wiring=FED),),
        findings=(error("embedding-missing", "slot 0 is not the embedding", runtime=tag),),
    )
    replay = replace(REPLAY, replayed=(*REPLAY.replayed, figures(FED, 0.11, 1.14)))
    found = of(captured=captured, replay=replay)
    assert found.cause == "wiring"
    assert "step 1 is right in 11.0 % [8.0, 14.0] of the rows, with the declared wiring in 28.0 %" in found.sentence
    assert found.missing == ()


def test_what_was_observed_comes_before_what_was_predicted():
    static = with_findings(STATIC, error("ids-defaulted", "predicted", runtime=VLLM))
    captured = with_findings(CAPTURED, error("layer-shift", "observed", runtime="vllm==0.32.0 prefill"))
    found = of(static=static, captured=captured)
    assert "observed" in found.sentence
    assert found.sentence.endswith("(and ids-defaulted)")


def test_a_contract_that_the_weights_refute_is_named_before_the_runtime():
    static = with_findings(STATIC, error("layer-shift", "the runtime would feed another", runtime=VLLM))
    replay = with_findings(REPLAY, error("wiring-disagrees", "the weights prefer it"))
    assert of(static=static, replay=replay, captured=absent("captured")).sentence == (
        "wiring: the weights prefer it (and layer-shift)"
    )


def test_a_capture_that_holds_and_a_prediction_that_does_not_contradict_each_other():
    older = VLLM.replace("0.32.0", "0.20.0")
    stated = replace(STATIC, predicted=(Predicted(runtime=older, wiring=FED),))
    static = with_findings(stated, error("ids-defaulted", "predicted", runtime=older))
    found = of(static=static)
    assert found.cause == "undecided"
    assert "the version that was captured is not the one that was named" in found.sentence
    assert found.missing[0].startswith("--runtime")
    # Without a capture the prediction is all there is.
    assert of(static=static, captured=absent("captured")).cause == "wiring"


def test_a_capture_of_the_very_version_that_was_named_is_not_called_another():
    static = with_findings(STATIC, error("ids-defaulted", "predicted", runtime=VLLM))
    found = of(static=static)
    assert found.cause == "undecided"
    assert "other flags or another build were captured" in found.sentence


@pytest.mark.parametrize("runtime", ["sglang==0.5.12", "vllm-v1==0.20.0"])
def test_a_capture_of_one_runtime_contradicts_no_prediction_for_another(runtime):
    predicted = (*STATIC.predicted, Predicted(runtime=runtime, wiring=FED))
    static = with_findings(replace(STATIC, predicted=predicted), error("ids-defaulted", "predicted", runtime=runtime))
    found = of(static=static)
    assert (found.cause, found.sentence) == ("wiring", f"wiring: {runtime}: predicted")


def test_the_effect_is_of_the_runtime_that_the_sentence_names():
    """The captured wiring of a process without a name, or of another phase, is not what a prediction feeds."""
    other = replace(SEEN, runtime="", phase="", wiring=SWAPPED)
    captured = replace(CAPTURED, observed=(other,), findings=(finding("inconclusive", "too few rows"),))
    predicted = (Predicted(runtime="sglang==0.5.12", wiring=FED),)
    wrong = error("ids-defaulted", "predicted", runtime="sglang==0.5.12")
    replay = replace(REPLAY, replayed=(*REPLAY.replayed, figures(SWAPPED, 0.2, 1.2), figures(FED, 0.11, 1.14)))
    static = with_findings(replace(STATIC, predicted=predicted), wrong)
    assert "step 1 is right in 11.0 %" in of(static=static, captured=captured, replay=replay).sentence


@pytest.mark.parametrize(("value", "doubted"), [(0.01, True), (0.2, False)])
def test_a_figure_far_below_puts_the_states_in_doubt_too(value, doubted):
    low = error("accuracy-below", "step 1 is low", expected=0.6, actual={"value": value}, details={"above": False})
    found = of(replay=with_findings(REPLAY, low))
    assert found.cause == "drafter"
    assert ("states of another target, text or row" in found.sentence) == doubted


def test_states_that_cannot_be_used_are_no_fault_of_the_files():
    stage = failed("replay", InputError.single("hs_0", "is 64 wide, not 32", slug="target-mismatch"))
    assert [item.unchecked for item in stage.findings] == [True]
    assert of(replay=stage).cause == "undecided"


def test_two_faults_are_both_said():
    captured = with_findings(CAPTURED, error("order", "slots are swapped"))
    replay = with_findings(REPLAY, error("accuracy-below", "step 1 is 0.1, stated 0.28", details={"above": False}))
    found = of(captured=captured, replay=replay)
    assert found.cause == "wiring"
    assert len(found.also) == 1
    assert found.also[0].startswith("drafter quality")


@pytest.mark.parametrize(
    ("served", "cause"), [(1.4, "drafter"), (1.6, "drafter"), (1.3, "drafter"), (1.1, "undecided")]
)
def test_the_served_acceptance_is_held_against_the_replay(served, cause):
    found = of(acceptance=served)
    assert found.cause == cause
    assert f"{served:.2f}" in found.sentence
    if cause == "undecided":
        assert "wiring, flags and drafts hold" in found.sentence


def test_too_few_rows_blame_nobody():
    replay = with_findings(REPLAY, finding("inconclusive", "too few rows"))
    assert of(replay=replay, acceptance=1.4).cause == "undecided"


def test_figures_that_are_too_good_blame_the_states():
    replay = with_findings(REPLAY, error("accuracy-below", "all right", details={"above": True}))
    assert of(replay=replay).sentence.startswith("undecided: the replay's figures are better than they can be")
    assert of(replay=replay, acceptance=1.4).cause == "undecided"


@pytest.mark.parametrize(
    ("changed", "asked"),
    [
        ({"captured": absent("captured")}, "a capture"),
        ({"replay": absent("replay")}, "--states"),
        ({"named_runtimes": False}, "--runtime"),
        ({"served_arguments": False}, "--serve-args"),
    ],
)
def test_what_is_missing_is_asked_for_and_is_no_pass(changed, asked):
    found = of(**changed)
    assert found.cause == "undecided"
    assert found.missing[0].startswith(asked)


def test_a_drafter_without_stated_figures_asks_for_the_served_one():
    assert of(contract()).missing == ("--acceptance A, the tokens per round that are served",)
    assert of(contract(), acceptance=1.4).cause == "drafter"


def test_what_could_not_be_checked_is_no_pass():
    captured = with_findings(CAPTURED, finding("inconclusive", "slot 1 is h[2] or h[3]"))
    found = of(captured=captured)
    assert (found.cause, found.sentence) == ("undecided", "undecided: inconclusive: slot 1 is h[2] or h[3]")


def test_warnings_count_when_strict():
    static = with_findings(STATIC, finding("ids-defaulted", "by luck", severity="warning"))
    assert of(static=static).cause == "none"
    assert of(static=static, strict=True, captured=absent("captured")).cause == "wiring"
