"""Live slots -> readings: the plane of each, jointly where one alone does not settle it, and its state."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from featurecontract.contract import Feature
from featurecontract.findings import SlotReading
from featurecontract.identify._calibration import Limits
from featurecontract.identify._joint import settle
from featurecontract.identify._match import Candidate, Match, candidates_of, enough, match_slot, unit_prints
from featurecontract.identify._states import partial_sum, row_state, same_geometry
from featurecontract.identify._work import Work, add, picked_of, undecided

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["read_slots"]


def read_slots(  # noqa: PLR0917 - everything that is known of the rows
    work: Work, whole: Tensor, sizes: Tensor, kept: Tensor, probe_rows: Tensor, blocks: dict[int, tuple[int, int]]
) -> dict[int, SlotReading]:
    """Match every live slot and read its state.

    Args:
        work: The observation.
        whole: All captured rows ``[rows, width]``.
        sizes: Size of each row in each slot ``[rows, slots]``.
        kept: Indices of the rows to compare, ``[kept]``.
        probe_rows: The probe row that each of them is, ``[kept]``.
        blocks: Start and width of the columns of each live slot.
    """
    # The first token attends only to itself and often carries massive activations: right there, wrong later.
    use = probe_rows > 0
    if enough(int(use.sum())):
        kept, probe_rows = kept[use], probe_rows[use]
    if len(kept) > Limits.MOST_ROWS:
        # More rows than these settle nothing further and cost time; drawn, since a stride may miss probe rows.
        order = torch.randperm(len(kept), generator=torch.Generator().manual_seed(0))
        some = order[: Limits.MOST_ROWS].sort().values
        kept, probe_rows = kept[some], probe_rows[some]
    candidates, prints = candidates_of(work.probe.bank, probe_rows)
    channels = work.probe.bank.channels
    sliced = {slot: whole[kept[:, None], at + picked_of(channels, dim)] for slot, (at, dim) in blocks.items()}
    units = unit_prints(prints)
    matched = {slot: match_slot(item, candidates, units) for slot, item in sliced.items()}
    settled = settle(work.contract.wiring, candidates, units, matched, asked=work.confidence)
    out = {}
    for slot, (at, dim) in blocks.items():
        match = settled[slot]
        index = candidates.index(match.best)
        if match.similarity < Limits.ROTATED and _rotated(work, whole[kept, at : at + dim], probe_rows, slot):
            out[slot] = _rotated_reading(work, slot, dim)
            continue
        part = _partial(work, slot, match, sliced[slot], prints, candidates)
        if part is not None:
            out[slot] = SlotReading(
                slot=slot, feature=replace(part, dim=dim), similarity=match.similarity, confidence=work.confidence
            )
            continue
        feature = _state(work, slot, match, whole[kept, at : at + dim], sizes[kept, slot], sliced[slot], prints[index])
        if match.confidence < work.confidence:
            _say_inconclusive(work, slot, match)
            out[slot] = replace(undecided(work.contract.wiring, slot, dim), similarity=match.similarity)
            continue
        out[slot] = SlotReading(
            slot=slot,
            feature=replace(feature, dim=dim),
            similarity=match.similarity,
            margin=match.margin,
            confidence=match.confidence,
            runner_up=_name(match.runner_up),
        )
    return out


def _name(candidate: Candidate) -> str:
    return f"h[{candidate.boundary}]" if candidate.kind == "boundary" else f"{candidate.kind} {candidate.boundary}"


def _say_inconclusive(work: Work, slot: int, match: Match) -> None:
    unlike = match.similarity < Limits.SIMILARITY / 2
    slug = "unidentified" if unlike else "inconclusive"
    add(
        work,
        slug,
        f"slot {slot} is nearest to {_name(match.best)} (similarity {match.similarity:.2f}, margin {match.margin:.2f} "
        f"over {_name(match.runner_up)}): "
        + ("like nothing that the target produces" if unlike else f"confidence {match.confidence:.2f} is not enough"),
        (slot,),
        details={"similarity": match.similarity, "margin": match.margin, "confidence": match.confidence},
        next_step="record the probe in the runtime's own precision, or capture more rows",
    )


def _rotated(work: Work, full: Tensor, probe_rows: Tensor, slot: int) -> bool:
    gram = work.probe.gram
    if gram is None or slot >= len(gram):
        return False
    return same_geometry(full, gram[slot][probe_rows][:, probe_rows]) >= Limits.GRAM


def _rotated_reading(work: Work, slot: int, dim: int) -> SlotReading:
    add(
        work,
        "basis",
        f"slot {slot}: the rows have the declared geometry, their directions do not: a rotated basis",
        (slot,),
        next_step="train the drafter on the rotated target, or rotate its projection's input weights",
    )
    return replace(undecided(work.contract.wiring, slot, dim), confidence=1.0)


def _partial(  # noqa: PLR0917 - one slot with all that is known of it
    work: Work, slot: int, match: Match, picked: Tensor, prints: Tensor, candidates: tuple[Candidate, ...]
) -> Feature | None:
    """Return the boundary that a slot holds a part of, between mid-block and boundary; None for whole tensors."""
    if match.best.kind not in ("boundary", "mid_block") or match.similarity < Limits.PARTIAL_SIMILARITY:
        return None
    boundary = match.best.boundary + (match.best.kind == "mid_block")
    share = _share(picked, prints, candidates, boundary)
    if share is None:
        return None
    _say_partial(work, slot, boundary, share)
    return Feature(slot=slot, boundary=boundary)


def _state(  # noqa: PLR0917 - one slot with all that is known of it
    work: Work,
    slot: int,
    match: Match,
    full: Tensor,
    sizes: Tensor,
    picked: Tensor,
    plane: Tensor,
) -> Feature:
    best = match.best
    if best.kind != "boundary":
        return Feature(slot=slot, boundary=best.boundary, state=best.kind)
    norm = work.probe.final_norm if best.boundary == work.contract.target.num_hidden_layers else None
    found = row_state(full, sizes, picked, plane, match.similarity, last=norm)
    if found.norm:
        named: Any = found.norm
        return Feature(slot=slot, boundary=best.boundary, state=named)
    return Feature(slot=slot, boundary=best.boundary, scale=found.factor)


def _share(picked: Tensor, prints: Tensor, candidates: tuple[Candidate, ...], boundary: int) -> float | None:
    mid, added = Candidate("mid_block", boundary - 1), Candidate("mlp_output", boundary)
    if mid not in candidates or added not in candidates:
        return None
    return partial_sum(picked, prints[candidates.index(mid)], prints[candidates.index(added)])


def _say_partial(work: Work, slot: int, boundary: int, share: float) -> None:
    add(
        work,
        "partial-sum",
        f"slot {slot} is h[{boundary}] with {share:.0%} of what the MLP adds: one rank's part of the sum",
        (slot,),
        details={"share": share},
        next_step="serve without all-reduce fusion, or with one tensor-parallel rank",
    )
