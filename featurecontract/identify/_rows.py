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

__all__ = ["RowFinder", "RowMap"]

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


class RowFinder:
    """The bank prepared for finding rows, once for all segments.

    Args:
        bank: ``[planes, probe rows, channels]``.
        likely: The declared plane of each slot, None where it has none: when they settle the rows, as they do in a
            healthy run and in one that is a block off, no other plane is asked.
    """

    def __init__(self, bank: Tensor, *, likely: list[int | None]) -> None:
        """Prepare the likely planes; the others only when they are needed."""
        self._bank = bank
        planes = [index for index in likely if index is not None]
        self._likely = [_units(bank[index]) for index in planes] if len(planes) == len(likely) else None
        self._all: Tensor | None = None

    def map_rows(self, claimed: Tensor, slots: list[Tensor]) -> RowMap:
        """Map rows that claim to be the probe rows ``claimed``; ``slots`` are ``[rows, channels]`` each."""
        units = [_units(values) for values in slots]
        if self._likely is not None:
            affinity = torch.stack([unit @ plane.T for unit, plane in zip(units, self._likely, strict=True)]).mean(0)
            found = _settle(claimed, affinity)
            if found is not None and found.kind == "as claimed" and found.agreement >= Limits.SIMILARITY:
                return found
        if self._all is None:
            self._all = _units(self._bank)
        affinity = torch.stack([_best_plane(unit, self._all) for unit in units]).mean(0)
        found = _settle(claimed, affinity)
        if found is not None:
            return found
        best, place = affinity.max(dim=1)
        shifted = _shift(claimed, place, self._bank.shape[1])
        return shifted if shifted is not None else _swap(claimed, place, best)


def _units(values: Tensor) -> Tensor:
    return torch.nn.functional.normalize(robust(values), dim=-1)


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
            # Rows of like context are alike, and the nearest one may be the other under any noise.
            drop = max(0.1, Limits.UNSETTLED_ROW * max(0.0, 1 - centre) ** 0.5)
            bad = rows[weak | (~settled & (own < centre * (1 - drop)))]
        else:
            # Under noise a row may be nearer to a probe row of like context than to its own; it is another row only
            # where its own fits it badly as well. One row may fall out by itself; two say more.
            bad = rows[weak | (~settled & (own < centre * Limits.NOISY_ROW_DROP))]
            # Where no plane can be believed, no single row can.
            bad = bad[:0] if len(bad) == 1 or centre < Limits.SIMILARITY else bad
        kept = rows[torch.isin(rows, bad, invert=True)]
        kind: Kind = "corrupt" if len(bad) else "as claimed"
        return RowMap(kind, kept, claimed[kept], bad=tuple(bad.tolist()), agreement=centre)
    return None


def _best_plane(unit: Tensor, planes: Tensor) -> Tensor:
    """Return ``[rows, probe rows]``: the cosines with the plane whose rows fit best in any order."""
    best, found = -2.0, unit.new_zeros(0)
    for plane in planes:
        cosines = unit @ plane.T
        fit = float(cosines.amax(dim=1).median())
        if fit > best:
            best, found = fit, cosines
    return found


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
