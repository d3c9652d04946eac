"""What is run live: the runtimes that can be started, and the phases of each, known before anything is started."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from featurecontract.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

__all__ = ["ENGINES", "LIVE_RUNTIMES", "PhaseResult", "engine_module", "phases"]

#: The module that runs as the engine's process, and the phases it runs, in order.
ENGINES: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "vllm": ("featurecontract.live.vllm_engine", ("prefill", "chunked", "batch", "prefix-hit", "decode", "drafts")),
    "sglang": ("featurecontract.live.sglang_engine", ("prefill", "batch", "prefix-hit", "chunked", "decode", "drafts")),
}
LIVE_RUNTIMES = tuple(ENGINES)


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseResult:
    """One phase of a live run.

    Attributes:
        phase: One of ``phases(name)``.
        captures: The capture files (JSON) of this phase; empty where there is a problem.
        problem: One line that says why the phase could not be run, empty when it was.
        log: The engine's whole output.
        notes: What is worth knowing: the version, the resolved ids, rows from a cache.
    """

    phase: str
    captures: tuple[Path, ...] = ()
    problem: str = ""
    log: Path | None = None
    notes: tuple[str, ...] = ()


def phases(name: str) -> tuple[str, ...]:
    """Return the phases of a runtime, in the order in which they run.

    Raises:
        UsageError: nobody here knows how to start that runtime.
    """
    return _entry(name)[1]


def engine_module(name: str) -> str:
    """Return the dotted name of the module that runs a runtime's engine; raises UsageError as ``phases``."""
    return _entry(name)[0]


def _entry(name: str) -> tuple[str, tuple[str, ...]]:
    if name not in ENGINES:
        raise UsageError(f"{name!r} cannot be started here (live runtimes: {', '.join(LIVE_RUNTIMES)})")
    return ENGINES[name]
