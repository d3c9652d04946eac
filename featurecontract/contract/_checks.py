"""Checks that turn JSON values into typed ones and collect every problem with its JSON path."""

from __future__ import annotations

import math
import re
import sys
from typing import TYPE_CHECKING, Any

from featurecontract.errors import Problem

if TYPE_CHECKING:
    from collections.abc import Callable

    Check = Callable[[object, str, list[Problem]], Any]

__all__ = ["Invalid", "boolean", "choice", "integer", "json_object", "list_of", "number", "sha256", "text"]

_HALF_PAIR = re.compile("[\ud800-\udfff]")
MAX_TEXT = 4096
MAX_INT = 2**53
MAX_ITEMS = 1_000_000


class Invalid:
    """The value of a key that had a problem; never leaves the decoder."""


INVALID = Invalid()


def describe(value: object) -> str:
    """Return a short, bounded picture of a JSON value for a message."""
    if isinstance(value, dict):
        return f"an object of {len(value)} keys"
    if isinstance(value, list):
        return f"a list of {len(value)} items"
    shown = repr(value)
    return shown if len(shown) <= 60 else shown[:57] + "..."  # noqa: PLR2004


def _refuse(value: object, wanted: str, path: str, problems: list[Problem]) -> Invalid:
    problems.append(Problem(place=path, message=f"expected {wanted}, found {describe(value)}"))
    return INVALID


def text(*, nonempty: bool = True) -> Check:
    """A string, at most 4096 characters long, that can be written as UTF-8."""

    def check(value: object, path: str, problems: list[Problem]) -> Any:
        if isinstance(value, str) and len(value) <= MAX_TEXT and (value or not nonempty):
            # Half of a surrogate pair comes from a command line that is not UTF-8; no file of ours may hold one.
            if value.isascii() or not _HALF_PAIR.search(value):
                return value
            return _refuse(value, "a string that is valid UTF-8", path, problems)
        return _refuse(value, "a string of 1 to 4096 characters" if nonempty else "a string", path, problems)

    return check


def sha256() -> Check:
    """A sha256 digest in lower-case hex."""

    def check(value: object, path: str, problems: list[Problem]) -> Any:
        if isinstance(value, str) and re.fullmatch(r"[0-9a-f]{64}", value):
            return value
        return _refuse(value, "a sha256 digest of 64 lower-case hex digits", path, problems)

    return check


def integer(low: int = 0, high: int = MAX_INT) -> Check:
    """An integer in [low, high]; true is none, 1.0 is 1, as in JSON Schema."""

    def check(value: object, path: str, problems: list[Problem]) -> Any:
        if isinstance(value, float) and value.is_integer() and low <= value <= high:
            return int(value)
        if isinstance(value, int) and not isinstance(value, bool) and low <= value <= high:
            return value
        span = f"of at least {low}" if high == MAX_INT else f"from {low} to {high}"
        return _refuse(value, f"an integer {span}", path, problems)

    return check


def number(low: float = -math.inf, high: float = math.inf) -> Check:
    """A finite number in [low, high], kept as a float."""

    def check(value: object, path: str, problems: list[Problem]) -> Any:
        # An integer that no float can hold is no number of a contract: it would not survive a rewrite.
        real = isinstance(value, float) or (isinstance(value, int) and abs(value) <= sys.float_info.max)
        if real and not isinstance(value, bool) and low <= value <= high and math.isfinite(value):  # type: ignore[operator, arg-type]
            return float(value)  # type: ignore[arg-type]
        span = "" if (low, high) == (-math.inf, math.inf) else f" from {low:g} to {high:g}"
        return _refuse(value, f"a number{span}", path, problems)

    return check


def boolean() -> Check:
    """Accept true or false."""

    def check(value: object, path: str, problems: list[Problem]) -> Any:
        return value if isinstance(value, bool) else _refuse(value, "true or false", path, problems)

    return check


def choice(values: tuple[str, ...]) -> Check:
    """One of a few words."""

    def check(value: object, path: str, problems: list[Problem]) -> Any:
        return value if value in values else _refuse(value, "one of " + ", ".join(values), path, problems)

    return check


def list_of(item: Check, *, at_least: int = 0) -> Check:
    """A list whose items all pass ``item``, kept as a tuple."""

    def check(value: object, path: str, problems: list[Problem]) -> Any:
        if not isinstance(value, list) or len(value) < at_least or len(value) > MAX_ITEMS:
            wanted = "a list" if not at_least else f"a list of at least {at_least} item(s)"
            return _refuse(value, wanted, path, problems)
        out = [item(entry, f"{path}[{index}]", problems) for index, entry in enumerate(value)]
        return INVALID if any(entry is INVALID for entry in out) else tuple(out)

    return check


def json_object() -> Check:
    """Any JSON object, kept as it is."""

    def check(value: object, path: str, problems: list[Problem]) -> Any:
        return value if isinstance(value, dict) else _refuse(value, "an object", path, problems)

    return check
