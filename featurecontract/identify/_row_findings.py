"""Rows whose probe row is known, and findings about the others."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from featurecontract.identify._calibration import Limits
from featurecontract.identify._rows import RowFinder, RowMap
from featurecontract.identify._work import Work, add, picked_of
from featurecontract.probe import Plane

if TYPE_CHECKING:
    from torch import Tensor

    from featurecontract.identify._assemble import Segment

__all__ = ["clean_rows"]


def clean_rows(
    work: Work, segments: list[Segment], blocks: list[tuple[int, int]], live: list[int], sizes: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the rows whose probe row is known, as indices into all segments' rows, and their probe rows.

    Says what is wrong with the others.

    Args:
        work: The observation.
        segments: What was captured.
        blocks: Start and width of the columns of each live slot.
        live: The slots that hold anything, and finite values only.
        sizes: Size of each row of all segments in those slots, ``[rows, live]``.
    """
    finder = RowFinder(work.probe.bank.values, likely=_likely(work, live))
    columns = [picked_of(work.probe.bank.channels, dim) + at for at, dim in blocks]
    kept, rows = [], []
    start = 0
    for segment in segments:
        count = len(segment.claimed)
        good = _written(work, segment, sizes[start : start + count], live)
        claimed = segment.claimed if len(good) == count else segment.claimed[good]
        if len(good) < Limits.FEWEST_ROWS // 2:
            kept.append(good + start)
            rows.append(claimed)
        else:
            values = segment.values if len(good) == count else segment.values[good]
            found = finder.map_rows(claimed, [values[:, item] for item in columns])
            _say_rows(work, segment, found, live, good)
            kept.append(good[found.kept] + start)
            rows.append(found.probe_rows)
        start += count
    return torch.cat(kept), torch.cat(rows)


def _written(work: Work, segment: Segment, sizes: Tensor, live: list[int]) -> Tensor:
    """Return the rows that hold something in every live slot, ``[good]``; says which do not: no noise does that."""
    empty = sizes == 0
    if not empty.any():
        return torch.arange(len(sizes))
    # A padding token's embedding may be zero in the target itself.
    meant = (work.probe.bank.values[:, segment.claimed] == 0).all(dim=2).any(dim=0)
    empty &= ~meant[:, None]
    bad = torch.nonzero(empty.any(dim=1)).flatten()
    if len(bad):
        slots = tuple(slot for slot, some in zip(live, empty.any(dim=0).tolist(), strict=True) if some)
        _say_corrupt(work, segment, bad.tolist(), slots, "are zero")
    return torch.nonzero(~empty.any(dim=1)).flatten()


def _likely(work: Work, live: list[int]) -> list[int | None]:
    """Return the bank's index of each live slot's declared boundary."""
    listed = list(work.probe.bank.planes)
    out: list[int | None] = []
    for slot in live:
        feature = work.contract.features[slot] if slot < len(work.contract.features) else None
        plane = None if feature is None or feature.boundary is None else Plane("boundary", feature.boundary)
        out.append(listed.index(plane) if plane in listed else None)
    return out


def _say_rows(work: Work, segment: Segment, found: RowMap, live: list[int], good: Tensor) -> None:
    slots = tuple(live)
    who = f" of request {segment.request}" if segment.request else ""
    first = int(segment.claimed.min())
    if first > 0 and found.kind in ("as claimed", "corrupt"):
        declared = segment.cached >= first
        add(
            work,
            "rows-missing",
            f"rows 0 to {first - 1}{who} were not fed"
            + (", as the runtime declared: their prefix was cached" if declared else ""),
            slots,
            severity="note" if declared else "error",
            rows=((0, first),),
            details={"count": first, "declared_cached": segment.cached},
            next_step="" if declared else "capture with the prefix cache off",
        )
    if found.kind == "shifted":
        add(
            work,
            "rows-shifted",
            f"rows{who} are {found.offset:+d} against their tokens",
            slots,
            details={"offset": found.offset},
            next_step="compare the drafter's input ids with the target's: one of the two is rotated",
        )
    elif found.kind == "missing":
        add(
            work,
            "rows-missing",
            f"the first {found.offset} rows{who} were not fed",
            slots,
            rows=((0, found.offset),),
            details={"count": found.offset},
            next_step="capture with the prefix cache off, and in one chunk",
        )
    elif found.kind == "swapped":
        add(work, "rows-swapped", f"rows{who} stand in another order than their tokens", slots)
    elif found.kind == "corrupt":
        _say_corrupt(work, segment, [int(good[row]) for row in found.bad], slots, "do not belong to their tokens")


def _say_corrupt(work: Work, segment: Segment, bad: list[int], slots: tuple[int, ...], what: str) -> None:
    who = f" of request {segment.request}" if segment.request else ""
    shown = ", ".join(str(row) for row in bad[:8]) + (" and more" if len(bad) > 8 else "")  # noqa: PLR2004
    add(
        work,
        "rows-corrupt",
        f"rows {shown}{who} {what}; the others are in order",
        slots,
        rows=tuple((row, row + 1) for row in bad[:64]),
        details={"count": len(bad)},
    )
