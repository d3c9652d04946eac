"""Text and values from other people's files, made safe to print: no control characters, no bidi, bounded."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["MAX_TEXT", "capped", "clean", "clean_block", "json_value"]

MAX_TEXT = 2000
MAX_LINES = 20
MAX_JSON_TEXT = 4096
MAX_JSON_ITEMS = 1000
MAX_JSON_DEPTH = 12
# JavaScript and most readers of JSON keep integers exactly up to here; far larger ones cannot even be printed.
MAX_JSON_INT = 2**63

_SPACES = "\t\n\r\v\f\x85\u2028\u2029"


def clean(value: object, *, limit: int = MAX_TEXT) -> str:
    r"""Return text on one line: line breaks become spaces, what does not print is escaped (``\x1b``, ``\u202e``)."""
    text = value if isinstance(value, str) else str(value)
    cut = text[: limit + 1]
    if not cut.isprintable():
        cut = "".join(_printable(character) for character in cut)
    return cut if len(cut) <= limit else cut[: limit - 3] + "..."


def _printable(character: str) -> str:
    if character.isprintable():
        return character
    if character in _SPACES or character.isspace():
        return " "
    code = ord(character)
    if code < 0x100:  # noqa: PLR2004
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"  # noqa: PLR2004


def clean_block(text: str, *, limit: int = MAX_TEXT) -> str:
    """Return text that keeps its line breaks, at most 20 lines, every line clean."""
    lines = text[: limit + 1].replace("\r\n", "\n").split("\n")
    shown = [clean(line.rstrip(), limit=limit) for line in lines[:MAX_LINES]]
    if len(lines) > MAX_LINES:
        shown.append(f"and {len(lines) - MAX_LINES} more lines")
    return "\n".join(shown).strip("\n")


def capped(items: Sequence[str], limit: int, *, separator: str = ", ") -> str:
    """Join at most ``limit`` items and say how many were left out."""
    shown = separator.join(items[:limit])
    return shown if len(items) <= limit else f"{shown} and {len(items) - limit} more"


def json_value(value: Any, *, depth: int = 0) -> Any:
    """Return a value that every JSON reader accepts: bounded, finite, without lone surrogates.

    Control characters stay: JSON has escapes for them, and `json.dumps` writes ASCII only.
    """
    if value is None or isinstance(value, (bool, int, float, str)):
        return _json_scalar(value)
    if depth >= MAX_JSON_DEPTH:
        return "..."
    if isinstance(value, dict):
        items = list(value.items())
        out = {_json_text(str(key)): json_value(item, depth=depth + 1) for key, item in items[:MAX_JSON_ITEMS]}
        if len(items) > MAX_JSON_ITEMS:
            out["..."] = f"and {len(items) - MAX_JSON_ITEMS} more"
        return out
    if isinstance(value, (list, tuple, set, frozenset)):
        listed = list(value)
        shown = [json_value(item, depth=depth + 1) for item in listed[:MAX_JSON_ITEMS]]
        return shown if len(listed) <= MAX_JSON_ITEMS else [*shown, f"and {len(listed) - MAX_JSON_ITEMS} more"]
    return _json_text(str(value))


def _json_scalar(value: Any) -> Any:
    if isinstance(value, str):
        return _json_text(value)
    if isinstance(value, int) and abs(value) >= MAX_JSON_INT:
        return f"an integer of {value.bit_length()} bits"
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _json_text(text: str) -> str:
    cut = text if len(text) <= MAX_JSON_TEXT else text[: MAX_JSON_TEXT - 3] + "..."
    return cut.encode("utf-8", "backslashreplace").decode("utf-8")
