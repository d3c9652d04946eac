"""``--serve-args``: a command line, or a file that holds one, into flags, environment and a speculative config."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from featurecontract.errors import InputError, UsageError
from featurecontract.serving._rules import known_flags, resolve_flag

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Arguments", "Flag", "parse_integer", "shown"]

_INTEGER = re.compile(r"[+-]?[0-9]{1,10}")
_NUMBER = re.compile(r"[+-]?(?:[0-9]{1,20}(?:\.[0-9]{0,20})?|\.[0-9]{1,20})(?:[eE][+-]?[0-9]{1,3})?")


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag as given: its name with dashes for underscores, its value (None: a switch)."""

    name: str
    value: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments:
    """The serving arguments of one server.

    Attributes:
        source: Where they come from, for messages: ``--serve-args`` or a path.
        flags: In order; of a flag that is given twice the last one counts, as in argparse.
        environment: The ``KEY=VALUE`` words.
        positional: The other words.
        speculative: ``speculative_config`` merged from file, JSON and dotted flags, or None.
        unread: Config files that the command line names and that were not read.
    """

    source: str = "--serve-args"
    flags: tuple[Flag, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict, hash=False)
    positional: tuple[str, ...] = ()
    speculative: Mapping[str, Any] | None = field(default=None, hash=False)
    unread: tuple[str, ...] = ()

    @property
    def layers_to_capture(self) -> tuple[int, ...] | None:
        """TensorRT-LLM's ``eagle3_layers_to_capture``, as listed: id k is the output of layer k, -1 the final norm's.

        Raises:
            InputError: it is no list of integers.
        """
        key = "eagle3_layers_to_capture"
        raw = (self.speculative or {}).get(key)
        if raw is None:
            return None
        # `!!set {1, 3}` of YAML and a mapping of nulls are how a set may be written.
        items = sorted(raw) if isinstance(raw, set) and all(isinstance(item, int) for item in raw) else raw
        if not isinstance(items, list) or not items or not all(type(item) is int for item in items):
            message = f"{shown(raw)} is not a list of layer numbers"
            raise InputError.single(self.source, message, place=key, next_step=f"write {key}: [1, 30, 57]")
        return tuple(items)

    def families(self) -> frozenset[str]:
        """The runtimes whose drafting flags or config keys are there: ``sglang``, ``vllm``, ``tensorrt-llm``."""
        flags = known_flags()
        found = {
            owner
            for item in self.flags
            for name in resolve_flag(item.name.partition(".")[0])
            if (owner := flags[name]["runtime"]) and (name.startswith("--spec") or owner == "tensorrt-llm")
        }
        if self.speculative is not None and "tensorrt-llm" not in found:
            # One key, two runtimes: TensorRT-LLM's config must name a decoding type, vLLM's has none.
            found.add("tensorrt-llm" if "decoding_type" in self.speculative else "vllm")
        return frozenset(found)

    def text(self, name: str, *, family: str, version: str) -> str | None:
        """Return the value of a flag as that runtime and version reads it, abbreviations and aliases included.

        Raises:
            UsageError: an abbreviation is ambiguous there.
        """
        value = None
        for item in self.flags:
            names = resolve_flag(item.name, family=family, version=version)
            if name in names and len(names) > 1:
                raise UsageError(f"{self.source}: {item.name} is short for any of {', '.join(names)}; write it out")
            if names == (name,):
                value = item.value if item.value is not None else ""
        return value

    def integer(self, name: str, *, family: str, version: str, least: int = 1) -> int | None:
        """Return the value of an integer flag, at least ``least``.

        Raises:
            UsageError: it is no such integer.
        """
        value = self.text(name, family=family, version=version)
        return None if value is None else parse_integer(value, f"{self.source}: {name}", least=least)

    def number(self, name: str, *, family: str, version: str) -> float | None:
        """Return the value of a flag that is a number; raises UsageError for any other text."""
        value = self.text(name, family=family, version=version)
        if value is None:
            return None
        if not _NUMBER.fullmatch(value):
            raise UsageError(f"{self.source}: {name}: {shown(value)} is not a number")
        return float(value)

    def setting(self, key: str, *, least: int = 1) -> int | None:
        """Return an integer of the speculative config; raises UsageError for anything else at that key."""
        value = (self.speculative or {}).get(key)
        if value is None or (isinstance(value, int) and not isinstance(value, bool) and least <= value < 2**31):
            return value
        if isinstance(value, str):
            return parse_integer(value, f"{self.source}: {key}", least=least)
        raise UsageError(f"{self.source}: {key}: {shown(value)} is not an integer of at least {least}")


def parse_integer(value: str, place: str, *, least: int) -> int:
    """Return ``value`` as an integer of at least ``least``; raises UsageError, which begins with ``place``."""
    number = int(value) if _INTEGER.fullmatch(value) else None
    if number is None or not least <= number < 2**31:
        hint = "; write the value in place of the variable" if "$" in value else ""
        raise UsageError(f"{place}: {shown(value)} is not an integer of at least {least}{hint}")
    return number


def shown(value: object) -> str:
    """Return a value from outside for a message: quoted, on one line, at most 60 characters."""
    text = repr(value if not isinstance(value, str) else value[:60])
    return text if len(text) <= 60 else f"{text[:57]}..."  # noqa: PLR2004
