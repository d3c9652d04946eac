"""What was kept of a call, with what the host said of it, as a ``Call``: row facts that fit, padding cut off.

Nothing that the host said can make a capture fail: what cannot be used is left out, and the call says so.
"""

from __future__ import annotations

from operator import index
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from featurecontract.capture._record import Call
from featurecontract.capture._tag import PER_ROW, Facts

if TYPE_CHECKING:
    from collections.abc import Callable

    from featurecontract.capture._site import Held, Site

__all__ = ["call_from_held"]

_INT64 = range(-(2**63), 2**63)
_MAX_TEXT = 200


def call_from_held(held: Held, site: Site, *, rank: int, stage: int) -> Call | None:
    """Return the call, None when every row of it was padding."""
    said = _Said(held.facts or Facts())
    # One label for all rows fits any number of them.
    label = said.facts.requests if isinstance(said.facts.requests, str) else None
    given = {
        name: said.listed(name, _CONVERT.get(name, _integer)) for name in PER_ROW if label is None or name != "requests"
    }
    lengths = {name: len(value) for name, value in given.items() if value is not None}
    extra: dict[str, Any] = {"place": site.place.name}
    rows = held.rows
    # All of one length, and shorter than the call: a graph of a fixed batch was replayed for fewer rows.
    if len(set(lengths.values())) == 1 and (known := next(iter(lengths.values()))) < rows:
        extra["padding_rows"] = rows - known
        rows = known
    if rows == 0:
        return None
    said.left_out += [f"{name} ({length} for {rows} rows)" for name, length in lengths.items() if length != rows]
    kept = min(rows, held.values.shape[0])
    if kept < rows:
        extra["rows_dropped"] = rows - kept
    fitting: dict[str, Any] = {
        name: tuple(value[:kept]) for name, value in given.items() if value is not None and len(value) == rows
    }
    if label is not None:
        fitting["requests"] = (_text(label),) * kept
    tap = site.place.tap
    if tap.shard is not None:
        extra["shard_axis"] = tap.shard_axis
    draft = said.listed("draft_tokens", _integer)
    cached = said.cached()
    fitting |= {"rank": said.counted("rank", rank), "stage": said.counted("stage", stage)}
    if said.left_out:
        extra["facts_left_out"] = said.left_out
    return Call(
        values=held.values[:kept].to("cpu", torch.float32),
        point=tap.point,
        phase=_text(said.facts.phase),
        cached=cached,
        draft_tokens=None if draft is None else tuple(draft),
        shard=tap.shard,
        dtype=str(held.values.dtype).removeprefix("torch."),
        extra=extra,
        **fitting,
    )


class _Said:
    """The facts of a call, read with care; ``left_out`` names those that cannot be used."""

    def __init__(self, facts: Facts) -> None:
        self.facts = facts
        self.left_out: list[str] = []

    def listed(self, name: str, convert: Callable[[Any], Any]) -> list[Any] | None:
        value = getattr(self.facts, name)
        if value is None:
            return None
        try:
            return [convert(item) for item in (value.reshape(-1).tolist() if isinstance(value, Tensor) else value)]
        except (TypeError, ValueError):
            self.left_out.append(f"{name} (not a flat list of the right kind)")
            return None

    def counted(self, name: str, default: int) -> int:
        value = getattr(self.facts, name)
        if value is None:
            return default
        try:
            return max(0, _integer(value))
        except (TypeError, ValueError):
            self.left_out.append(f"{name} (not a whole number)")
            return default

    def cached(self) -> dict[str, int]:
        try:
            given = dict(self.facts.cached or {})
            return {_text(request): max(0, _integer(leading)) for request, leading in given.items()}
        except (TypeError, ValueError):
            self.left_out.append("cached (not a whole number for each request)")
            return {}


def _integer(value: Any) -> int:
    found = index(value)
    if found not in _INT64:
        raise ValueError(found)
    return found


def _text(value: object) -> str:
    """Return a label that any JSON reader takes: no lone surrogates, bounded."""
    return str(value)[:_MAX_TEXT].encode("utf-8", "backslashreplace").decode()


_CONVERT: dict[str, Callable[[Any], Any]] = {"requests": _text, "accepted": bool}
