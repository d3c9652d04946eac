"""Switches with which a server's acceptance is no longer the drafter's: forced lengths, loosened rules."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from featurecontract.serving._arguments import shown
from featurecontract.serving._effective import Setting
from featurecontract.serving._rules import family_of, rules_of, valid_at

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from featurecontract.serving._arguments import Arguments

__all__ = ["forced_acceptance", "lossy_acceptance"]


def forced_acceptance(runtime: str, version: str, arguments: Arguments) -> tuple[Setting, ...]:
    """Return every switch that makes up the acceptance of this server."""
    found = list(_switches(runtime, version, arguments, "forced_acceptance"))
    if len(found) < 2 or family_of(runtime) != "vllm":  # noqa: PLR2004
        return tuple(found)
    # vLLM's method and its length or rates are one switch.
    return (replace(found[0], effective=", ".join(str(item.effective) for item in found)),)


def lossy_acceptance(runtime: str, version: str, arguments: Arguments) -> tuple[Setting, ...]:
    """Return every switch that accepts drafts which exact rejection sampling would not."""
    return tuple(_switches(runtime, version, arguments, "lossy_acceptance"))


def _switches(runtime: str, version: str, arguments: Arguments, table: str) -> Iterator[Setting]:
    family = family_of(runtime)
    for rule in valid_at(version, rules_of(family).get(table, ())):
        if runtime not in rule.get("runtimes", (runtime,)):
            continue
        found = _value(rule, family, version, arguments)
        if found is not None:
            name, value, certain = found
            yield Setting(
                requested=value,
                effective=f"{name}={value}",
                origin="request" if certain else "unknown",
                reason=name,
                source=rule["source"],
                next_step=f"take {name} off the command line of a server whose acceptance is read",
            )


def _value(rule: Mapping[str, Any], family: str, version: str, arguments: Arguments) -> tuple[str, Any, bool] | None:
    if "variable" in rule:
        return _variable(rule, arguments)
    if "flag" in rule:
        number = arguments.number(rule["flag"], family=family, version=version)
        return (rule["flag"], number, True) if number is not None and number < rule["below"] else None
    value = (arguments.speculative or {}).get(rule["key"])
    if value is None or ("values" in rule and value not in rule["values"]):
        return None
    plain = isinstance(value, int) or (isinstance(value, float) and math.isfinite(value))
    return rule["key"], value if plain or "values" in rule else shown(value), True


def _variable(rule: Mapping[str, Any], arguments: Arguments) -> tuple[str, Any, bool] | None:
    """Return a variable that is on; one whose value is only known to the shell may be on."""
    name = rule["variable"]
    text = arguments.environment.get(name, "")
    if not text:
        return None
    if rule["on"] == "set":
        return name, _printable(text), True
    try:
        number = float(text) if len(text) <= 40 else math.nan  # noqa: PLR2004
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        return name, _printable(text), False
    value = int(number) if number.is_integer() else number
    return (name, value, True) if number > 0 else None


def _printable(text: str) -> str:
    return text[:60] if text.isprintable() else shown(text)
