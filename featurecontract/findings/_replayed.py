"""What a replay gives: figures of one wiring, with their intervals."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from featurecontract.contract import Wiring

__all__ = ["Estimate", "Replayed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A figure with its interval, which is None where one sequence alone carries it; ``samples`` are rows."""

    value: float
    low: float | None = None
    high: float | None = None
    samples: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """One wiring that the drafter was run with.

    Attributes:
        wiring: The features that it was fed.
        declared: Whether it is the contract's.
        accuracy: By step, the share of rows whose draft token is the text's next one, over rows whose earlier steps
            were right.
        agreement: The same against the target's own greedy choice; empty where nobody knows it.
        acceptance_length: Expected tokens per round of chain drafting, the target's own included; by ``agreement``
            where that is known, else by ``accuracy``.
        sequences: Sequences that were replayed.
        rows: Rows that were drafted from.
        source: Where the states came from.
        log_likelihood: Mean over tokens of the log-probability of the next one, where a search measured it.
    """

    wiring: Wiring
    declared: bool = False
    accuracy: tuple[Estimate, ...] = ()
    agreement: tuple[Estimate, ...] = ()
    acceptance_length: Estimate | None = None
    sequences: int = 0
    rows: int = 0
    source: str = ""
    log_likelihood: float | None = None

    @property
    def measure(self) -> tuple[Estimate, ...]:
        """The accuracies that a trainer would report: against the target's choice, else against the text."""
        return self.agreement or self.accuracy
