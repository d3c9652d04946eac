"""The drafter's own input ids, and rows of the point `recurrent`: what is said of them, and what never is."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

torch = pytest.importorskip("torch")

from tiny_runs import WIDTH, probe_of, run, tokens, weights  # noqa: E402

from featurecontract.capture import Call, Capture  # noqa: E402
from featurecontract.contract import Alignment  # noqa: E402
from featurecontract.gate import verify_captures  # noqa: E402
from featurecontract.identify.mutators import capture_of, shift_tokens  # noqa: E402

WIRING = (0, 3, 6)
torch.set_num_threads(1)


@pytest.fixture(scope="module")
def made():
    """Return (probe, contract, rows of a healthy run, token ids)."""
    model, ids = weights(), tokens()
    planes = run(model, ids)
    probe, contract = probe_of(planes, WIRING, ids, model.norm)
    return probe, contract, [planes.boundary[b] for b in WIRING], tuple(ids.tolist())


def findings(probe, contract, capture):
    return list(verify_captures(contract, probe, [capture], path="x").findings)


def chunks(slots, ids, *cuts):
    """Return a prefill in pieces."""
    values, edges = torch.cat(slots, dim=1), [0, *cuts, len(ids)]
    return Capture(
        calls=tuple(
            Call(values=values[a:b], phase="prefill", token_ids=ids[a:b], positions=tuple(range(a, b)))
            for a, b in pairwise(edges)
        )
    )


@pytest.mark.parametrize("sampled", [0, 17])
def test_ids_in_place_are_healthy(made, sampled):
    probe, contract, slots, ids = made
    for capture in (capture_of(slots, token_ids=ids), chunks(slots, ids, 20, 41), chunks(slots, ids, 63)):
        assert findings(probe, contract, shift_tokens(capture, sampled=sampled)) == []


@pytest.mark.parametrize("offset", [-3, -2, -1, 1, 2])
@pytest.mark.parametrize("cuts", [(), (20, 41)])
def test_shifted_ids_are_named_with_their_offset(made, offset, cuts):
    probe, contract, slots, ids = made
    found = findings(probe, contract, shift_tokens(chunks(slots, ids, *cuts), offset))
    assert [(item.slug, item.severity, item.details) for item in found] == [
        ("tokens-shifted", "error", {"offset": offset})
    ]
    assert (found[0].expected, found[0].actual) == (1, 1 + offset)


@pytest.mark.parametrize("token_shift", [0, 1, 2])
def test_the_contract_says_what_is_in_place(made, token_shift):
    probe, contract, slots, ids = made
    other = replace(contract, alignment=Alignment(token_shift=token_shift))
    capture = capture_of(slots, token_ids=ids)
    assert findings(probe, other, shift_tokens(capture, token_shift=token_shift)) == []
    (found,) = findings(probe, other, shift_tokens(capture, token_shift=token_shift + 1))
    assert found.details == {"offset": 1}


def test_of_a_batch_only_the_request_that_is_off_is_named(made):
    probe, contract, slots, ids = made
    values = torch.cat(slots, dim=1)
    right, wrong = (shift_tokens(capture_of(slots, token_ids=ids), off).calls[0].drafter_token_ids for off in (0, 1))
    batch = Call(
        values=torch.cat([values, values]),
        phase="prefill",
        token_ids=ids * 2,
        positions=tuple(range(len(ids))) * 2,
        requests=("a",) * len(ids) + ("b",) * len(ids),
        drafter_token_ids=right + wrong,
    )
    (found,) = findings(probe, contract, Capture(calls=(batch,)))
    assert found.slug == "tokens-shifted"
    assert "request b" in found.message
    assert "request a" not in found.message
    interleaved = [i for pair in zip(range(len(ids)), range(len(ids), 2 * len(ids)), strict=True) for i in pair]
    mixed = replace(
        batch,
        values=batch.values[interleaved],
        **{
            name: tuple(getattr(batch, name)[i] for i in interleaved)
            for name in ("token_ids", "positions", "requests", "drafter_token_ids")
        },
    )
    (again,) = findings(probe, contract, Capture(calls=(mixed,)))
    assert again.message == found.message


def test_decode_steps_of_one_row_say_nothing(made):
    """The only row of a step is paired with a token that was just sampled."""
    probe, contract, slots, ids = made
    steps = chunks(slots, ids, *range(1, len(ids)))
    calls = tuple(replace(call, drafter_token_ids=(5,)) for call in steps.calls)
    assert findings(probe, contract, Capture(calls=calls)) == []


def test_ids_that_fit_nowhere_are_a_note(made):
    probe, contract, slots, ids = made
    capture = capture_of(slots, token_ids=ids)
    call = replace(capture.calls[0], drafter_token_ids=(299,) * len(ids))
    (found,) = findings(probe, contract, replace(capture, calls=(call,)))
    assert (found.slug, found.severity) == ("tokens-shifted", "note")


def test_shifted_ids_and_another_fault_are_both_named(made):
    probe, contract, slots, ids = made
    capture = shift_tokens(capture_of([slots[0], slots[2], slots[1]], token_ids=ids), -1)
    assert {item.slug for item in findings(probe, contract, capture)} == {"tokens-shifted", "order"}


@pytest.mark.parametrize("state", ["pre_norm", "post_norm", "unknown"])
def test_recurrent_rows_are_never_held_against_the_bank(made, state):
    """They are the drafter's: whatever they are, nothing above a note comes of them."""
    probe, contract, slots, ids = made
    declared = replace(contract, recurrent_state=state)
    healthy = shift_tokens(capture_of(slots, token_ids=ids))
    generator = torch.Generator().manual_seed(0)
    for rows in (
        torch.randn(64, WIDTH, generator=generator),
        torch.zeros(3, WIDTH),
        slots[2],
        torch.full((64, 7), torch.nan),
    ):
        recurrent = Call(values=rows, point="recurrent", phase="prefill")
        report = verify_captures(declared, probe, [replace(healthy, calls=(*healthy.calls, recurrent))], path="x")
        assert [(item.slug, item.severity) for item in report.findings] == [("recurrent-state", "note")]
        assert (state in report.findings[0].message) == (state != "unknown")
        assert report.exit_status == 0


def test_recurrent_rows_alone_prove_nothing(made):
    probe, contract, _, _ = made
    call = Call(values=torch.randn(64, WIDTH), point="recurrent")
    report = verify_captures(contract, probe, [Capture(calls=(call,))], path="x")
    assert [item.slug for item in report.findings] == ["nothing-compared"]
    assert report.exit_status == 2


def test_calls_of_two_widths_are_two_observations(made):
    probe, contract, slots, ids = made
    healthy = capture_of(slots, token_ids=ids)
    report = verify_captures(
        contract,
        probe,
        [replace(healthy, calls=(*healthy.calls, Call(values=torch.randn(9, 50), phase="prefill")))],
        path="x",
    )
    assert [item.slug for item in report.findings] == ["width"]
    assert len(report.observed) == 2
