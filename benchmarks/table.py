"""The two things that every benchmark prints: a table for people, and one line of JSON."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["print_report", "print_table"]


def print_table(title: str, rows: Sequence[Sequence[str]]) -> None:
    """Print rows (the first one is the heading) in columns."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    print(title)
    for number, row in enumerate(rows):
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
        if number == 0:
            print("  ".join("-" * width for width in widths))


def print_report(title: str, rows: Sequence[Sequence[str]], figures: Mapping[str, Any]) -> None:
    """Print a table, then the figures as the last line."""
    print_table(title, rows)
    print(json.dumps(figures), flush=True)
