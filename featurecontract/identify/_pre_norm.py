"""The norm before the projection, where it is declared: whether captured rows lie behind it.

speculators trains with one RMSNorm over the whole row by default (``norm_before_fc``): behind it no slot has rows of
one size by itself. EAGLE-3.1 has one for each slice (``fc_norm``). Either divides rows by a size and multiplies columns
by weights that are not in the probe, so what is looked for is that size: undoing it must leave less than keeping it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from featurecontract.identify._calibration import Limits
from featurecontract.probe import Plane

if TYPE_CHECKING:
    from torch import Tensor

    from featurecontract.contract._wiring import PreNorm
    from featurecontract.findings import SlotReading
    from featurecontract.probe._data import ProbeData

__all__ = ["read_pre_norm"]

# The norm's weights, noise, and planes other than the declared ones leave a part of the variation behind.
_LEFT_OVER = 0.7


def read_pre_norm(  # noqa: PLR0917 - one call site
    kind: PreNorm,
    readings: dict[int, SlotReading],
    values: Tensor,
    probe_rows: Tensor,
    blocks: dict[int, tuple[int, int]],
    probe: ProbeData,
) -> tuple[dict[int, SlotReading], bool]:
    """Return the readings, ``normed`` where every slot's rows lie behind the declared norm, and whether that was told.

    Few rows, or rows of one size, lie before and behind a norm alike.

    Args:
        kind: The declared norm; with ``none`` or ``unknown`` the readings stay.
        readings: By slot; those without a boundary have no say.
        values: The captured rows ``[rows, width]``.
        probe_rows: The probe row of each.
        blocks: ``(start, width)`` of each slot's columns.
        probe: The probe, whose golden rows say how large a whole row is.
    """
    named = {slot: item for slot, item in readings.items() if item.confidence and item.feature.boundary is not None}
    use = probe_rows > 0
    if kind not in ("joint", "per_feature") or not named or int(use.sum()) < Limits.FEWEST_ROWS:
        return readings, False
    whole = _sizes(probe.golden[probe_rows[use]])
    listed = list(probe.bank.planes)
    channels = probe.bank.channels
    for slot, item in named.items():
        at, dim = blocks[slot]
        plane = Plane("boundary", item.feature.boundary or 0)
        if item.feature.state not in ("residual", "normed") or plane not in listed or int(channels.max()) >= dim:
            return readings, False
        own = _sizes(probe.bank.values[listed.index(plane)][probe_rows[use]])
        # Raw rows have one factor over all rows; behind a norm it is one over the size that was divided by.
        factor = _sizes(values[use, at : at + dim][:, channels]) - own
        size = whole if kind == "joint" else own
        if float(size.std()) < Limits.NORM_SPREAD:
            return readings, False
        if float((factor + size).std()) >= _LEFT_OVER * float(factor.std()):
            return readings, True
    behind = {
        slot: replace(item, feature=replace(item.feature, state="normed", scale=1.0)) for slot, item in named.items()
    }
    return readings | behind, True


def _sizes(values: Tensor) -> Tensor:
    """Return the log of the size of each row."""
    return values.square().mean(dim=1).sqrt().clamp(min=1e-30).log()
