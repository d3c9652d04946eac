"""Markdown (GitHub's dialect) for a pull-request comment or a job summary."""

from __future__ import annotations

import re
from itertools import islice
from typing import TYPE_CHECKING

from featurecontract.render._clean import clean
from featurecontract.render._predict_table import COLUMNS, SLOTS_NOTE, predict_table
from featurecontract.render._view import (
    diagnosis_lines,
    drafted_lines,
    entries,
    legend,
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


def render(report: Report, *, color: bool = False, kind: str = "check") -> str:
    """Return the report as Markdown; what comes from files stands in code spans or is escaped."""
    del color
    return "\n".join(_predict(report) if kind == "predict" else _check(report)) + "\n"


def _check(report: Report) -> Iterator[str]:
    yield f"# featurecontract: {report.verdict}"
    yield ""
    yield str(summary(report))
    if lines := diagnosis_lines(report):
        *others, (_, sentence) = lines
        yield ""
        yield f"**{_escape(sentence)}**"
        yield ""
        yield from (f"- {label}: {_code(value)}" for label, value in others)
    yield ""
    yield from (f"- {label}: {_code(value)}" for label, value in subject(report))
    if report.declared is not None:
        yield ""
        yield from _table(("slot", "columns", "feature"), [list(row) for row in slot_rows(report.declared)])
    if report.predicted:
        yield ""
        rows = [[clean(item.runtime, limit=80), predicted_text(item)] for item in report.predicted[:MAX_RUNTIMES]]
        if len(report.predicted) > MAX_RUNTIMES:
            rows.append([f"and {len(report.predicted) - MAX_RUNTIMES} more", ""])
        yield from _table(("runtime", "predicted"), rows)
    yield from _figures(report)
    for entry in islice(entries(report), MAX_FINDINGS):
        yield ""
        yield f"## {entry.level}: {_escape(entry.heading)}"
        yield ""
        for label, value in entry.lines:
            shown = "<br>".join(_code(line) for line in value.split("\n"))
            yield f"- {label}: {_escape(value) if label in _PROSE else shown}"
    if len(report.findings) > MAX_FINDINGS:
        yield ""
        yield f"and {len(report.findings) - MAX_FINDINGS} more findings"
    if spelled := legend(report):
        yield ""
        yield "Boundaries in the words of each tool:"
        yield ""
        yield from (f"- {_code(line)}" for line in spelled)


def _figures(report: Report) -> Iterator[str]:
    if drafted := drafted_lines(report):
        yield ""
        yield from (f"- drafted: {_code(line)}" for line in drafted)
    if replayed := replayed_rows(report):
        yield ""
        yield from _table(replayed[0], [list(row) for row in replayed[1:]])
    if report.search is not None:
        answer, did = search_text(report.search)
        yield ""
        yield f"search: {answer}. {did}."
        yield ""
        found = search_rows(report.search)
        yield from _table(found[0], [list(row) for row in found[1:]])


_PROSE = ("what", "likely cause")


def _predict(report: Report) -> Iterator[str]:
    yield "# featurecontract: prediction"
    yield ""
    yield from (f"- {label}: {_code(value)}" for label, value in subject(report))
    yield ""
    table = predict_table(report, bounded=False)
    yield from _table(COLUMNS, table.rows)
    yield ""
    yield f"{_escape(SLOTS_NOTE)}"
    if table.notes:
        yield ""
    yield from (f"- {_escape(f'[{number}]')} {_escape(note)}" for number, note in enumerate(table.notes, start=1))


def _table(columns: tuple[str, ...], rows: list[list[str]]) -> Iterator[str]:
    yield "| " + " | ".join(columns) + " |"
    yield "|" + " --- |" * len(columns)
    yield from ("| " + " | ".join(_code(cell).replace("|", "\\|") for cell in row) + " |" for row in rows)


def _code(text: str) -> str:
    """Return a code span; a backtick inside would end it, and shows as an apostrophe."""
    return f"`{text.replace('`', chr(39))}`" if text.strip() else ""


def _escape(text: str) -> str:
    """Return text that no Markdown reader takes for markup, a mention or HTML."""
    escaped = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("@", "&#64;")
    return re.sub(r"([\\`*_\[\]#|~$!])", r"\\\1", escaped).replace("\n", "<br>")
