"""Live runs: start the installed runtime in a process of its own, phase by phase, and verify what it feeds.

The runtime's library is imported only there; this process needs torch, the contract and its probe.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from featurecontract.live._options import options_from_file, options_from_text
    from featurecontract.live._phases import LIVE_RUNTIMES, PhaseResult, phases
    from featurecontract.live._reference import capture_reference
    from featurecontract.live._report import live_report
    from featurecontract.live._run import run_live
    from featurecontract.live._script import capture_script
    from featurecontract.live._serve import SERVED, capture_served

__all__ = [
    "LIVE_RUNTIMES",
    "SERVED",
    "PhaseResult",
    "capture_reference",
    "capture_script",
    "capture_served",
    "live_report",
    "options_from_file",
    "options_from_text",
    "phases",
    "run_live",
]

# pytest asks for the names of the phases at collection, which must not cost torch.
_HOMES = {
    "_options": ("options_from_file", "options_from_text"),
    "_phases": ("LIVE_RUNTIMES", "PhaseResult", "phases"),
    "_reference": ("capture_reference",),
    "_report": ("live_report",),
    "_run": ("run_live",),
    "_script": ("capture_script",),
    "_serve": ("SERVED", "capture_served"),
}


def __getattr__(name: str) -> Any:
    """Import a public name from its module on first use."""
    from importlib import import_module

    for module, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"featurecontract.live.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
