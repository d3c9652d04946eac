"""Slots judged together: a shift of every slot is decided from all of them where one alone is not sure."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from featurecontract.identify._calibration import confidence_of
from featurecontract.identify._match import Candidate, Match, distance, joint_margin

if TYPE_CHECKING:
    from torch import Tensor

    from featurecontract.contract import Wiring

__all__ = ["settle"]

SHIFTS = (-2, -1, 1, 2)


def settle(
    declared: Wiring,
    candidates: tuple[Candidate, ...],
    units: Tensor,
    matched: dict[int, tuple[Match, Tensor]],
    *,
    asked: float,
) -> dict[int, Match]:
    """Return each slot's match, raised to the joint confidence where one hypothesis explains every slot.

    The hypotheses are the declared wiring, its shifts, and the wiring without its embedding. A slot's own best plane is
    never overruled: joint evidence only makes an answer surer that the slot gives by itself.
    """
    out = {slot: match for slot, (match, _) in matched.items()}
    unsure = [slot for slot, match in out.items() if match.confidence < asked]
    if not unsure or len(out) < 2:  # noqa: PLR2004
        return out
    slots = sorted(out)
    own = [candidates.index(out[slot].best) for slot in slots]
    explained = [
        indices
        for hypothesis in _hypotheses(declared, slots)
        if (indices := _indices(hypothesis, candidates)) is not None
    ]
    if own not in explained:
        return out
    similarities = [matched[slot][1] for slot in slots]
    rivals = [indices for indices in explained if indices != own]
    # The rival that every slot's runner-up makes is the strongest one that is no hypothesis of ours.
    rivals.append([candidates.index(out[slot].runner_up) for slot in slots])
    margins = []
    for rival in rivals:
        apart = [distance(units, a, b) if a != b else 0.0 for a, b in zip(own, rival, strict=True)]
        margins.append(joint_margin(similarities, own, rival, apart))
    margin = min(margins)
    mean = sum(float(row[index]) for row, index in zip(similarities, own, strict=True)) / len(own)
    joint = confidence_of(mean, margin)
    return {
        slot: replace(match, confidence=max(match.confidence, joint), margin=max(match.margin, margin))
        for slot, match in out.items()
    }


def _hypotheses(declared: Wiring, slots: list[int]) -> list[list[int | None]]:
    boundaries = [item.boundary for item in declared.features]
    if any(slot >= len(boundaries) for slot in slots):
        return []
    wanted = [boundaries[slot] for slot in slots]
    moved = [[b + shift if b else b for b in wanted] for shift in SHIFTS]
    rotated = [boundaries[slot + 1] if slot + 1 < len(boundaries) else None for slot in slots]
    return [wanted, *moved, rotated]


def _indices(boundaries: list[int | None], candidates: tuple[Candidate, ...]) -> list[int] | None:
    planes = [Candidate("boundary", b) if b is not None else None for b in boundaries]
    if any(plane not in candidates for plane in planes):
        return None
    return [candidates.index(plane) for plane in planes if plane is not None]
