"""GitHub workflow commands: one annotation per finding.

Escapes as the runner undoes them (actions/toolkit, packages/core/src/command.ts): ``% CR LF`` in the message, these and
``: ,`` in a property.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from featurecontract.render._clean import clean, clean_block
from featurecontract.render._values import place_text
from featurecontract.render._view import is_failing, ordered, summary

if TYPE_CHECKING:
    from collections.abc import Iterator

    from featurecontract.findings import Finding, Report

__all__ = ["render"]

MAX_ANNOTATIONS = 50


def render(report: Report, *, color: bool = False, kind: str = "check") -> str:
    """Return the workflow commands, then the verdict as a plain line."""
    del color
    lines = [_command(item, report) for item in islice(ordered(report), MAX_ANNOTATIONS)]
    more = len(report.findings) - MAX_ANNOTATIONS
    if more > 0:
        lines.append(f"::notice title=featurecontract::and {more} more findings")
    if report.diagnosis is not None:
        lines.append(f"featurecontract: {clean(report.diagnosis.sentence)}")
    lines.append(_predictions(report) if kind == "predict" else f"featurecontract: {summary(report)}")
    return "\n".join(lines) + "\n"


def _predictions(report: Report) -> str:
    return f"featurecontract: {len(report.predicted)} prediction(s), {len(report.findings)} finding(s)"


def _command(item: Finding, report: Report) -> str:
    level = "error" if item.unchecked or is_failing(item, report) else _LEVELS[item.severity]
    file = clean(report.contract_path or report.checkpoint, limit=400)
    title = f"{item.rule} {item.slug}"
    return f"::{level} file={_property(file)},title={_property(title)}::{_message(_body(item))}"


_LEVELS = {"error": "error", "warning": "warning", "note": "notice"}


def _body(item: Finding) -> str:
    return "\n".join(_body_lines(item))


def _body_lines(item: Finding) -> Iterator[str]:
    place = place_text(item)
    yield clean(item.message) + (f" ({place})" if place else "")
    if item.cause:
        yield f"likely cause: {clean(item.cause)}"
    if item.next_step:
        yield clean_block(item.next_step)


def _message(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _message(text).replace(":", "%3A").replace(",", "%2C")
