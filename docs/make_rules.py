"""Write docs/rules.md from the catalogue of rules: ``python docs/make_rules.py``."""

from __future__ import annotations

import textwrap
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from featurecontract.findings import catalogue

if TYPE_CHECKING:
    from collections.abc import Iterator

    from featurecontract.findings import Rule

PAGE = Path(__file__).with_name("rules.md")
WIDTH = 118

INTRODUCTION = """\
Every finding names a rule: an id such as FC304, which sorts, and a slug such as `embedding-missing`, which reads. Both
are stable. `featurecontract explain SLUG` prints a section of this page.

An **error** fails the check, a **warning** is right now but by luck, by default or by version (`--strict` turns it into
an error), a **note** is information. A rule that **could not check** is neither a pass nor a failure: exit status 2.
The severity here is the usual one; where a rule knows better, the finding says so. Thread numbers such as
`vllm-project/vllm#40727` are public issues and pull requests on GitHub.

This page is written by `python docs/make_rules.py`; change `featurecontract/findings/catalogue.json` instead.
"""

GROUPS = {
    "could-not-check": "Could not check",
    "static": "Checkpoint and config",
    "wiring": "Wiring",
    "rows": "Rows",
    "replay": "Replay",
    "flags": "Serving flags",
    "recording": "Recording",
}


def rules_page() -> str:
    """Return the page as it should be."""
    return "\n".join(_lines())


def _lines() -> Iterator[str]:
    yield "# Rules"
    yield ""
    yield INTRODUCTION
    for group, rules in groupby(catalogue().values(), key=lambda rule: rule.group):
        yield f"## {GROUPS[group]}"
        yield ""
        for rule in rules:
            yield from _section(rule)


def _section(rule: Rule) -> Iterator[str]:
    yield f"### {rule.rule} `{rule.slug}`"
    yield ""
    yield f"{rule.title}. *{'could not check' if rule.unchecked else rule.severity}*"
    yield ""
    yield from textwrap.wrap(rule.text, WIDTH, break_long_words=False, break_on_hyphens=False)
    yield ""


if __name__ == "__main__":
    PAGE.write_text(rules_page(), encoding="utf-8")
