"""What a stored sequence should hold by the contract: the target's features side by side, and the last plane."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from featurecontract.capture._record import Call, Capture
from featurecontract.contract import Contract, Feature, Wiring
from featurecontract.identify import identify

if TYPE_CHECKING:
    from torch import Tensor

    from featurecontract.findings import Observed
    from featurecontract.probe._data import ProbeData
    from featurecontract.states._sample import LastState, Sample

__all__ = ["common_rows", "observe", "plane_widths", "stored_wiring"]


def stored_wiring(contract: Contract, *, last: LastState | None) -> Wiring:
    """Return the planes that a dataset for this contract holds, in order.

    Trainers store what the target made: a slot that it does not make (a mask row, the drafter's own embedding) is not
    among them. ``last`` adds the plane beside them, h[L] or its final norm, as one more slot; None for no such plane.
    """
    made = [item for item in contract.features if item.source == "target"]
    if last is not None:
        target = contract.target
        state = "final_norm" if last == "final_norm" else "residual"
        made.append(
            Feature(slot=len(made), boundary=target.num_hidden_layers, state=state, dim=target.hidden_size)  # type: ignore[arg-type]
        )
    # Row offsets are applied when the drafter is fed: row t of a file is of token t.
    return Wiring(features=tuple(replace(item, slot=slot, row_offset=0) for slot, item in enumerate(made)))


def plane_widths(sample: Sample, wiring: Wiring) -> tuple[int, ...]:
    """Return the widths of the planes in ``sample.features``: the contract's where they add up, else the file's own."""
    count = len(wiring.features) - (sample.last is not None)
    declared = tuple(item.dim or 0 for item in wiring.features[:count])
    total = int(sample.features.shape[1])
    if sample.dims is None and sum(declared) == total:
        return declared
    one = sample.hidden_size or (declared[0] if declared else 0)
    if sample.dims is not None:
        return sample.dims
    return (one,) * (total // one) if one and total % one == 0 else (total,)


def common_rows(token_ids: Tensor, probe_tokens: Tensor) -> int:
    """Return how many leading tokens a sequence shares with a probe."""
    count = min(len(token_ids), len(probe_tokens))
    same = token_ids[:count] == probe_tokens[:count]
    return int(same.long().cumprod(0).sum())


def observe(
    sample: Sample, contract: Contract, probe: ProbeData, *, confidence: float
) -> tuple[Wiring, tuple[Observed, ...]]:
    """Name the planes of a sequence whose first tokens are the probe's.

    Returns the wiring that they are held against, and the observation. Where the format leaves open whether the last
    plane is normed, either is what it should be.
    """
    rows = common_rows(sample.token_ids, probe.token_ids)
    parts = [sample.features[:rows].float()] + ([sample.last[:rows].float()] if sample.last is not None else [])
    call = Call(
        values=torch.cat(parts, dim=1),
        phase="stored",
        token_ids=tuple(int(item) for item in sample.token_ids[:rows]),
        positions=tuple(range(rows)),
    )
    wiring = stored_wiring(contract, last=sample.last_state if sample.last is not None else None)
    held = replace(contract, features=wiring.features, projections=())
    found = identify(probe, held, Capture(calls=(call,), source=sample.source), confidence=confidence)
    if sample.last is not None and sample.last_state == "unknown":
        wiring = _settled(wiring, found)
    return wiring, found


def _settled(wiring: Wiring, found: tuple[Observed, ...]) -> Wiring:
    last = wiring.features[-1]
    for item in found:
        seen = item.wiring.features[-1] if len(item.wiring.features) == len(wiring.features) else None
        if seen is not None and seen.boundary == last.boundary and seen.state in ("residual", "final_norm"):
            return replace(wiring, features=(*wiring.features[:-1], replace(last, state=seen.state)))
    return wiring
