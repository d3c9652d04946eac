"""``predict --changes``: keep only the predictions that differ, each beside the one before it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from featurecontract.findings import Predicted, Report

__all__ = ["prediction_changes"]


def prediction_changes(report: Report) -> Report:
    """Return the report without the runtimes that feed the same as the one before them; what was not answered stays."""
    kept: list[Predicted] = []
    for before, after in zip(report.predicted, report.predicted[1:], strict=False):
        if _result(before) != _result(after):
            kept += [item for item in (before, after) if item not in kept]
    names = {item.runtime for item in kept}
    answered = {item.runtime for item in report.predicted}
    return replace(
        report,
        predicted=tuple(kept),
        findings=tuple(
            item for item in report.findings if item.runtime in names or (item.runtime and item.runtime not in answered)
        ),
    )


def _result(item: Predicted) -> tuple[Any, ...]:
    return (item.wiring, item.crash, item.reason if item.wiring is None else "", tuple(item.alternatives.items()))
