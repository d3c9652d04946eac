"""What is left of a session: the JSON report in its file, and the lines of the terminal summary."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from featurecontract.contract import atomic_write
from featurecontract.plugin._texts import block
from featurecontract.render._view import is_failing

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from featurecontract.plugin._check import Check

__all__ = ["MAX_NOTICES", "notices_of", "write_report"]

MAX_NOTICES = 20


def notices_of(check: Check) -> list[str]:
    """Return what was not compared, and each warning that fails no test; at most 20."""
    shown = [
        block(report, item)
        for report in check.computed.values()
        for item in report.findings
        if item.severity == "warning" and not item.unchecked and not is_failing(item, report)
    ]
    said = [*check.remarks, *shown[:MAX_NOTICES]]
    if len(shown) > MAX_NOTICES:
        said.append(f"and {len(shown) - MAX_NOTICES} more warnings; --feature-contract-report lists every one")
    return said


def write_report(path: Path, reports: Sequence[dict[str, Any]]) -> str:
    """Write one report as an object, several as a list; return what went wrong, empty when nothing did."""
    value = reports[0] if len(reports) == 1 else list(reports)
    try:
        with atomic_write(path) as stream:
            stream.write(json.dumps(value, indent=2, allow_nan=False).encode() + b"\n")
    except OSError as error:
        return f"the report could not be written to {path} ({error.strerror or error}); name another file"
    return ""
