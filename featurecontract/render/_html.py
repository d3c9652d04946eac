"""HTML: one file without scripts or outside references, from a template; needs jinja2 (the ``html`` extra)."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from featurecontract.errors import InputError
from featurecontract.render._clean import clean
from featurecontract.render._predict_table import COLUMNS, SLOTS_NOTE, predict_table
from featurecontract.render._view import (
    diagnosis_lines,
    drafted_lines,
    entries,
    legend,
    predicted_text,
    replayed_rows,
    slot_rows,
    subject,
    summary,
)

if TYPE_CHECKING:
    from featurecontract.findings import Report

__all__ = ["render"]

MAX_FINDINGS = 500
MAX_RUNTIMES = 200


def render(report: Report, *, color: bool = False, kind: str = "check") -> str:
    """Return the page; raises InputError, on one line, when jinja2 is not installed."""
    del color
    try:
        from jinja2 import Environment, StrictUndefined
    except ImportError:
        raise InputError.single(
            "-o html", "needs jinja2, which is not installed", next_step="pip install 'featurecontract[html]'"
        ) from None
    source = Path(__file__).with_name("report.html.j2").read_text("utf-8")
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    predicting = kind == "predict"
    page = environment.from_string(source).render(
        title="prediction" if predicting else report.verdict,
        verdict="" if predicting else report.verdict,
        summary="" if predicting else str(summary(report)),
        subject=list(subject(report)),
        slots=[] if report.declared is None else slot_rows(report.declared),
        predicted=[] if predicting else _predicted(report),
        drafted=[] if predicting else drafted_lines(report),
        replayed=[] if predicting else replayed_rows(report),
        diagnosis=[] if predicting else diagnosis_lines(report),
        columns=COLUMNS,
        table=predict_table(report, bounded=False) if predicting else None,
        slots_note=SLOTS_NOTE,
        entries=[] if predicting else list(islice(entries(report), MAX_FINDINGS)),
        more=0 if predicting else max(0, len(report.findings) - MAX_FINDINGS),
        legend=[] if predicting else legend(report),
    )
    return page.rstrip("\n") + "\n"


def _predicted(report: Report) -> list[tuple[str, str]]:
    rows = [(clean(item.runtime, limit=80), predicted_text(item)) for item in report.predicted[:MAX_RUNTIMES]]
    more = len(report.predicted) - MAX_RUNTIMES
    return rows if more <= 0 else [*rows, (f"and {more} more", "")]
