"""Counts by step are what a loop over rows counts, however the sequences are batched."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tiny_drafters import Tiny
from written_by import written_by

from featurecontract.checkpoint import open_checkpoint
from featurecontract.replay import PlaneName, Text, batches, measure, read_drafter, unroll
from featurecontract.replay import _measure as measuring

WIRING = (PlaneName(0), PlaneName(2), PlaneName(5))
STEPS = 3


@pytest.fixture
def drafter(tmp_path):
    Tiny().write(tmp_path)
    return read_drafter(open_checkpoint(tmp_path))


@pytest.fixture
def texts(drafter):
    g = torch.Generator().manual_seed(9)
    out = []
    for number, text in enumerate(written_by(drafter, WIRING, sequences=5, length=24)):
        length = 24 - 3 * number
        planes = {name: plane[:length] for name, plane in text.planes.items()}
        answers = torch.where(
            torch.rand(length, generator=g) < 0.7, torch.cat([text.token_ids[1:length], torch.zeros(1).long()]), 5
        )
        out.append(Text(text.token_ids[:length], planes, answers=answers))
    return out


def counted_by_hand(drafter, text, labels_of):
    """Return ``[full, chained]``, each ``[2][K]``, by a loop over the rows of one sequence."""
    states = drafter.project(text.features(WIRING)[None])
    drafted = [
        drafter.tokens(drafter.logits(s.output))[0] for s in unroll(drafter, states, text.token_ids[None], steps=STEPS)
    ]
    full, chained = [[0] * STEPS, [0] * STEPS], [[0] * STEPS, [0] * STEPS]
    for row in range(len(text.token_ids)):
        alive = True
        for step in range(STEPS):
            label = row + 2 + step
            if label >= len(text.token_ids) or (text.counted is not None and not text.counted[label]):
                alive = False
                continue
            right = int(drafted[step][row]) == int(labels_of(text)[label])
            full[0][step] += right
            full[1][step] += 1
            chained[0][step] += right and alive
            chained[1][step] += alive
            alive = alive and right
    return [full, chained]


def by_text(text):
    return text.token_ids


def by_answer(text):
    return torch.cat([torch.tensor([-1]), text.answers[:-1]])


@pytest.mark.parametrize("rows", [1, 60, 10_000])
@pytest.mark.parametrize("masked", [False, True])
def test_counts_are_those_of_a_loop(drafter, texts, rows, masked):
    if masked:
        texts = [replace(t, counted=torch.arange(len(t.token_ids)) % 3 > 0) for t in texts]
    (tally,) = measure(drafter, batches(texts, rows=rows), [WIRING], steps=STEPS)
    for number, text in enumerate(texts):
        full, chained = counted_by_hand(drafter, text, by_text)
        assert tally.full[number].tolist() == full
        assert tally.chained[number].tolist() == chained
        full, chained = counted_by_hand(drafter, text, by_answer)
        assert tally.agree[number].tolist() == full
        assert tally.agree_chained[number].tolist() == chained
    assert tally.sequences == 5
    assert tally.rows == sum(int(item[1, 0]) for item in tally.full) > 0


def test_the_trained_wiring_does_best(drafter):
    texts = written_by(drafter, WIRING)
    wirings = [WIRING, (PlaneName(2), PlaneName(5), PlaneName(7)), (PlaneName(0), PlaneName(5), PlaneName(2))]
    tallies = measure(drafter, batches(texts, rows=500), wirings, steps=1)
    shares = [float(sum(t.full)[0, 0] / sum(t.full)[1, 0]) for t in tallies]
    assert shares[0] > 0.6
    assert max(shares[1:]) < 0.4


def test_answers_that_one_sequence_lacks_are_left_out(drafter, texts):
    texts[2] = replace(texts[2], answers=None)
    (tally,) = measure(drafter, batches(texts, rows=10_000), [WIRING], steps=2)
    assert len(tally.full) == 5
    assert tally.agree == []


def test_a_head_in_pieces_gives_the_same(drafter, texts, monkeypatch):
    (whole,) = measure(drafter, batches(texts, rows=10_000), [WIRING], steps=STEPS)
    monkeypatch.setattr(measuring, "_MAX_LOGITS", 24 * 7)
    (pieces,) = measure(drafter, batches(texts, rows=10_000), [WIRING], steps=STEPS)
    assert torch.equal(torch.stack(whole.chained), torch.stack(pieces.chained))


def test_a_drafter_that_overflows_is_never_right(drafter, texts):
    drafter.weights["norm.weight"] = drafter.weights["norm.weight"] * float("inf")
    (tally,) = measure(drafter, batches(texts, rows=10_000), [WIRING], steps=STEPS)
    assert float(sum(tally.full)[0].sum()) == 0
    assert float(sum(tally.full)[1].sum()) > 0


def test_batches_are_bounded():
    sizes = [5, 9, 3, 30, 2, 2, 2]
    texts = [Text(torch.zeros(size, dtype=torch.int64), {}) for size in sizes]
    groups = [[len(t.token_ids) for t in group] for group in batches(texts, rows=18)]
    assert [size for group in groups for size in group] == sizes
    assert all(max(group) * len(group) <= 18 or len(group) == 1 for group in groups)
    assert len(groups) == 4
