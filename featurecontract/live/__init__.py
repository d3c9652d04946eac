"""Live runs: start the installed runtime in a process of its own, phase by phase, and verify what it feeds.

The runtime's library is imported only there; this process needs torch, the contract and its probe.
"""

from __future__ import annotations

from featurecontract.live._phases import LIVE_RUNTIMES, PhaseResult, phases
from featurecontract.live._report import live_report
from featurecontract.live._run import run_live

__all__ = ["LIVE_RUNTIMES", "PhaseResult", "live_report", "phases", "run_live"]
