"""Accuracies and acceptance length with their intervals; the sampling unit is the sequence, not the token."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from featurecontract.findings import Estimate
from featurecontract.replay._student import student_quantile, student_tail

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

__all__ = ["Comparison", "Estimate", "acceptance_length", "paired", "paired_counts", "paired_sums", "step_accuracies"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A paired difference by token, its standard error clustered by sequence, and P(as large by chance), one-sided."""

    difference: float
    error: float
    sequences: int
    chance: float

    @property
    def margin(self) -> float:
        """The difference in standard errors."""
        if self.error > 0:
            return self.difference / self.error
        return math.copysign(math.inf, self.difference) if self.difference else 0.0


def step_accuracies(counts: Sequence[Tensor], *, confidence: float = 0.95) -> tuple[Estimate, ...]:
    """Return one estimate for each step from ``[2, K]`` counts of each sequence (right, of how many).

    The share is of all rows together; its error is that of a ratio of sums over sequences. Steps that no row reached
    are left out.
    """
    stacked = torch.stack(list(counts)) if counts else torch.zeros(0, 2, 0, dtype=torch.float64)
    out = []
    for step in range(stacked.shape[2]):
        right, total = stacked[:, 0, step], stacked[:, 1, step]
        if not float(total.sum()):
            break
        out.append(_ratio(right[total > 0], total[total > 0], confidence))
    return tuple(out)


def _ratio(right: Tensor, total: Tensor, confidence: float) -> Estimate:
    value, count = float(right.sum() / total.sum()), len(total)
    rows = int(total.sum())
    if count < 2:  # noqa: PLR2004
        return Estimate(value=value, samples=rows)
    spread = float((right - value * total).pow(2).sum()) * count / (count - 1)
    # A share of 0 or 1 has no spread in the sample; what it cannot exclude is what n rows cannot (rule of three).
    error = max(math.sqrt(spread) / rows, 1.0 / rows)
    reach = student_quantile((1 - confidence) / 2, count - 1) * error
    return Estimate(value=value, low=max(0.0, value - reach), high=min(1.0, value + reach), samples=rows)


def acceptance_length(counts: Sequence[Tensor], *, confidence: float = 0.95) -> Estimate | None:
    """Return the expected tokens per round of chain drafting: 1 for the target's own, plus each drafted one accepted.

    ``counts`` are of the conditional accuracies a_1..a_K: 1 + a_1 + a_1 a_2 + ... + a_1 ... a_K. The interval is a
    jackknife over sequences.
    """
    if not counts:
        return None
    stacked = torch.stack(list(counts))
    total = stacked.sum(0)
    if not float(total[1, 0]):
        return None
    value = float(_length(total))
    count, rows = len(stacked), int(total[1, 0])
    if count < 2:  # noqa: PLR2004
        return Estimate(value=value, samples=rows)
    without = torch.stack([_length(total - item) for item in stacked])
    error = math.sqrt((count - 1) / count * float((without - without.mean()).pow(2).sum()))
    reach = student_quantile((1 - confidence) / 2, count - 1) * max(error, 1.0 / rows)
    return Estimate(
        value=value, low=max(1.0, value - reach), high=min(1.0 + stacked.shape[2], value + reach), samples=rows
    )


def _length(total: Tensor) -> Tensor:
    shares = torch.where(total[1] > 0, total[0] / total[1].clamp(min=1), torch.zeros_like(total[0]))
    return 1 + shares.cumprod(0).sum()


def paired(first: Sequence[Tensor], second: Sequence[Tensor]) -> Comparison:
    """Compare two runs over the same tokens.

    Args:
        first: By sequence, a value of each token (a log-likelihood, or 1 for right and 0 for wrong).
        second: The same tokens' values in the other run.
    """
    sums = torch.tensor(
        [float((a - b).sum()) for a, b in zip(first, second, strict=True) if len(a)], dtype=torch.float64
    )
    sizes = torch.tensor([float(len(a)) for a in first if len(a)], dtype=torch.float64)
    return paired_sums(sums, sizes)


def paired_counts(first: Sequence[Tensor], second: Sequence[Tensor], *, step: int = 1) -> Comparison:
    """Compare how often two runs were right at a step, from ``[2, K]`` counts of each sequence over the same rows."""
    at = step - 1
    sums = torch.tensor([float(a[0, at] - b[0, at]) for a, b in zip(first, second, strict=True)], dtype=torch.float64)
    sizes = torch.tensor([float(a[1, at]) for a in first], dtype=torch.float64)
    return paired_sums(sums, sizes)


def paired_sums(sums: Tensor, sizes: Tensor) -> Comparison:
    """Compare two runs by their difference summed over each sequence, and the tokens of each."""
    count = len(sums)
    rows = float(sizes.sum()) if count else 0.0
    if count < 2 or not rows:  # noqa: PLR2004
        return Comparison(
            difference=float(sums.sum()) / rows if rows else 0.0, error=math.inf, sequences=count, chance=1.0
        )
    mean = float(sums.sum()) / rows
    error = math.sqrt(float((sums - mean * sizes).pow(2).sum()) * count / (count - 1)) / rows
    t = mean / error if error > 0 else math.copysign(math.inf, mean) if mean else 0.0
    return Comparison(difference=mean, error=error, sequences=count, chance=student_tail(t, count - 1))
