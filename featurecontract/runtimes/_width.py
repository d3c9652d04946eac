"""Widths: the number of planes that fc is built for, that the file holds and that are fed; and whose tensors run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from featurecontract.dialects import lookup
from featurecontract.runtimes._query import Crash
from featurecontract.runtimes._versions import in_range

if TYPE_CHECKING:
    from featurecontract.contract import Feature
    from featurecontract.runtimes._format import PlaneCount
    from featurecontract.runtimes._query import Case, Query

__all__ = ["owner_of", "skips_projection", "width_crash"]


def width_crash(case: Case, features: tuple[Feature, ...]) -> Crash | None:
    """Return the death by width: fc is built for one number of planes, the file or the target gives another."""
    query = case.query
    count = case.first(case.rules.planes)
    if count is None:
        return None
    if count.exactly is not None and len(features) != count.exactly:
        message = count.message or f"takes exactly {count.exactly} features"
        return Crash(cause="number of planes", when=count.when, message=message)
    built = _built_planes(count, query, len(features))
    width = _fc_width(query)
    if query.fc_in is not None and built * width != query.fc_in:
        planes = f"{query.fc_in / query.hidden_size:g}"
        message = (
            f"fc is built for {built} x {width} = {built * width} columns, and the file holds {query.fc_in} "
            f"({planes} planes of {query.hidden_size})"
        )
        return Crash(cause="number of planes", when="at load", message=message)
    if built != len(features) and features and not _single_state(features):
        fed, wanted = len(features) * query.hidden_size, built * width
        out = query.fc_out or width
        message = (
            case.rules.width_message or "mat1 and mat2 shapes cannot be multiplied ({rows}x{fed} and {wanted}x{out})"
        )
        # A fork's text is data: only these four words are filled in.
        for word, value in (("{rows}", "N"), ("{fed}", fed), ("{wanted}", wanted), ("{out}", out)):
            message = message.replace(word, str(value))
        return Crash(cause="number of planes", when="at the first request", message=message)
    return None


def _single_state(features: tuple[Feature, ...]) -> bool:
    return any(item.state == "final_norm" for item in features)


def _built_planes(count: PlaneCount, query: Query, fed: int) -> int:
    for entry in count.count:
        if entry == "fed":
            return fed
        if entry.isdigit():
            return int(entry)
        value = lookup(query.config, entry.removeprefix("#"))[1]
        if entry.startswith("#") and isinstance(value, list) and value:
            return len(value)
        if not entry.startswith("#") and isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return fed


def _fc_width(query: Query) -> int:
    stated = query.config.get("target_hidden_size")
    own = query.config.get("hidden_size")
    for value in (stated, own):
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return query.hidden_size


def owner_of(case: Case, part: str) -> str:
    """Return whose embedding or head the drafter runs with: ``own``, ``target``, or empty when no rule says."""
    query = case.query
    rule = case.first(tuple(item for item in case.rules.embeddings if item.part == part))
    if rule is None:
        return ""
    if rule.rule == "own-if-present":
        return "own" if (query.own_embedding if part == "embedding" else query.own_head) else "target"
    if rule.rule == "target-unless-own-width":
        stated = query.config.get("target_hidden_size")
        return "own" if isinstance(stated, int) and stated != query.config.get("hidden_size") else "target"
    return rule.rule


def skips_projection(case: Case, features: tuple[Feature, ...]) -> bool:
    """Whether equal widths make this runtime leave the projection out."""
    query, spec = case.query, case.rules.skips_equal_width
    if not spec or not in_range(case.version, spec):
        return False
    own = query.config.get("hidden_size")
    return len(features) * query.hidden_size == own and query.fc_in == own
