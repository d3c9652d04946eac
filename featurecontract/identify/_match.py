"""Question 2: which plane each slot is, with margin and confidence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch

from featurecontract.identify._calibration import Limits, confidence_of
from featurecontract.identify._similarity import standardise, trimmed_mean

if TYPE_CHECKING:
    from torch import Tensor

    from featurecontract.probe._data import Bank

__all__ = ["Candidate", "Match", "candidates_of", "distance", "match_slot", "unit_prints"]

CandidateKind = Literal["boundary", "mid_block", "mlp_output", "block_output"]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A plane that may have been fed; ``block_output`` b is h[b] - h[b - 1], which no model holds by itself."""

    kind: CandidateKind
    boundary: int


@dataclass(frozen=True, slots=True)
class Match:
    """The best plane of a slot: similarity s, the runner-up, the margin u relative to how far the two are apart."""

    best: Candidate
    similarity: float
    runner_up: Candidate
    margin: float
    confidence: float


def candidates_of(bank: Bank, rows: Tensor) -> tuple[tuple[Candidate, ...], Tensor]:
    """Return every candidate and its fingerprint ``[candidates, rows, channels]`` on these probe rows."""
    values = bank.values[:, rows]
    listed = [Candidate(plane.kind, plane.boundary) for plane in bank.planes]
    at = {plane: index for index, plane in enumerate(listed)}
    pairs = [
        (b, at[Candidate("boundary", b)], at[Candidate("boundary", b - 1)])
        for b in sorted(item.boundary for item in listed if item.kind == "boundary")
        if Candidate("boundary", b - 1) in at
    ]
    if not pairs:
        return tuple(listed), values
    blocks = torch.stack([values[upper] - values[lower] for _, upper, lower in pairs])
    return (*listed, *(Candidate("block_output", b) for b, _, _ in pairs)), torch.cat([values, blocks])


def unit_prints(prints: Tensor) -> Tensor:
    """Return fingerprints standardised, each row of unit length: once for all slots."""
    return torch.nn.functional.normalize(standardise(prints), dim=-1)


def match_slot(values: Tensor, candidates: tuple[Candidate, ...], units: Tensor) -> tuple[Match, Tensor]:
    """Return a slot's match and its similarity to every candidate; ``values`` is ``[rows, channels]``."""
    own = torch.nn.functional.normalize(standardise(values), dim=-1)
    similarities = trimmed_mean(torch.einsum("rc,prc->pr", own, units))
    top = similarities.topk(2)
    first, second = (int(index) for index in top.indices)
    s1, s2 = (float(value) for value in top.values)
    apart = distance(units, first, second)
    margin = (s1 - s2) / (max(s1, 1e-9) * max(apart, 1e-9)) if s1 > 0 else 0.0
    match = Match(candidates[first], s1, candidates[second], margin, confidence_of(s1, margin))
    return match, similarities


def distance(units: Tensor, first: int, second: int) -> float:
    """Return how far two candidates are apart: 1 minus their similarity."""
    return 1 - float(trimmed_mean((units[first] * units[second]).sum(dim=-1)))


def joint_margin(similarities: list[Tensor], first: list[int], second: list[int], apart: list[float]) -> float:
    """Return the margin between two hypotheses about all slots at once; slots on which they agree have no say."""
    gain = sum(float(row[a] - row[b]) for row, a, b in zip(similarities, first, second, strict=True) if a != b)
    scale = sum(
        float(row[a]) * far for row, a, b, far in zip(similarities, first, second, apart, strict=True) if a != b
    )
    return gain / scale if scale > 0 else 0.0


def enough(rows: int) -> bool:
    """Whether there are rows enough to standardise."""
    return rows >= Limits.FEWEST_ROWS
