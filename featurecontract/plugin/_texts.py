"""Findings as the text of a failing test: the blocks of the text renderer, in full once, then by reference."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from featurecontract.plugin._settings import in_pytest_words
from featurecontract.render import clean
from featurecontract.render._text import _finding as finding_lines
from featurecontract.render._view import entries, heading, legend, level

if TYPE_CHECKING:
    from featurecontract.errors import InputError
    from featurecontract.findings import Finding, Report

__all__ = ["block", "one_line", "reference"]


def block(report: Report, found: Finding) -> str:
    """Return a finding in full, with its boundaries in the words of each tool."""
    worded = replace(found, next_step=in_pytest_words(found.next_step))
    alone = replace(report, findings=(worded,))
    lines = [line.rstrip() for entry in entries(alone) for line in finding_lines(entry, color=False)]
    if spelled := legend(alone):
        lines += ["  boundaries in the words of each tool", *(f"    {line}" for line in spelled)]
    return "\n".join(lines)


def reference(found: Finding, node_id: str) -> str:
    """Return a finding's heading and where it is said in full."""
    return f"{level(found)} {heading(found)}\n  see {node_id}"


def one_line(error: InputError) -> str:
    """Return what could not be read, on one line with its slug."""
    return clean(f"could not check ({error.slug}): {in_pytest_words(str(error))}")
