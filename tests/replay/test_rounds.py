"""Which rounds of a capture can be drafted again, from which rows; and which cannot, with the reason."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from drafting_runtime import Runtime, decoded, prefills, prompts
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_drafters import Tiny

from featurecontract.capture import Call, Capture
from featurecontract.checkpoint import open_checkpoint
from featurecontract.replay import _rounds, read_drafter, redraft, rounds_of

TINY = Tiny()
WIDTH = TINY.planes * TINY.target_hidden


def rounds(calls, **how):
    return rounds_of(Capture(calls=tuple(calls)), width=WIDTH, vocab_size=TINY.vocab, **how)


@pytest.fixture(scope="module")
def runtime():
    return Runtime(TINY.tensors(), TINY)


@pytest.fixture(scope="module")
def drafter(tmp_path_factory):
    return read_drafter(open_checkpoint(TINY.write(tmp_path_factory.mktemp("tiny"))))


@pytest.fixture(scope="module")
def request_a(runtime):
    ((features, tokens),) = prompts(TINY, [20])
    return features, tokens, decoded(runtime, features, tokens)


def call(rows=4, start=0, **facts):
    given = {
        "positions": tuple(range(start, start + rows)),
        "drafter_token_ids": (1,) * rows,
        "draft_tokens": (1, 2, 3),
        "values": torch.ones(rows, WIDTH),
    }
    return Call(**given | facts)


def test_rejected_rows_never_stand_in_a_history(request_a):
    features, tokens, calls = request_a
    found = rounds(calls)
    (history,) = found.histories
    assert torch.equal(history.features, features[: len(history.token_ids)])
    assert history.token_ids == tokens[1 : len(history.token_ids) + 1].tolist()
    assert [item.row for item in history.rounds] == [5, 9, 10, 13, 15]
    assert [item.drafted for item in history.rounds] == [item.draft_tokens for item in calls]
    assert not found.skipped


def test_a_decoded_request_is_drafted_again_token_by_token(request_a, drafter):
    pairs = redraft(drafter, rounds(request_a[2])).pairs
    assert len(pairs) == 15
    assert all(pair.equal for pair in pairs)
    assert len({pair.theirs for pair in pairs}) > 4


def test_one_phase_is_kept_and_the_rows_before_it_count(request_a):
    found = rounds(request_a[2], phase="decode")
    assert [item.row for history in found.histories for item in history.rounds] == [9, 10, 13, 15]
    assert not found.skipped


def test_rows_that_were_not_captured_are_said(request_a):
    calls = request_a[2]
    for missing, left in ((0, 0), (1, 1), (2, 2)):
        found = rounds(calls[:missing] + calls[missing + 1 :])
        assert found.count == left
        assert found.skipped == {_rounds.GAP: 4 - left}


def test_a_request_that_starts_again_has_two_histories():
    first, again = torch.ones(4, WIDTH), torch.full((6, WIDTH), 2.0)
    found = rounds([call(values=first), call(6, values=again), call(1, 2, values=torch.full((1, WIDTH), 3.0))])
    assert [history.features[:, 0].tolist() for history in found.histories] == [[1.0] * 4, [2.0] * 6, [2.0, 2.0, 3.0]]


def test_several_requests_in_one_call_and_several_ranks():
    rows = {"requests": ("a", "a", "b", "b"), "positions": (0, 1, 0, 1), "draft_tokens": (1, 2, 3, 4, 5, 6)}
    found = rounds([call(**rows), call(**rows, rank=1, values=torch.zeros(4, WIDTH))])
    assert sorted((h.features[0, 0].item(), h.rounds[0].drafted) for h in found.histories) == [
        (0.0, (1, 2, 3)),
        (0.0, (4, 5, 6)),
        (1.0, (1, 2, 3)),
        (1.0, (4, 5, 6)),
    ]


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ({"drafter_token_ids": None}, _rounds.NO_IDS),
        ({"drafter_token_ids": (1, 1, 1, 64)}, _rounds.OUTSIDE),
        ({"drafter_token_ids": (1, 1, 1, -1)}, _rounds.OUTSIDE),
        ({"drafter_token_ids": (1,)}, _rounds.FACTS),
        ({"draft_tokens": (1, 2, 99)}, _rounds.OUTSIDE),
        ({"draft_tokens": (-5,)}, _rounds.OUTSIDE),
        ({"draft_tokens": (1,) * 65}, _rounds.UNEVEN),
        ({"requests": ("a", "a", "b", "b"), "positions": (0, 1, 0, 1)}, _rounds.UNEVEN),
        ({"requests": ("a",)}, _rounds.FACTS),
        ({"positions": (-1, 0, 1, 2)}, _rounds.BROKEN_ROWS),
        ({"positions": (0, 1, 3, 4)}, _rounds.BROKEN_ROWS),
        ({"positions": (0, 0, 0, 0)}, _rounds.BROKEN_ROWS),
        ({"positions": (2**62, 2**62 + 1, 2**62 + 2, 2**62 + 3)}, _rounds.GAP),
        ({"accepted": (False,) * 4}, _rounds.NO_ROW),
        ({"accepted": (True, False, True, True)}, _rounds.BROKEN_ROWS),
        ({"accepted": (True,)}, _rounds.FACTS),
        ({"values": torch.ones(4, WIDTH - 1)}, _rounds.WIDTH),
        ({"values": torch.full((4, WIDTH), float("nan"))}, _rounds.NOT_FINITE),
        ({"extra": {"rows_dropped": 2}}, _rounds.CUT),
    ],
)
def test_what_cannot_be_compared_has_its_reason(facts, reason):
    found = rounds([call(**facts)])
    assert found.count == 0
    assert set(found.skipped) == {reason}


def test_without_positions_the_first_call_of_a_request_counts_and_no_other():
    found = rounds([call(positions=None), call(positions=None)])
    assert found.count == 1
    assert found.skipped == {_rounds.NO_POSITIONS: 1}


def test_rows_whose_owner_is_not_known_end_every_history():
    found = rounds([call(), call(1, 4, requests=("", "x")), call(1, 4)])
    assert found.count == 1
    assert found.skipped == {_rounds.FACTS: 1, _rounds.GAP: 1}


def test_without_features_what_enters_the_projection_is_taken():
    found = rounds([call(point="projection_input"), call(point="recurrent")])
    assert (found.point, found.count) == ("projection_input", 1)
    both = rounds([call(point="projection_input"), call(values=torch.zeros(4, WIDTH))])
    assert (both.point, both.count, both.histories[0].features[0, 0].item()) == ("features", 1, 0.0)
    assert rounds([]).point == ""


def test_a_second_module_of_the_same_point_is_left_out():
    found = rounds([call(extra={"place": "fc"}), call(extra={"place": "other.fc"}, values=torch.zeros(4, WIDTH))])
    assert found.count == 1


FACTS = st.fixed_dictionaries(
    {},
    optional={
        "positions": st.none() | st.lists(st.integers(-2, 6) | st.integers(-(2**63), 2**63 - 1), max_size=5).map(tuple),
        "requests": st.none() | st.lists(st.sampled_from("ab"), max_size=5).map(tuple),
        "accepted": st.none() | st.lists(st.booleans(), max_size=5).map(tuple),
        "drafter_token_ids": st.none() | st.lists(st.integers(-1, 65), max_size=5).map(tuple),
        "draft_tokens": st.none() | st.lists(st.integers(-1, 65), max_size=9).map(tuple),
        "rank": st.integers(0, 1),
    },
)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 5), FACTS), max_size=6))
def test_whatever_a_capture_says_nothing_is_raised_and_every_round_is_whole(drafter, drawn):
    calls = [call(rows, start, **facts) for rows, start, facts in drawn]
    found = rounds(calls)
    for history in found.histories:
        assert len(history.features) == len(history.token_ids)
        assert all(item.row < len(history.token_ids) for item in history.rounds)
    redrafted = redraft(drafter, found)
    assert len(redrafted.pairs) == sum(len(item.drafted) for history in found.histories for item in history.rounds)


def test_prompts_of_several_lengths_are_compared_in_one_padded_batch(runtime, drafter):
    capture = prefills(runtime, prompts(TINY, [1, 2, 5, 9, 17]))
    found = rounds(capture.calls)
    assert found.count == 5
    pairs = redraft(drafter, found).pairs
    assert sorted({pair.position for pair in pairs}) == [0, 1, 4, 8, 16]
    assert all(pair.equal for pair in pairs)
    one_by_one = [pair for item in capture.calls for pair in redraft(drafter, rounds([item])).pairs]
    assert sorted(one_by_one) == sorted(pairs)


def test_replayed_logits_that_are_not_finite_are_said(drafter):
    huge = replace(call(), values=torch.full((4, WIDTH), 3e38))
    found = redraft(drafter, rounds([huge]))
    assert found.pairs == []
    assert sum(found.skipped.values()) == 3
