"""The table of ``predict``: a row per runtime, with what does not fit below it as footnotes."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from featurecontract.render._clean import capped, clean
from featurecontract.render._values import place_text, short_wiring
from featurecontract.render._view import crash_text, heading, level, ordered, subject

if TYPE_CHECKING:
    from collections.abc import Iterator

    from featurecontract.findings import Predicted, Report

__all__ = ["COLUMNS", "PredictTable", "predict_table", "predict_text"]

COLUMNS = ("runtime", "slots", "key read", "ids", "shift", "notes")
KEY = COLUMNS.index("key read")
WIDTH = 120
MAX_ROWS = 200
# A cell that is longer than its column goes to the notes in full; the last two are short by nature.
_LIMITS = (26, 30, 46, 18)
SLOTS_NOTE = "slots are boundaries: 3 is h[3], the tensor that enters layer 3; embedding is h[0]"


@dataclass
class PredictTable:
    """Cells as text, and notes numbered from 1; rows that say the same share a note."""

    rows: list[list[str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def note(self, text: str) -> str:
        """Return the number of a note, adding it when it is new."""
        if text not in self.notes:
            self.notes.append(text)
        return f"[{self.notes.index(text) + 1}]"


def predict_table(report: Report, *, bounded: bool = True) -> PredictTable:
    """Build the table; ``bounded`` moves cells that would widen it beyond a terminal into the notes."""
    table = PredictTable()
    cells = [_cells(item) for item in report.predicted[:MAX_ROWS]]
    no_keys = bounded and _width(cells) > WIDTH
    for item, row in zip(report.predicted, cells, strict=False):
        marks = []
        for index, limit in enumerate(_LIMITS):
            too_long = len(row[index]) > limit or (no_keys and index == KEY and len(row[index]) > len(COLUMNS[KEY]))
            if bounded and too_long:
                marks.append(table.note(f"{COLUMNS[index]}: {row[index]}"))
                row[index] = "see notes" if index else row[index][: limit - 3] + "..."
        marks += [table.note(text) for text in _notes(item, report)]
        table.rows.append([*row, capped(marks, 4, separator=" ")])
    if len(report.predicted) > MAX_ROWS:
        table.rows.append([f"and {len(report.predicted) - MAX_ROWS} more", "", "", "", "", ""])
    listed = {item.runtime for item in report.predicted}
    for found in ordered(report):
        if found.runtime not in listed:
            place = place_text(found)
            table.note(f"{level(found)} {heading(found)}: {clean(found.message)}" + (f" ({place})" if place else ""))
    return table


def _cells(item: Predicted) -> list[str]:
    if item.wiring is not None:
        slots = f"crash ({short_wiring(item.wiring)})" if item.crash else short_wiring(item.wiring)
    else:
        slots = "crash" if item.crash else "several" if item.alternatives else "none"
    ids = "-" if item.ids is None else capped([str(i) for i in item.ids], 16)
    shift = "-" if item.shift is None else f"{item.shift:+d}" if item.shift else "0"
    return [clean(item.runtime, limit=200), slots, clean(item.key, limit=200) or "-", ids, shift]


def _width(cells: list[list[str]]) -> int:
    widths = [
        max([len(COLUMNS[index]), *(min(len(row[index]), limit) for row in cells)])
        for index, limit in enumerate((*_LIMITS, 5))
    ]
    return sum(widths) + 2 * len(widths) + len("[1] [2]")


def _notes(item: Predicted, report: Report) -> Iterator[str]:
    if item.crash:
        yield crash_text(item)
    if item.reason:
        yield clean(item.reason, limit=400)
    if item.alternatives:
        shown = [f"{clean(name, limit=80)}: {short_wiring(wiring)}" for name, wiring in item.alternatives.items()]
        yield "it could be: " + capped(shown, 8, separator=" | ")
    if item.wiring is not None and item.ids is not None:
        fed = [boundary for boundary in item.wiring.boundaries if boundary is not None]
        if list(item.ids) != sorted(item.ids) and fed == sorted(fed):
            yield "sorted: the config lists another order"
        if len(set(item.ids)) < len(item.ids) and len(fed) < len(item.ids):
            yield "an id that is listed twice is fed once"
    for found in ordered(report):
        if found.runtime == item.runtime:
            yield f"{level(found)} {heading(found)}: {clean(found.message)}"


def predict_text(report: Report) -> Iterator[str]:
    """Yield the lines of the table for a terminal."""
    for label, value in subject(report):
        yield f"{label:<11} {value}"
    yield ""
    if not report.predicted:
        yield "no runtime that was asked for is known"
    table = predict_table(report)
    rows = [list(COLUMNS), *table.rows] if table.rows else []
    widths = [max(len(row[index]) for row in rows) for index in range(len(COLUMNS))] if rows else []
    for row in rows:
        yield "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True))
    if rows:
        yield ""
        yield SLOTS_NOTE
    for number, note in enumerate(table.notes, start=1):
        mark = f"[{number}] "
        yield from textwrap.wrap(
            note, WIDTH, initial_indent=mark, subsequent_indent=" " * len(mark), break_on_hyphens=False
        )
