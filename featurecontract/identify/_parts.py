"""What pooled statistics hide: some rows, and some columns, of a slot that are not the plane which the rest of it is.

A trimmed mean over rows says what most rows are, and fingerprints say nothing of the columns between their channels. So
a slot that was named is looked at once more: every row against its own plane, and every block of columns against the
golden rows, which the probe holds in full for the declared slots.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import torch

from featurecontract.identify._calibration import Limits, least_row
from featurecontract.identify._similarity import robust, row_cosines, standardise, trimmed_mean
from featurecontract.identify._work import Work, add, picked_of
from featurecontract.probe import Plane

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from featurecontract.findings import SlotReading

__all__ = ["say_parts", "wrong_columns", "wrong_rows"]

_SHOWN = 8
_LISTED = 64


def say_parts(  # noqa: PLR0917 - everything that is known of the rows
    work: Work,
    whole: Tensor,
    kept: Tensor,
    probe_rows: Tensor,
    blocks: Mapping[int, tuple[int, int]],
    readings: Mapping[int, SlotReading],
) -> None:
    """Say which rows and columns of the named slots are something else.

    Args:
        work: The observation.
        whole: All captured rows ``[rows, width]``.
        kept: Indices of the rows that were compared, ``[kept]``.
        probe_rows: The probe row that each of them is, ``[kept]``.
        blocks: Start and width of the columns of each slot.
        readings: What each slot was found to be; only a plain boundary is looked into.
    """
    # The first token often carries massive activations; it is compared with the others, not judged by itself.
    use = probe_rows > 0
    kept, probe_rows = kept[use], probe_rows[use]
    if len(kept) > Limits.MOST_ROWS:
        some = torch.randperm(len(kept), generator=torch.Generator().manual_seed(1))[: Limits.MOST_ROWS].sort().values
        kept, probe_rows = kept[some], probe_rows[some]
    if len(kept) < Limits.FEWEST_ROWS:
        return
    listed = {plane: index for index, plane in enumerate(work.probe.bank.planes)}
    for slot, (at, dim) in blocks.items():
        reading = readings.get(slot)
        if reading is None or reading.confidence < work.confidence or not reading.margin:
            continue
        feature = reading.feature
        plane = listed.get(Plane("boundary", feature.boundary)) if feature.boundary is not None else None
        if plane is None or feature.state != "residual" or feature.scale != 1.0:
            continue
        picked = whole[kept[:, None], at + picked_of(work.probe.bank.channels, dim)]
        bad = wrong_rows(picked, work.probe.bank.values[plane][probe_rows][:, : picked.shape[1]])
        if len(bad):
            _say_rows(work, slot, str(feature), probe_rows[bad].tolist())
        wanted = work.contract.features[slot] if slot < len(work.contract.features) else None
        span = work.contract.wiring.columns(slot)
        same = wanted is not None and (wanted.boundary, wanted.state) == (feature.boundary, feature.state)
        # A slot beyond the contract's own, such as the last plane of a dataset, has no golden rows.
        held = span is not None and span[1] - span[0] == dim and span[1] <= work.probe.golden.shape[1]
        if same and held and span is not None and slot not in work.probe.unrecorded:
            golden = work.probe.golden[probe_rows, span[0] : span[1]]
            spans = wrong_columns(whole[kept, at : at + dim], golden, reading.similarity)
            _say_columns(work, slot, str(feature), spans, span)


def wrong_rows(values: Tensor, plane: Tensor) -> Tensor:
    """Return the indices of rows ``[rows, channels]`` that are not the plane's own, where most rows are.

    By direction after standardising each channel robustly, and by size against the other rows' sizes.
    """
    own = row_cosines(robust(values), robust(plane))
    usual = float(torch.quantile(own, 0.75))
    turned = own < least_row(usual)
    sizes = values.square().mean(dim=1).sqrt() / plane.square().mean(dim=1).sqrt().clamp(min=1e-30)
    sizes = sizes / sizes.median().clamp(min=1e-30)
    found = (turned | (sizes > Limits.ROW_SIZE) | (sizes < 1 / Limits.ROW_SIZE)).nonzero().flatten()
    # Under noise a row may fall out by itself; several say more.
    return found if usual >= Limits.CLEAN_ROW or len(found) >= Limits.NOISY_ROWS else found[:0]


def wrong_columns(values: Tensor, golden: Tensor, similarity: float) -> list[tuple[int, int]]:
    """Return the blocks of columns of ``[rows, dim]`` that are not the golden ones, as (start, stop).

    ``similarity`` is the slot's, on the fingerprint's channels: the columns between them are held to the same.
    """
    dim = values.shape[1]
    count = max(1, min(Limits.COLUMN_BLOCKS, dim // Limits.LEAST_COLUMNS))
    spans = list(pairwise(round(dim * part / count) for part in range(count + 1)))
    found = [
        float(trimmed_mean(row_cosines(standardise(values[:, a:b]), standardise(golden[:, a:b])))) for a, b in spans
    ]
    # Where one part of the channels is wrong too, the best blocks say better how alike the two are.
    usual = max(similarity, *found)
    return [span for span, alike in zip(spans, found, strict=True) if alike < Limits.COLUMN_DROP * usual]


def _say_rows(work: Work, slot: int, name: str, rows: list[int]) -> None:
    shown = ", ".join(str(row) for row in rows[:_SHOWN]) + (" and more" if len(rows) > _SHOWN else "")
    add(
        work,
        "rows-corrupt",
        f"rows {shown} of slot {slot} are not those of {name}; its other rows are",
        (slot,),
        rows=tuple((row, row + 1) for row in rows[:_LISTED]),
        details={"count": len(rows)},
        next_step="compare the rows with chunk, block and batch edges: a part of this buffer was not written, or was "
        "written by another request",
    )


def _say_columns(work: Work, slot: int, name: str, spans: list[tuple[int, int]], span: tuple[int, int]) -> None:
    if not spans:
        return
    start, dim = span[0], span[1] - span[0]
    joined: list[tuple[int, int]] = []
    for a, b in spans:
        if joined and joined[-1][1] == a:
            joined[-1] = (joined[-1][0], b)
        else:
            joined.append((a, b))
    shown = ", ".join(f"[{a + start}:{b + start}]" for a, b in joined[:_SHOWN])
    shown += " and more" if len(joined) > _SHOWN else ""
    rest = "its other columns are" if joined != [(0, dim)] else "only those of the fingerprint's channels are"
    add(
        work,
        "unidentified",
        f"columns {shown} of slot {slot} are not those of {name}; {rest}",
        (slot,),
        details={"columns": [[a + start, b + start] for a, b in joined[:_LISTED]]},
        next_step="compare the shards of the runtime's tensor parallelism: their order, and whether each was gathered",
    )
