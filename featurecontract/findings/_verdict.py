"""Findings -> verdict -> exit status; the only place that decides."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Iterable

    from featurecontract.findings._finding import Finding

__all__ = ["EXIT_STATUS", "Verdict", "verdict_of"]

Verdict = Literal["pass", "fail", "could-not-check"]
EXIT_STATUS: dict[Verdict, int] = {"pass": 0, "fail": 1, "could-not-check": 2}


def verdict_of(findings: Iterable[Finding], *, compared: int, strict: bool = False) -> Verdict:
    """Decide a verdict.

    Any error fails; else anything that could not be checked, or nothing compared at all, is ``could-not-check``;
    else it passes. ``strict`` counts warnings as errors.
    """
    listed = list(findings)
    failing = {"error", "warning"} if strict else {"error"}
    if any(item.severity in failing and not item.unchecked for item in listed):
        return "fail"
    if any(item.unchecked for item in listed) or compared == 0:
        return "could-not-check"
    return "pass"
