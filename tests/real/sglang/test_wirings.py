"""What real SGLang workers feed is named exactly, and is what the rules predict from the files alone."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import partial

import pytest
from drafters import as_speculators, with_norms
from sglang_cpu import HERE, environment

from featurecontract.capture import load
from featurecontract.gate import check, predict, verify

VERSION = "0.5.23"
# Ids in the drafter's eagle_config, and the boundaries that enter fc, slot by slot.
IDS = {
    "none": (None, (2, 4, 5)),
    "1,3,4": ([1, 3, 4], (2, 4, 5)),
    "2,4,5": ([2, 4, 5], (3, 5, 6)),
    "4,1,3": ([4, 1, 3], (2, 4, 5)),
    "-1,2,6": ([-1, 2, 6], (0, 3, 7)),
}
#: Drafters that are fed what they declare.
NORMED = {"fc_norm": "per_feature", "norm_before_fc": "joint"}


@pytest.fixture(scope="module")
def cases(recorded, prefill):
    """All drafters of this file, each fed in one process of SGLang."""
    # All of the first declare h[1], h[3], h[6]: the answer must not come from what was declared.
    made = {name: recorded(ids, "1,3,6") for name, (ids, _) in IDS.items()}
    made["honest"] = recorded([1, 3, 4], "2,4,5")
    made["copied"] = recorded([2, 4, 5], "2,4,5")
    made["flat"] = recorded([0, 3, 6], "0,3,6", nested=False)
    for norm in NORMED:
        made[norm] = recorded([1, 3, 4], "2,4,5", change=partial(with_norms, kind=norm))
    made["speculators"] = recorded(None, "2,4,5", change=partial(as_speculators, ids=[2, 4, 5]))
    answers = prefill([case.place for case in made.values()])
    for case, answer in zip(made.values(), answers, strict=True):
        case.answer = answer
    return made


def boundaries(wiring):
    return tuple((feature.boundary, feature.state) for feature in wiring.features)


def predicted(case):
    found = predict(case.place, target=str(case.target), runtimes=[f"sglang=={VERSION}"])
    return found.predicted[0].wiring


def verified(case):
    return verify(case.place, [case.answer.captured])


@pytest.mark.parametrize("name", IDS)
def test_observed_is_what_was_predicted(cases, name):
    case, wanted = cases[name], tuple((boundary, "residual") for boundary in IDS[name][1])
    report = verified(case)
    assert {item.point for item in report.observed} == {"features", "projection_input"}
    for item in report.observed:
        assert boundaries(item.wiring) == wanted
        assert item.rows == 64
        assert all(slot.confidence >= 0.9 for slot in item.slots)
    assert boundaries(predicted(case)) == wanted
    assert sorted(case.answer.layers_to_capture) == [boundary for boundary, _ in wanted]
    assert report.verdict == "fail"


def test_the_version_and_what_sglang_resolved_stand_in_the_capture(cases):
    found = load(cases["4,1,3"].answer.captured)[0]
    assert found.runtime == f"sglang=={VERSION}"
    # SGLang's own list has the config's order; what is fed is ascending.
    assert found.extra["resolved_ids"] == [4, 1, 3]
    assert found.extra["layers_to_capture"] == [5, 2, 4]
    assert found.extra["drafter"] == "LlamaForCausalLMEagle3"
    assert load(cases["none"].answer.captured)[0].extra["resolved_ids"] is None


def test_rows_say_what_they_are(cases):
    case = cases["honest"]
    calls = [call for call in load(case.answer.captured)[0].calls if call.point == "features"]
    assert [call.phase for call in calls] == ["prefill", "prefill"]
    for call, fed in zip(calls, case.answer.fed, strict=True):
        assert call.positions == tuple(range(64))
        # The drafter gets the next token beside each feature; its last one is what the target just chose.
        assert call.drafter_token_ids == (*call.token_ids[1:], *fed["next"])
        assert len(call.draft_tokens) == 1
    assert calls[1].token_ids == tuple(case.probe.token_ids.tolist())


def test_a_contract_that_says_what_is_fed_passes(cases):
    report = verified(cases["honest"])
    assert (report.verdict, report.findings) == ("pass", ())


@pytest.mark.parametrize("norm", NORMED)
def test_a_norm_in_front_of_fc_is_no_false_alarm(cases, norm):
    case = cases[norm]
    assert case.contract.wiring.pre_norm == NORMED[norm]
    report = verified(case)
    assert (report.verdict, report.findings) == ("pass", ())
    by_point = {item.point: item for item in report.observed}
    assert by_point["projection_input"].wiring.pre_norm == NORMED[norm]
    calls = load(case.answer.captured)[0].calls
    before, behind = (next(call for call in calls if call.point == point) for point in by_point)
    assert not before.values.equal(behind.values)


def test_ids_of_speculators_copied_into_eagle_config_are_one_layer_off(cases):
    case = cases["copied"]
    for report in (verified(case), check(case.place, target=str(case.target), runtimes=[f"sglang=={VERSION}"])):
        errors = {
            (item.slug, item.slots, item.details["shift"]) for item in report.findings if item.severity == "error"
        }
        assert errors == {("layer-shift", (0, 1, 2), 1)}
        assert report.verdict == "fail"


def test_ids_on_top_of_the_config_are_not_read(cases):
    case = cases["flat"]
    static = check(case.place, target=str(case.target), runtimes=[f"sglang=={VERSION}"])
    assert {item.slug for item in static.findings if item.severity == "error"} & {"ids-unread", "ids-defaulted"}
    report = verified(case)
    assert {boundaries(item.wiring) for item in report.observed} == {
        ((2, "residual"), (4, "residual"), (5, "residual"))
    }
    assert boundaries(predicted(case)) == ((2, "residual"), (4, "residual"), (5, "residual"))
    assert report.verdict == "fail"
    assert load(case.answer.captured)[0].extra["resolved_ids"] is None
    assert "eagle_aux_hidden_state_layer_ids" not in case.answer.log


def test_an_unmodified_speculators_checkpoint_is_refused(cases):
    case = cases["speculators"]
    assert "model_type" in case.answer.error
    found = predict(case.place, target=str(case.target), runtimes=[f"sglang=={VERSION}"]).predicted[0]
    assert (found.crash, "model_type" in found.crash_message) == ("at load", True)


def test_what_is_generated_is_the_same_with_capture_and_without(cases, prefill):
    for_real = [cases["honest"], cases["fc_norm"]]
    answers = prefill([case.place for case in for_real], capture=False)
    assert [answer.fed for answer in answers] == [case.answer.fed for case in for_real]
    assert not any(answer.captured.exists() for answer in answers)


#: Ids for a target of 61 layers, and what the setter of SGLang's DeepSeek class makes of them. Its forward pass (MLA)
#: is NOT RUN on the CPU: only its own setter is.
DEEPSEEK = {
    "2,30,58": ([2, 30, 58], [2, 30, 58]),
    "1,29,57": ([1, 29, 57], [2, 30, 58]),
    "none": (None, [2, 30, 58]),
}


def test_the_setter_of_deepseek_targets_is_as_the_rules_say_setter_only(recorded):
    said = json.loads(
        subprocess.run(
            [sys.executable, str(HERE / "deepseek_setter.py"), json.dumps([ids for ids, _ in DEEPSEEK.values()])],
            env=environment(SGLANG_USE_CPU_ENGINE="1"),
            stdout=subprocess.PIPE,
            timeout=600,
            check=True,
        ).stdout.splitlines()[-1]
    )
    assert said == [kept for _, kept in DEEPSEEK.values()]
    for ids, kept in DEEPSEEK.values():
        case = recorded(ids, "2,4,5")
        target = "deepseek:61,64,DeepseekV3ForCausalLM"
        found = predict(case.place, target=target, runtimes=[f"sglang=={VERSION}"]).predicted[0]
        assert [boundary for boundary, _ in boundaries(found.wiring)] == kept
