"""Text for a terminal: who was compared, what was predicted, the findings, the verdict."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from featurecontract.render._clean import clean
from featurecontract.render._predict_table import predict_text
from featurecontract.render._view import (
    Entry,
    diagnosis_lines,
    drafted_lines,
    entries,
    legend,
    observed_text,
    predicted_text,
    replayed_rows,
    search_rows,
    search_text,
    slot_rows,
    subject,
    summary,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from featurecontract.findings import Report

__all__ = ["render"]

MAX_FINDINGS = 50
MAX_RUNTIMES = 50
LABEL = 11
_STYLES = {"error": "1;31", "could not check": "1;33", "warning": "33", "note": "36"}
_VERDICTS = {"pass": "1;32", "fail": "1;31", "could-not-check": "1;33"}


def render(report: Report, *, color: bool = False, kind: str = "check") -> str:
    """Return the report for a terminal."""
    lines = predict_text(report) if kind == "predict" else _check(report, color=color)
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _check(report: Report, *, color: bool) -> Iterator[str]:
    for label, value in subject(report):
        yield f"{label:<{LABEL}} {value}"
    if report.declared is not None:
        yield from _slots(slot_rows(report.declared))
    for item in report.predicted[:MAX_RUNTIMES]:
        yield f"{'predicted':<{LABEL}} {clean(item.runtime, limit=80)}: {predicted_text(item)}"
    if len(report.predicted) > MAX_RUNTIMES:
        yield f"{'':<{LABEL}} and {len(report.predicted) - MAX_RUNTIMES} more runtimes"
    for seen in report.observed[:MAX_RUNTIMES]:
        yield f"{'observed':<{LABEL}} {clean(seen.runtime or 'capture', limit=80)}: {observed_text(seen)}"
    yield from (f"{'drafted':<{LABEL}} {line}" for line in drafted_lines(report))
    yield from _replayed(report)
    yield from _searched(report)
    for entry in islice(entries(report), MAX_FINDINGS):
        yield ""
        yield from _finding(entry, color=color)
    if len(report.findings) > MAX_FINDINGS:
        yield ""
        yield f"and {len(report.findings) - MAX_FINDINGS} more findings; -o json lists every one"
    if spelled := legend(report):
        yield ""
        yield "boundaries in the words of each tool"
        yield from (f"  {line}" for line in spelled)
    if lines := diagnosis_lines(report):
        yield ""
        yield from (f"{label:<{LABEL}} {value}" for label, value in lines)
    yield ""
    yield _paint(str(summary(report)), _VERDICTS[report.verdict], color=color)


def _replayed(report: Report) -> Iterator[str]:
    rows = replayed_rows(report)
    if not rows:
        return
    what = "the target's own choice" if report.replayed[0].agreement else "the text's next token"
    first = report.replayed[0]
    yield ""
    source = f" of {clean(first.source, limit=200)}" if first.source else ""
    yield f"{'replayed':<{LABEL}} {first.sequences} sequences{source}; by step, how often the draft token is {what}"
    yield f"{'':<{LABEL}} (over rows whose earlier steps were right), with the 95 % interval over sequences"
    yield from _columns(rows)


def _searched(report: Report) -> Iterator[str]:
    if report.search is None:
        return
    answer, did = search_text(report.search)
    yield ""
    yield f"{'search':<{LABEL}} {answer}"
    yield f"{'':<{LABEL}} {did}"
    yield from _columns(search_rows(report.search))


def _columns(rows: list[tuple[str, ...]]) -> Iterator[str]:
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    for row in rows:
        yield (
            f"{'':<{LABEL}}   " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        )


def _slots(rows: list[tuple[str, str, str]]) -> Iterator[str]:
    first = max(len(row[0]) for row in rows) if rows else 0
    second = max(len(row[1]) for row in rows) if rows else 0
    for slot, columns, name in rows:
        yield f"{'':<{LABEL}}   {slot:<{first}}  {columns:<{second}}  {name}"


def _finding(entry: Entry, *, color: bool) -> Iterator[str]:
    yield f"{_paint(entry.level, _STYLES[entry.level], color=color)} {entry.heading}"
    for label, value in entry.lines:
        head, *rest = value.split("\n")
        yield f"  {label + ':':<15}{head}"
        yield from (f"  {'':<15}{line}" for line in rest)


def _paint(text: str, style: str, *, color: bool) -> str:
    return f"\x1b[{style}m{text}\x1b[0m" if color else text
