"""The rules: one id, one slug, one purpose each. ``explain`` and the docs are written from here."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

from featurecontract.errors import UsageError

__all__ = ["Rule", "catalogue", "rule_for"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A rule of the catalogue.

    Attributes:
        rule: Id such as ``FC301``.
        slug: Short name such as ``layer-shift``.
        group: could-not-check, static, wiring, rows, replay, flags or recording.
        severity: The severity unless the place of use knows better.
        unchecked: Whether it means that a statement could not be checked.
        title: One line.
        text: What it means, why it happens, what to do; a paragraph or two.
    """

    rule: str
    slug: str
    group: str
    severity: Literal["error", "warning", "note"]
    unchecked: bool
    title: str
    text: str


@lru_cache(maxsize=1)
def catalogue() -> dict[str, Rule]:
    """Return every rule by slug, in the order of their ids."""
    raw = json.loads(Path(__file__).with_name("catalogue.json").read_text("utf-8"))
    return {entry["slug"]: Rule(**entry) for entry in raw["rules"]}


def rule_for(slug: str) -> Rule:
    """Return a rule by slug or id; raises UsageError with the nearest names."""
    rules = catalogue()
    if slug in rules:
        return rules[slug]
    for rule in rules.values():
        if rule.rule == slug.upper():
            return rule
    import difflib

    close = difflib.get_close_matches(slug, rules, n=3)
    hint = f"; did you mean {', '.join(close)}?" if close else "; `featurecontract rules` lists them"
    raise UsageError(f"unknown rule {slug!r}{hint}")
