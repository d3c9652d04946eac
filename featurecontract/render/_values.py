"""Features, places and values as short, bounded text."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from featurecontract.render._clean import capped, clean, json_value

if TYPE_CHECKING:
    from collections.abc import Mapping

    from featurecontract.contract import Feature, Wiring
    from featurecontract.findings import Finding

__all__ = ["details_text", "dims_text", "place_text", "ranges_text", "short_wiring", "value_text", "wiring_text"]

MAX_SLOTS = 32
MAX_RANGES = 8
MAX_VALUE = 400


def wiring_text(wiring: Wiring) -> str:
    """Return ``embedding, h[3], h[31]``."""
    return capped([clean(item) for item in wiring.features], MAX_SLOTS) or "nothing"


def short_wiring(wiring: Wiring) -> str:
    """Return ``embedding, 3, 31``: what ``--wiring`` reads, where a wiring can be written that way."""
    return capped([_short(item) for item in wiring.features], MAX_SLOTS) or "nothing"


def _short(item: Feature) -> str:
    if item.source != "target" or item.boundary is None:
        return str(item)
    if item.state == "residual":
        return str(item.boundary) if item.boundary else "embedding"
    return "final_norm" if item.state == "final_norm" else str(item)


def dims_text(wiring: Wiring) -> str:
    """Return ``3 x 7168 -> 21504``, or the sum slot by slot; empty where a width is not stated."""
    dims = [item.dim for item in wiring.features if item.dim is not None]
    if not dims or len(dims) != len(wiring.features):
        return ""
    left = f"{len(dims)} x {dims[0]}" if len(set(dims)) == 1 else capped([str(dim) for dim in dims], 8, separator=" + ")
    return f"{left} -> {sum(dims)}"


def ranges_text(ranges: tuple[tuple[int, int], ...]) -> str:
    """Return ``[0:7168], [7168:14336]``."""
    return capped([f"[{start}:{stop}]" for start, stop in ranges], MAX_RANGES)


def place_text(item: Finding) -> str:
    """Return where a finding is: runtime, slots, columns and rows; empty for one about the whole checkpoint."""
    parts = [clean(item.runtime, limit=80)] if item.runtime else []
    if item.slots:
        word = "slot" if len(item.slots) == 1 else "slots"
        parts.append(f"{word} " + capped([str(slot) for slot in item.slots], MAX_SLOTS))
    if item.columns:
        parts.append("columns " + ranges_text(item.columns))
    if item.rows:
        parts.append("rows " + ranges_text(item.rows))
    return ", ".join(parts)


def value_text(value: Any) -> str:
    """Return an ``expected`` or ``actual`` value: the names of features, else compact JSON without outer quotes."""
    if isinstance(value, str):
        return clean(value, limit=MAX_VALUE)
    if isinstance(value, (list, tuple)) and value and all(isinstance(item, dict) and "name" in item for item in value):
        return capped([clean(item["name"], limit=80) for item in value], MAX_SLOTS)
    return clean(json.dumps(json_value(value), ensure_ascii=False), limit=MAX_VALUE)


# For scripts: the message says the same in words.
_QUIET = ("appended", "caution", "default", "replaces", "tensor", "key", "alternatives", "reason", "stage")


def details_text(details: Mapping[str, Any]) -> str:
    """Return ``shift -1, slots [1, 2]``; values that hold nothing are left out."""
    shown = [
        f"{clean(key, limit=40)} {value_text(item)}"
        for key, item in details.items()
        if item not in (None, "", []) and key not in _QUIET
    ]
    return capped(shown, MAX_RANGES)
