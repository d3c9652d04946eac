"""Question 1: which captured row is which probe row, from all slots together.

Equal tokens give equal h[0] rows, so one slot decides nothing; the rows of all slots vote together. Planes are not
known yet, so each slot votes by the plane whose rows fit its rows best in any order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch

from featurecontract.identify._calibration import Limits
from featurecontract.identify._similarity import robust

if TYPE_CHECKING:
    from torch import Tensor

    from featurecontract.identify._assemble import Segment

__all__ = ["RowMap", "map_rows"]

# Cosines closer than this do not tell two probe rows apart.
TIE = 0.02

Kind = Literal["as claimed", "shifted", "missing", "swapped", "corrupt", "unclear"]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class RowMap:
    """What the rows are: ``probe_rows`` for the rows in ``kept`` (indices into the segment).

    ``offset`` says that captured row r is probe row r + offset; ``bad`` lists corrupt captured rows, ``missing`` probe
    rows that were never captured.
    """

    kind: Kind
    kept: Tensor
    probe_rows: Tensor
    offset: int = 0
    bad: tuple[int, ...] = ()
    missing: tuple[int, ...] = ()
    agreement: float = 0.0


def map_rows(segment: Segment, slots: list[Tensor], bank: Tensor, *, likely: list[int | None]) -> RowMap:
    """Map a segment's rows.

    Args:
        segment: The rows and what they claim to be.
        slots: ``[rows, channels]`` for each slot.
        bank: ``[planes, probe rows, channels]``.
        likely: The declared plane of each slot, None where it has none: when they settle the rows, as they do in a
            healthy run and in one that is a block off, no other plane is asked.
    """
    planes = [index for index in likely if index is not None]
    if len(planes) == len(slots):
        found = _settle(segment.claimed, _affinity(slots, [bank[index : index + 1] for index in planes]))
        if found is not None and found.kind == "as claimed" and found.agreement >= Limits.SIMILARITY:
            return found
    affinity = _affinity(slots, [bank] * len(slots))
    found = _settle(segment.claimed, affinity)
    if found is not None:
        return found
    best, place = affinity.max(dim=1)
    shifted = _shift(segment.claimed, place, bank.shape[1])
    return shifted if shifted is not None else _swap(segment.claimed, place, best)


def _settle(claimed: Tensor, affinity: Tensor) -> RowMap | None:
    """Return the rows as claimed, corrupt ones aside, when most agree with their own probe row; else None."""
    rows = torch.arange(len(claimed))
    own = affinity[rows, claimed]
    best, place = affinity.max(dim=1)
    # Two probe rows of the same token and context are as good as one another.
    settled = (place == claimed) | (best - own < TIE)
    centre = own.median().item()
    if settled.float().mean() >= Limits.ROW_MAJORITY:
        weak = own < centre * Limits.ROW_DROP
        if centre >= Limits.CLEAN_ROWS:
            bad = rows[weak | ~settled]
        else:
            # Under noise a row may be nearer to a probe row of like context than to its own; it is another row only
            # where its own fits it badly as well. One row may fall out by itself; two say more.
            bad = rows[weak | (~settled & (own < centre * Limits.NOISY_ROW_DROP))]
            bad = bad[:0] if len(bad) == 1 else bad
        kept = rows[torch.isin(rows, bad, invert=True)]
        kind: Kind = "corrupt" if len(bad) else "as claimed"
        return RowMap(kind, kept, claimed[kept], bad=tuple(bad.tolist()), agreement=centre)
    return None


def _affinity(slots: list[Tensor], banks: list[Tensor]) -> Tensor:
    """Return ``[rows, probe rows]``: the mean over slots of the cosine with each row of the slot's best plane."""
    total = torch.zeros(slots[0].shape[0], banks[0].shape[1])
    seen: dict[int, Tensor] = {}
    for values, bank in zip(slots, banks, strict=True):
        if id(bank) not in seen:
            seen[id(bank)] = torch.nn.functional.normalize(robust(bank), dim=-1)
        planes = seen[id(bank)]
        unit = torch.nn.functional.normalize(robust(values), dim=-1)
        cosines = torch.einsum("rc,pqc->prq", unit, planes)
        fit = cosines.amax(dim=2).median(dim=1).values
        total += cosines[fit.argmax()]
    return total / len(slots)


def _shift(claimed: Tensor, place: Tensor, count: int) -> RowMap | None:
    """Return a uniform offset, when most rows agree on one; rows may have wrapped around."""
    offsets = (place - claimed + count // 2) % count - count // 2
    votes = torch.bincount(offsets + count)
    offset = int(votes.argmax()) - count
    if offset == 0 or votes.max() < Limits.ROW_MAJORITY * len(claimed):
        return None
    rows = torch.arange(len(claimed))
    inside = (claimed + offset >= 0) & (claimed + offset < count) & (offsets == offset)
    kept = rows[inside]
    # Rows that count from 0 and end with the probe's last: the first ones were never captured.
    whole = bool((claimed + offset < count).all()) and int(claimed.max()) + offset == count - 1
    if offset > 0 and whole and int(claimed.min()) == 0:
        return RowMap("missing", kept, claimed[kept] + offset, offset=offset, missing=tuple(range(offset)))
    return RowMap("shifted", kept, claimed[kept] + offset, offset=offset)


def _swap(claimed: Tensor, place: Tensor, best: Tensor) -> RowMap:
    """Return a swap when the rows are the claimed ones in other runs, else that it is unclear."""
    rows = torch.arange(len(claimed))
    steps = place[1:] - place[:-1]
    orderly = (steps == 1).float().mean().item()
    known = torch.isin(place, claimed).float().mean().item()
    if orderly >= Limits.ROW_MAJORITY and known >= Limits.ROW_MAJORITY and best.median() > Limits.SIMILARITY / 2:
        good = rows[best >= best.median() * Limits.ROW_DROP]
        return RowMap("swapped", good, place[good])
    return RowMap("unclear", rows, claimed)
