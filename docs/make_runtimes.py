"""Write docs/runtimes.md from the rule files: ``python docs/make_runtimes.py``; a test proves that it is up to date."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from featurecontract.runtimes import NAMES, rules_of

if TYPE_CHECKING:
    from featurecontract.runtimes import RuntimeRules

PAGE = Path(__file__).with_name("runtimes.md")


def page() -> str:
    """Return the whole page."""
    lines = [
        "# Runtimes",
        "",
        "What is known of each runtime, from its rule file in `featurecontract/runtimes/data/`. Written by",
        "`python docs/make_runtimes.py`; do not edit. `predict` shows what it means for a checkpoint.",
    ]
    for name in NAMES:
        lines += ["", *_section(name, rules_of(name))]
    return "\n".join(lines) + "\n"


def _section(name: str, rules: RuntimeRules) -> list[str]:
    known = rules.snapshot or f"{rules.oldest} to {rules.newest}"
    out = [f"## {name}", "", f"{rules.title}, {known}. Read from: {rules.source}.", ""]
    if rules.runners:
        runners = ", ".join(f"`{item.name}` {item.versions}".strip() for item in rules.runners)
        out += [f"Runners: {runners}.", ""]
    out += ["| method | where ids are read | source |", "|---|---|---|"]
    for rule in rules.ids:
        keys = ", ".join(f"`{item.path}`{f' {item.offset:+d}' if item.offset else ''}" for item in rule.keys)
        scope = " ".join((*rule.runners, rule.versions)).strip()
        methods = ", ".join(rule.methods)
        out.append(f"| {methods}{f' ({scope})' if scope else ''} | {keys or 'nowhere: a fixed list'} | {rule.source} |")
    missing = [f"{item.method}: {item.reason}" for item in rules.methods if item.reason]
    if missing:
        out += ["", *(f"* {item}" for item in missing)]
    if rules.cautions:
        out += ["", "Known faults:", ""]
        out += [
            f"* `{item.slug}` {item.versions or 'every version'}: {item.message} ({item.source})"
            for item in rules.cautions
        ]
    return out


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
