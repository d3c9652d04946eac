"""The rules about other people's command lines: ``rules.json``, by version range, each with its source."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from featurecontract.runtimes._versions import in_range

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["family_of", "first_block_size", "known_flags", "resolve_flag", "rules_of", "valid_at"]

RUNTIMES = ("sglang", "vllm-v1", "vllm-v2", "tensorrt-llm")


@lru_cache(maxsize=1)
def _rules() -> dict[str, Any]:
    text = Path(__file__).with_name("rules.json").read_text("utf-8")
    loaded: dict[str, Any] = json.loads(text)
    return loaded


def family_of(runtime: str) -> str:
    """Return the command line that a runtime reads: both of vLLM's model runners read ``vllm``'s."""
    return "vllm" if runtime in {"vllm-v1", "vllm-v2"} else runtime


def rules_of(family: str) -> Mapping[str, Any]:
    """Return the rules of ``sglang``, ``vllm`` or ``tensorrt-llm``."""
    rules: Mapping[str, Any] = _rules()[family]
    return rules


def known_flags() -> Mapping[str, Mapping[str, str]]:
    """Return every flag that is read here, with its kind, its runtime and the first version that has it."""
    flags: Mapping[str, Mapping[str, str]] = _rules()["flags"]
    return flags


def valid_at(version: str, table: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the entries of a table that hold for a version, in order."""
    return [entry for entry in table if in_range(version, entry["versions"])]


@lru_cache(maxsize=4096)
def resolve_flag(name: str, *, family: str | None = None, version: str | None = None) -> tuple[str, ...]:
    """Return the known flags that ``name`` stands for: itself, or those that it abbreviates.

    Every runtime here parses with argparse, which takes any unique prefix of a long flag: ``--speculative-algo``.
    An alias gives its flag. Empty: not a flag that is read here; two or more: ambiguous.
    """
    flags = {
        flag: entry
        for flag, entry in known_flags().items()
        if family is None or entry["runtime"] in {"", family}
        if version is None or not entry["since"] or in_range(version, f">={entry['since']}")
    }
    if name in flags:
        return (flags[name].get("alias", name),)
    if not name.startswith("--spec"):
        return ()
    found = {entry.get("alias", flag) for flag, entry in flags.items() if flag.startswith(name)}
    return tuple(sorted(found))


def first_block_size(config: Mapping[str, Any], keys: Iterable[Iterable[str]]) -> int | None:
    """Return the first positive integer at one of the key paths of a drafter's config."""
    for path in keys:
        value: Any = config
        for key in path:
            value = value.get(key) if isinstance(value, dict) else None
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return None
