"""What was kept of a call, with what the host said of it, as a ``Call``: row facts that fit, padding cut off."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from featurecontract.capture._record import Call
from featurecontract.capture._tag import PER_ROW, Facts

if TYPE_CHECKING:
    from featurecontract.capture._site import Held, Site

__all__ = ["call_from_held"]


def call_from_held(held: Held, site: Site, *, rank: int, stage: int) -> Call | None:
    """Return the call, None when every row of it was padding."""
    facts = held.facts or Facts()
    # One label for all rows fits any number of them.
    label = facts.requests if isinstance(facts.requests, str) else None
    given = {name: _listed(getattr(facts, name)) for name in PER_ROW}
    if label is not None:
        given["requests"] = None
    lengths = {name: len(value) for name, value in given.items() if value is not None}
    extra: dict[str, Any] = {"place": site.place.name}
    rows = held.rows
    # All of one length, and shorter than the call: a graph of a fixed batch was replayed for fewer rows.
    if len(set(lengths.values())) == 1 and (said := next(iter(lengths.values()))) < rows:
        extra["padding_rows"] = rows - said
        rows = said
    if rows == 0:
        return None
    left_out = [f"{name} ({length} for {rows} rows)" for name, length in lengths.items() if length != rows]
    if left_out:
        extra["facts_left_out"] = left_out
    kept = min(rows, held.values.shape[0])
    if kept < rows:
        extra["rows_dropped"] = rows - kept
    fitting: dict[str, Any] = {
        name: tuple(value[:kept]) if value is not None and len(value) == rows else None for name, value in given.items()
    }
    if label is not None:
        fitting["requests"] = (label,) * kept
    elif fitting["requests"] is not None:
        fitting["requests"] = tuple(str(request) for request in fitting["requests"])
    if fitting["accepted"] is not None:
        fitting["accepted"] = tuple(bool(value) for value in fitting["accepted"])
    tap = site.place.tap
    if tap.shard is not None:
        extra["shard_axis"] = tap.shard_axis
    draft = _listed(facts.draft_tokens)
    return Call(
        values=held.values[:kept].to("cpu", torch.float32),
        point=tap.point,
        phase=facts.phase,
        cached={str(request): int(leading) for request, leading in (facts.cached or {}).items()},
        draft_tokens=None if draft is None else tuple(draft),
        rank=rank if facts.rank is None else facts.rank,
        stage=stage if facts.stage is None else facts.stage,
        shard=tap.shard,
        dtype=str(held.values.dtype).removeprefix("torch."),
        extra=extra,
        **fitting,
    )


def _listed(value: Any) -> list[Any] | None:
    if value is None:
        return None
    return value.reshape(-1).tolist() if isinstance(value, Tensor) else list(value)
