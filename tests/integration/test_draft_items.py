"""Items ``drafts``: where a capture holds draft tokens and the checkpoint's weights can draft them again."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import pytest

pytest.importorskip("torch")

from drafted_checkpoint import LENGTHS, drafted, make

from featurecontract.capture import load, save
from featurecontract.live import phases

SLOTS = ("slot-0", "slot-1", "slot-2", "rows")


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    root = make(tmp_path_factory.mktemp("prepared"))
    drafted(root, root / "healthy")
    drafted(root, root / "faulty", post=True)
    return root


@pytest.fixture
def made(prepared, pytester):
    for name in ("ckpt", "target", "fed", "healthy", "faulty"):
        shutil.copytree(prepared / name, pytester.path / name)
    return pytester.path


def run(pytester, capture, *more, target=True):
    lent = ["--feature-contract-target=target"] if target else []
    options = [f"--feature-contract-capture={capture}", *lent, "--feature-contract-report=r.json", "-v", *more]
    return pytester.runpytest("--feature-contract=ckpt", *options)


def observed(found):
    return {name.partition("::")[2]: word for name, word in found.items() if name.startswith("observed")}


def test_a_healthy_capture_has_an_item_that_passes(pytester, made, outcomes):
    result = run(pytester, "healthy")
    assert observed(outcomes(result)) == dict.fromkeys((*SLOTS, "drafts"), "PASSED")
    report = json.loads((made / "r.json").read_text())
    assert [(item["compared"], item["equal"]) for item in report["drafted"]] == [(20, 20)]
    assert result.ret == 0


@pytest.mark.usefixtures("made")
def test_a_faulty_one_fails_that_item_alone(pytester, outcomes):
    result = run(pytester, "faulty")
    assert observed(outcomes(result)) == dict.fromkeys(SLOTS, "PASSED") | {"drafts": "FAILED"}
    result.stdout.fnmatch_lines(["error FC503 draft-tokens-differ*", "*20 of 20 tokens with the recurrent state*"])
    alone = run(pytester, "faulty", "-k", "drafts")
    assert observed(outcomes(alone)) == {"drafts": "FAILED"}


@pytest.mark.usefixtures("made")
@pytest.mark.parametrize("capture", ["fed", "faulty"])
def test_without_tokens_or_weights_there_is_no_item(pytester, outcomes, capture):
    # `fed` holds no draft tokens; without its directory the target does not lend its embedding.
    result = run(pytester, capture, target=capture == "fed")
    assert observed(outcomes(result)) == dict.fromkeys(SLOTS, "PASSED")


@pytest.mark.usefixtures("made")
def test_live_phases_have_the_item_where_the_weights_can_be_replayed(pytester):
    def listed():
        result = pytester.runpytest(
            "--feature-contract=ckpt",
            "--feature-contract-live=vllm",
            "--feature-contract-target=target",
            "--collect-only",
            "-q",
        )
        return {line.partition("::")[2] for line in result.outlines if line.endswith("::drafts")}

    assert listed() == {f"live-vllm-{phase}::drafts" for phase in phases("vllm")}
    (pytester.path / "target" / "model.safetensors").unlink()
    assert listed() == set()


def test_tokens_that_cannot_be_compared_are_an_error_of_the_item(pytester, made, outcomes):
    (capture,) = load(made / "healthy")
    behind = [replace(call, positions=tuple(range(100, 100 + len(call.values)))) for call in capture.calls[:-1]]
    save(replace(capture, calls=(*behind, replace(capture.calls[-1], draft_tokens=None))), made / "cached")
    result = run(pytester, "cached")
    assert observed(outcomes(result))["drafts"] == "ERROR"
    result.stdout.fnmatch_lines(["*no draft token was compared: no round can be compared*"])


def test_each_phase_has_its_rounds_and_the_rows_before_them_count(pytester, made, outcomes):
    """The decode step's history began in the prefill, which is another observation."""
    (capture,) = load(made / "healthy")
    rows = LENGTHS[-1]
    whole, split = capture.calls[-1], rows - 4
    first = replace(
        whole,
        values=whole.values[:split],
        **{name: getattr(whole, name)[:split] for name in ("token_ids", "positions", "requests", "drafter_token_ids")},
        draft_tokens=None,
    )
    rest = replace(
        whole,
        phase="decode",
        values=whole.values[split:],
        **{name: getattr(whole, name)[split:] for name in ("token_ids", "positions", "requests", "drafter_token_ids")},
    )
    save(replace(capture, calls=(*capture.calls[:-1], first, rest)), made / "two")
    found = outcomes(run(pytester, "two"))
    drafts = {name: word for name, word in found.items() if name.endswith("::drafts")}
    assert drafts == {"observed-prefill::drafts": "PASSED", "observed-decode::drafts": "PASSED"}
    report = json.loads((made / "r.json").read_text())
    assert {tuple(item["phases"]): item["rounds"] for item in report["drafted"]} == {("prefill",): 9, ("decode",): 1}
