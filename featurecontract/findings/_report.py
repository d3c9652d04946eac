"""The report: one value that every output format renders."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from featurecontract.findings._verdict import EXIT_STATUS, Verdict, verdict_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from featurecontract.contract import Feature, Wiring
    from featurecontract.findings._diagnosis import Diagnosis
    from featurecontract.findings._drafted import Drafted
    from featurecontract.findings._finding import Finding
    from featurecontract.findings._replayed import Replayed

__all__ = ["REPORT_VERSION", "Predicted", "Report"]

REPORT_VERSION = "1.0"


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicted:
    """What one runtime would feed, or why it would not get that far.

    Attributes:
        runtime: ``NAME==VERSION``.
        wiring: The predicted wiring; None when there is no method, no rule, or no single answer.
        alternatives: Wirings by target architecture, where the rule depends on one that nobody named.
        key: The config key that gave the ids, or ``default``.
        ids: The raw ids at that key.
        shift: What the runtime adds to an id to get a boundary; None for a default list.
        steps: The resolver's trace, one line for each decision.
        crash: When it dies: ``at load`` or ``at the first request``; empty when it runs.
        crash_message: The text that the user will see.
        reason: Why there is no wiring.
        sources: Where the rules were read.
    """

    runtime: str
    wiring: Wiring | None = None
    alternatives: Mapping[str, Wiring] = field(default_factory=dict)
    key: str = ""
    ids: tuple[int, ...] | None = None
    shift: int | None = None
    steps: tuple[str, ...] = ()
    crash: str = ""
    crash_message: str = ""
    reason: str = ""
    sources: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotReading:
    """What one captured slot was found to be: similarity and margin behind it, confidence 0..1, the runner-up."""

    slot: int
    feature: Feature
    similarity: float = 0.0
    margin: float = 0.0
    confidence: float = 0.0
    runner_up: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """One observation: the wiring that was fed in a phase of a capture, and what is wrong with its rows.

    Attributes:
        phase: Such as ``prefill`` or ``decode``; empty when nobody said.
        point: The capture point.
        wiring: The observed wiring.
        slots: One reading for each slot.
        findings: What is wrong with rows and single slots; the wiring is judged by the diff.
        rows: Rows that were compared.
        source: The capture's path.
        runtime: What the capturing process called itself.
    """

    phase: str
    point: str
    wiring: Wiring
    slots: tuple[SlotReading, ...]
    findings: tuple[Finding, ...] = ()
    rows: int = 0
    source: str = ""
    runtime: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Everything that one run compared and found.

    ``compared`` counts the statements that were compared: a report that compared nothing never passes.
    """

    checkpoint: str
    contract_path: str | None = None
    contract_sha256: str | None = None
    target: str | None = None
    declared: Wiring | None = None
    num_hidden_layers: int | None = None
    predicted: tuple[Predicted, ...] = ()
    observed: tuple[Observed, ...] = ()
    replayed: tuple[Replayed, ...] = ()
    drafted: tuple[Drafted, ...] = ()
    search: Mapping[str, Any] | None = None
    diagnosis: Diagnosis | None = None
    findings: tuple[Finding, ...] = ()
    compared: int = 0
    strict: bool = False

    @property
    def verdict(self) -> Verdict:
        """pass, fail or could-not-check; a diagnosis that is undecided could not check, whatever speaks for a fault."""
        if self.diagnosis is not None and self.diagnosis.cause == "undecided":
            return "could-not-check"
        return verdict_of(self.findings, compared=self.compared, strict=self.strict)

    @property
    def exit_status(self) -> int:
        """0 holds, 1 violated, 2 could not check."""
        return EXIT_STATUS[self.verdict]

    @property
    def prediction_status(self) -> int:
        """0 when every runtime that was asked for is in the prediction, a crash being a result; else 2."""
        answered = {item.runtime for item in self.predicted}
        lost = any(item.slug == "runtime-unknown" and item.runtime not in answered for item in self.findings)
        return EXIT_STATUS["could-not-check"] if lost or not self.predicted else 0
