"""Rendering: one report, one file per output format; a format's module is imported when it is asked for."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from featurecontract.errors import UsageError
from featurecontract.render._clean import clean
from featurecontract.render._contract import describe_contract
from featurecontract.render._plot import check_plot, plot_replayed

if TYPE_CHECKING:
    from featurecontract.findings import Report

__all__ = ["FORMATS", "KINDS", "check_plot", "clean", "describe_contract", "plot_replayed", "render", "report_schema"]

FORMATS: tuple[str, ...] = ("text", "json", "junit", "github", "markdown", "sarif", "html")
KINDS: tuple[str, ...] = ("check", "predict")


def render(report: Report, fmt: str, *, color: bool = False, kind: str = "check") -> str:
    """Return a report in one of `FORMATS`, ending with a newline.

    Args:
        report: The report; every format shows the same one.
        fmt: One of `FORMATS`.
        color: Whether ``text`` may hold ANSI colours; whether a stream wants them is the caller's to know.
        kind: ``check`` for a report with a verdict, ``predict`` for one that only says what would be fed.

    Raises:
        UsageError: The format or the kind is not known.
        InputError: The format needs a library that is not installed.
    """
    if fmt not in FORMATS:
        raise UsageError(f"unknown output format {fmt[:40]!r}; choose one of {', '.join(FORMATS)}")
    if kind not in KINDS:
        raise UsageError(f"unknown kind of report {kind[:40]!r}; choose one of {', '.join(KINDS)}")
    module = import_module(f"featurecontract.render._{fmt}")
    return str(module.render(report, color=color, kind=kind))


def report_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of what ``json`` prints."""
    text = (Path(__file__).parent / "schema" / "report-1.schema.json").read_text("utf-8")
    schema: dict[str, Any] = json.loads(text)
    return schema
