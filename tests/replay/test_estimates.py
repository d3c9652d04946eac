"""Intervals hold what they promise, with the sequence as the sampling unit."""

from __future__ import annotations

import math
from random import Random

import pytest
import torch

from featurecontract.replay import acceptance_length, paired, paired_sums, step_accuracies
from featurecontract.replay._student import student_quantile, student_tail


@pytest.mark.parametrize(
    ("tail", "degrees", "t"),
    # Tables of Student's distribution.
    [
        (0.025, 1, 12.706),
        (0.025, 5, 2.571),
        (0.025, 15, 2.131),
        (0.005, 30, 2.750),
        (0.05, 10, 1.812),
        (0.025, 10**6, 1.960),
    ],
)
def test_students_table(tail, degrees, t):
    assert student_quantile(tail, degrees) == pytest.approx(t, abs=6e-4)
    assert student_tail(t, degrees) == pytest.approx(tail, rel=2e-3)
    assert student_tail(-t, degrees) == pytest.approx(1 - tail, rel=1e-3)


def test_the_tails_ends():
    assert student_tail(math.inf, 3) == 0.0
    assert student_tail(-math.inf, 3) == 1.0
    assert student_tail(0.0, 3) == pytest.approx(0.5)
    assert student_tail(math.nan, 3) == 1.0


def drawn(rng, sequences=20, rows=30, steps=2):
    """Sequences that differ in how hard they are, rows of one sequence being alike."""
    counts = []
    for _ in range(sequences):
        level = min(0.95, max(0.05, rng.gauss(0.5, 0.15)))
        one = torch.zeros(2, steps, dtype=torch.float64)
        for _ in range(rows):
            for step in range(steps):
                one[1, step] += 1
                if rng.random() >= level:
                    break
                one[0, step] += 1
        counts.append(one)
    return counts


def test_intervals_hold_the_truth_as_often_as_they_say():
    rng = Random(0)
    inside = length_inside = 0
    truth = drawn(Random(1), sequences=4_000)
    wanted = step_accuracies(truth)[0].value
    length = acceptance_length(truth).value
    for _ in range(300):
        counts = drawn(rng)
        found = step_accuracies(counts)[0]
        inside += found.low <= wanted <= found.high
        reach = acceptance_length(counts)
        length_inside += reach.low <= length <= reach.high
    assert 270 <= inside <= 297
    assert 270 <= length_inside <= 298


def test_acceptance_length_of_known_shares():
    counts = [torch.tensor([[8.0, 4.0], [10.0, 8.0]]).double() for _ in range(3)]
    found = acceptance_length(counts)
    assert found.value == pytest.approx(1 + 0.8 + 0.8 * 0.5)
    assert found.samples == 30
    assert acceptance_length([]) is None


def test_steps_that_nobody_reached_are_left_out():
    counts = [torch.tensor([[0.0, 0.0], [10.0, 0.0]]).double() for _ in range(3)]
    (only,) = step_accuracies(counts)
    assert only.value == 0.0
    assert only.low == 0.0
    assert only.high > 0.03


def test_one_sequence_has_no_interval():
    found = step_accuracies([torch.tensor([[5.0], [10.0]]).double()])[0]
    assert (found.value, found.low, found.high) == (0.5, None, None)
    assert paired_sums(torch.tensor([3.0]), torch.tensor([10.0])).chance == 1.0


def test_pairs_are_judged_by_sequence_and_not_by_token():
    # One sequence carries the whole difference: hundreds of tokens, and still no evidence.
    first = [torch.full((100,), 1.0), *[torch.zeros(100)] * 9]
    second = [torch.zeros(100)] * 10
    assert paired(first, second).chance > 0.1
    spread = [torch.full((100,), 0.1 + 0.01 * n) for n in range(10)]
    lead = paired(spread, second)
    assert lead.chance < 1e-6
    assert lead.margin == pytest.approx(lead.difference / lead.error)
    assert paired(second, spread).margin == pytest.approx(-lead.margin)
    assert paired(second, second).margin == 0.0
