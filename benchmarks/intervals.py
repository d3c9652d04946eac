"""Interleaved timings and an interval for their median."""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = ["Interval", "interleaved", "median_of"]


class Interval(NamedTuple):
    """A median with its 95 % interval."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.4f} [{self.low:.4f}, {self.high:.4f}]"


def median_of(values: Sequence[float]) -> Interval:
    """Return the median and the order statistics around it (binomial, normal approximation, 95 %)."""
    ordered = sorted(values)
    half = 0.98 * len(ordered) ** 0.5
    low = ordered[max(0, int(len(ordered) / 2 - half))]
    high = ordered[min(len(ordered) - 1, int(len(ordered) / 2 + half))]
    return Interval(statistics.median(ordered), low, high)


def interleaved(sides: Mapping[str, Callable[[], object]], *, rounds: int) -> dict[str, list[float]]:
    """Time every side once a round, the order turning by one each round; three rounds warm up."""
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    names = list(sides)
    for number in range(rounds + 3):
        for turn in range(len(names)):
            name = names[(turn + number) % len(names)]
            start = time.perf_counter()
            sides[name]()
            if number >= 3:  # noqa: PLR2004 - the warm-up above
                seconds[name].append(time.perf_counter() - start)
            else:
                seconds[name].clear()
    return seconds
