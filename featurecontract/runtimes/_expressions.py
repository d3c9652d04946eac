"""The few words in which a rule speaks of the target's depth: ``2``, ``L``, ``L//2``, ``L-3``, ``L//2+1``."""

from __future__ import annotations

import re

from featurecontract.errors import UsageError

__all__ = ["condition_holds", "evaluate"]

_TERM = re.compile(r"(?:(-?\d{1,6})|L(?://(\d{1,3}))?\s*([+-]\d{1,6})?)")
_CONDITION = re.compile(r"(first|max|min|count|depth)(==|!=|>=|<=|>|<)(.{1,20})")


def evaluate(expression: str, depth: int) -> int:
    """Return the value of an expression for a target of ``depth`` layers; raises UsageError for anything else."""
    found = _TERM.fullmatch(expression.replace(" ", ""))
    if not found:
        raise UsageError(f"{expression[:40]!r} is not an expression such as 2, L//2 or L-3")
    if found[1] is not None:
        return int(found[1])
    divisor = int(found[2]) if found[2] else 1
    if divisor == 0:
        raise UsageError(f"{expression[:40]!r} divides by zero")
    return depth // divisor + int(found[3] or 0)


def condition_holds(condition: str, ids: tuple[int, ...], depth: int) -> bool:
    """Whether a rule's condition such as ``first==1`` or ``max==L`` holds; an empty condition always does."""
    if not condition:
        return True
    found = _CONDITION.fullmatch(condition.replace(" ", ""))
    if not found:
        raise UsageError(f"{condition[:40]!r} is not a condition such as first==1 or max==L")
    if not ids and found[1] in ("first", "max", "min"):
        return False
    subject = {
        "first": lambda: ids[0],
        "max": lambda: max(ids),
        "min": lambda: min(ids),
        "count": lambda: len(ids),
        "depth": lambda: depth,
    }[found[1]]()
    value = evaluate(found[3], depth)
    return {
        "==": subject == value,
        "!=": subject != value,
        ">=": subject >= value,
        "<=": subject <= value,
        ">": subject > value,
        "<": subject < value,
    }[found[2]]
