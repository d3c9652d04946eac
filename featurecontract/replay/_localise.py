"""What differences between two drafts mean: whether chance explains them, and at which step class they begin."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from featurecontract.replay._redraft import TokenPair

__all__ = ["FIRST", "LATER", "ROPE", "Place", "beyond_chance", "localise"]

FIRST = "output head, vocabulary map, embedding or rope"
LATER = "recurrent state or position"
ROPE = "rope"

#: Share of tokens that a healthy run may draft otherwise, beyond what passes as a near tie.
RATE = 0.001
_LEVEL = 0.01
_FEWEST = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where differences begin.

    Attributes:
        step: The first step whose differences are more than chance.
        step_class: What that step points to.
        rising: The one-sided p value of step 1's differences rising with the position; None where too few rows tell.
    """

    step: int
    step_class: str
    rising: float | None = None


def beyond_chance(differing: int, compared: int, *, impossible: int = 0) -> bool:
    """Whether that many differences are more than a healthy run shows.

    Args:
        differing: Tokens that differ beyond near ties.
        compared: Tokens in all.
        impossible: Those among them that the drafter's vocabulary does not hold: no numerics make one.
    """
    return impossible > 0 or _tail(differing, compared, RATE) < _LEVEL


def localise(pairs: Sequence[TokenPair]) -> Place:
    """Return where differences begin; some must differ.

    A step is named when its own differences are beyond chance, or when all of the differing tokens are its.
    """
    steps = sorted({pair.step for pair in pairs if pair.differs})
    first = next((step for step in steps if _step_differs(pairs, step)), steps[0])
    if first > 1:
        return Place(step=first, step_class=LATER)
    ones = [pair for pair in pairs if pair.step == 1]
    rising = _rising(ones)
    # A token that the vocabulary does not hold is no matter of angles.
    impossible = any(math.isinf(pair.gap) for pair in ones)
    is_rope = rising is not None and rising < _LEVEL and not impossible
    return Place(step=1, step_class=ROPE if is_rope else FIRST, rising=rising)


def _step_differs(pairs: Sequence[TokenPair], step: int) -> bool:
    chosen = [pair for pair in pairs if pair.step == step]
    impossible = sum(math.isinf(pair.gap) for pair in chosen)
    return beyond_chance(sum(pair.differs for pair in chosen), len(chosen), impossible=impossible)


def _tail(successes: int, trials: int, rate: float) -> float:
    """Return P(X >= successes) of a binomial."""
    if successes <= 0:
        return 1.0
    below = 0.0
    for count in range(successes):
        below += math.exp(
            math.lgamma(trials + 1)
            - math.lgamma(count + 1)
            - math.lgamma(trials - count + 1)
            + count * math.log(rate)
            + (trials - count) * math.log1p(-rate)
        )
    return max(0.0, 1.0 - below)


def _rising(pairs: Sequence[TokenPair]) -> float | None:
    """Return the p value of a rank-sum test: do rows whose token differs stand at higher positions?"""
    differing = [pair.position for pair in pairs if pair.differs]
    others = [pair.position for pair in pairs if not pair.differs]
    n, m = len(differing), len(others)
    if n < _FEWEST or m < _FEWEST:
        return None
    ranks = _ranks([*differing, *others])
    total = n + m
    mean = n * (total + 1) / 2
    ties = sum(count**3 - count for count in Counter([*differing, *others]).values())
    variance = n * m / 12 * ((total + 1) - ties / (total * (total - 1)))
    if variance <= 0:
        return None
    z = (sum(ranks[:n]) - mean - 0.5) / math.sqrt(variance)
    return 0.5 * math.erfc(z / math.sqrt(2))


def _ranks(values: Sequence[int]) -> list[float]:
    """Return the ranks from 1; equal values share their mean rank."""
    first: dict[int, int] = {}
    for rank, value in enumerate(sorted(values), start=1):
        first.setdefault(value, rank)
    counts = Counter(values)
    return [first[value] + (counts[value] - 1) / 2 for value in values]
