"""One RMSNorm over the whole row before the projection: no slot has rows of one size by itself behind it.

speculators trains with it by default (``norm_before_fc``). Behind it every row of every slot is divided by the size of
the whole row, so a slot's rows differ from its plane's by a factor that undoes that size.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from featurecontract.identify._calibration import Limits
from featurecontract.probe import Plane

if TYPE_CHECKING:
    from torch import Tensor

    from featurecontract.findings import SlotReading
    from featurecontract.probe._data import ProbeData

__all__ = ["read_joint_norm"]

# The norm's weights, and planes other than the declared ones, leave a part of the variation behind.
_LEFT_OVER = 0.6


def read_joint_norm(
    readings: dict[int, SlotReading],
    values: Tensor,
    probe_rows: Tensor,
    blocks: dict[int, tuple[int, int]],
    probe: ProbeData,
) -> dict[int, SlotReading]:
    """Return the readings as ``normed`` where every slot's rows lie behind one norm over the whole row.

    Args:
        readings: By slot; those without a boundary have no say.
        values: The captured rows ``[rows, width]``.
        probe_rows: The probe row of each.
        blocks: ``(start, width)`` of each slot's columns.
        probe: The probe, whose golden rows say how large a whole row is.
    """
    named = {slot: item for slot, item in readings.items() if item.confidence and item.feature.boundary is not None}
    use = probe_rows > 0
    whole = _sizes(probe.golden[probe_rows[use]]).log()
    if not named or int(use.sum()) < Limits.FEWEST_ROWS or float(whole.std()) < Limits.NORM_SPREAD:
        return readings
    listed = list(probe.bank.planes)
    channels = probe.bank.channels
    for slot, item in named.items():
        at, dim = blocks[slot]
        plane = Plane("boundary", item.feature.boundary or 0)
        if item.feature.state not in ("residual", "normed") or plane not in listed or int(channels.max()) >= dim:
            return readings
        fed = values[use, at : at + dim][:, channels]
        factor = (_sizes(fed) / _sizes(probe.bank.values[listed.index(plane)][probe_rows[use]])).log()
        # Raw rows have one factor; behind the norm it is what is left when the row's size is put back.
        if float((factor + whole).std()) >= _LEFT_OVER * float(factor.std()):
            return readings
    return readings | {
        slot: replace(item, feature=replace(item.feature, state="normed", scale=1.0)) for slot, item in named.items()
    }


def _sizes(values: Tensor) -> Tensor:
    return values.square().mean(dim=1).sqrt().clamp(min=1e-30)
