"""What every format for people shows, in the order in which it is shown; the formats only lay it out."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from featurecontract.contract import spell
from featurecontract.findings import verdict_of
from featurecontract.render._clean import capped, clean, clean_block
from featurecontract.render._values import (
    MAX_SLOTS,
    details_text,
    dims_text,
    place_text,
    ranges_text,
    value_text,
    wiring_text,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from featurecontract.contract import Wiring
    from featurecontract.findings import Drafted, Estimate, Finding, Observed, Predicted, Report

__all__ = [
    "Entry",
    "Summary",
    "diagnosis_lines",
    "drafted_lines",
    "entries",
    "heading",
    "is_failing",
    "legend",
    "level",
    "observed_text",
    "ordered",
    "predicted_text",
    "replayed_rows",
    "search_rows",
    "search_text",
    "slot_rows",
    "subject",
    "summary",
]

MAX_ALTERNATIVES = 8
MAX_LEGEND = 16
MAX_REPLAYED = 50
CAVEAT = (
    "what a runtime makes of an id also depends on its version, the target and the list: "
    "write the ids that a next step names"
)
LEVELS = ("error", "could not check", "warning", "note")


@dataclass(frozen=True, slots=True)
class Entry:
    """A finding as labelled lines; a line may hold line breaks (a next step to paste)."""

    level: str
    heading: str
    lines: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Summary:
    """The verdict and counts that add up to the number of findings."""

    verdict: str
    exit_status: int
    counts: tuple[tuple[str, int], ...]
    compared: int
    strict: bool

    def __str__(self) -> str:
        """Return the verdict line."""
        total = sum(count for _, count in self.counts)
        listed = ", ".join(_counted(count, word) for word, count in self.counts)
        strict = "; --strict counts warnings as errors" if self.strict else ""
        return (
            f"{self.verdict}, exit status {self.exit_status}: {_counted(total, 'finding')} ({listed}); "
            f"{_counted(self.compared, 'statement')} compared{strict}"
        )


def _counted(count: int, word: str) -> str:
    return f"{count} {word}" if count == 1 or word == "could not check" else f"{count} {word}s"


def level(item: Finding) -> str:
    """Return the word in front of a finding: its severity, or ``could not check``."""
    return "could not check" if item.unchecked else item.severity


def is_failing(item: Finding, report: Report) -> bool:
    """Whether this finding alone would fail the report."""
    return verdict_of((item,), compared=1, strict=report.strict) == "fail"


def ordered(report: Report) -> list[Finding]:
    """Return the findings, the gravest first, else in the order in which they were found."""
    return sorted(report.findings, key=lambda item: LEVELS.index(level(item)))


def summary(report: Report) -> Summary:
    """Count the findings by level."""
    found = Counter(level(item) for item in report.findings)
    return Summary(
        verdict=report.verdict,
        exit_status=report.exit_status,
        counts=tuple((name, found[name]) for name in LEVELS),
        compared=report.compared,
        strict=report.strict,
    )


def heading(item: Finding) -> str:
    """Return ``FC304 embedding-missing: The embedding is not fed``."""
    return f"{item.rule} {item.slug}: {item.title}"


def entries(report: Report) -> Iterator[Entry]:
    """Yield the findings in order, each with its lines in the order: place, contract, actual, cause, next step."""
    static = {item.runtime for item in report.predicted}
    for item in ordered(report):
        yield Entry(level(item), heading(item), tuple(_lines(item, static)))


def _lines(item: Finding, static: set[str]) -> Iterator[tuple[str, str]]:
    if place := place_text(item):
        yield "place", place
    yield "what", clean(item.message)
    if item.expected is not None:
        yield "contract says", value_text(item.expected)
    details = details_text(item.details)
    if item.actual is not None:
        word = "found" if item.runtime is None else "predicted" if item.runtime in static else "observed"
        yield word, value_text(item.actual) + (f" ({details})" if details else "")
    elif details:
        yield "details", details
    if item.cause:
        yield "likely cause", clean(item.cause)
    if item.next_step:
        yield "next step", clean_block(item.next_step)


def subject(report: Report) -> Iterator[tuple[str, str]]:
    """Yield the labelled lines above the findings; slots and predictions stand apart."""
    yield "checkpoint", clean(report.checkpoint, limit=400)
    if report.contract_path is not None:
        short = f" (sha256 {clean(report.contract_sha256, limit=80)[:12]})" if report.contract_sha256 else ""
        yield "contract", clean(report.contract_path, limit=400) + short
    if report.target is not None:
        yield "target", clean(report.target, limit=400)
    if report.declared is not None:
        dims = dims_text(report.declared)
        yield "declared", wiring_text(report.declared) + (f": {dims}" if dims else "")


def slot_rows(wiring: Wiring) -> list[tuple[str, str, str]]:
    """Return ``("slot 1", "[7168:14336]", "h[3]")`` for each slot, capped."""
    rows = [
        (f"slot {item.slot}", ranges_text((span,)) if (span := wiring.columns(item.slot)) else "", clean(item))
        for item in wiring.features[:MAX_SLOTS]
    ]
    more = len(wiring.features) - MAX_SLOTS
    return rows if more <= 0 else [*rows, (f"and {more} more", "", "")]


def predicted_text(item: Predicted) -> str:
    """Return what a runtime would feed, and from which ids, or why it would feed nothing."""
    parts = []
    if item.wiring is not None:
        parts.append(wiring_text(item.wiring) + origin_text(item))
    if item.alternatives:
        shown = [f"{clean(name, limit=80)}: {wiring_text(wiring)}" for name, wiring in item.alternatives.items()]
        parts.append("it could be: " + capped(shown, MAX_ALTERNATIVES, separator=" | "))
    if item.crash:
        parts.append(crash_text(item))
    if item.reason:
        parts.append(clean(item.reason, limit=400))
    return "; ".join(parts) or "no wiring"


def observed_text(item: Observed) -> str:
    """Return what was fed in a phase, with the least confidence of its slots and the rows behind it."""
    sure = min((reading.confidence for reading in item.slots), default=0.0)
    where = f"{clean(item.phase, limit=40)}, " if item.phase else ""
    about = f"({where}{clean(item.point, limit=40)}; {item.rows} rows; confidence at least {sure:.2f})"
    return f"{wiring_text(item.wiring)} {about}"


def replayed_rows(report: Report) -> list[tuple[str, ...]]:
    """Return the replayed wirings as a table with its heading: each step's figure with its interval, the length."""
    items = report.replayed[:MAX_REPLAYED]
    if not items:
        return []
    steps = max(len(item.measure) for item in items)
    rows = [("wiring", *(f"step {step}" for step in range(1, steps + 1)), "acceptance length", "rows")]
    for item in items:
        cells = [estimate_text(figure, percent=True) for figure in item.measure]
        length = "" if item.acceptance_length is None else estimate_text(item.acceptance_length)
        name = wiring_text(item.wiring) + (" (declared)" if item.declared else "")
        rows.append((name, *cells, *[""] * (steps - len(cells)), length, str(item.rows)))
    return rows


def diagnosis_lines(report: Report) -> list[tuple[str, str]]:
    """Return the evidence, what would settle more, further causes, and last the sentence; nothing without one."""
    found = report.diagnosis
    if found is None:
        return []
    lines = [(item.name, ("" if item.ran else "not run: ") + clean(item.text)) for item in found.evidence]
    lines += [("provide", clean(text)) for text in found.missing]
    lines += [("also", clean(text)) for text in found.also]
    return [*lines, ("diagnosis", clean(found.sentence))]


def drafted_lines(report: Report) -> list[str]:
    """Return a line for each capture that was to be drafted again: counts by step, or why there are none."""
    lines = [_drafted_text(item) for item in report.drafted[:MAX_REPLAYED]]
    more = len(report.drafted) - MAX_REPLAYED
    return lines if more <= 0 else [*lines, f"and {more} more"]


def _drafted_text(item: Drafted) -> str:
    phases = ", ".join(clean(phase, limit=40) for phase in item.phases[:MAX_SLOTS] if phase)
    where = clean(item.runtime or "capture", limit=80) + (f" {phases}" if phases else "")
    if not item.compared:
        return f"{where}: draft tokens not compared: {clean(item.reason, limit=400)}"
    steps = ", ".join(f"step {step.step}: {step.equal} of {step.compared}" for step in item.steps[:MAX_SLOTS])
    said = f"{item.equal} of {item.compared} draft tokens are what the weights draft on the same rows ({steps}"
    said += f"; {_counted(item.rounds, 'round')})"
    if item.near_ties:
        said += f", {item.near_ties} differ at a near tie"
    if item.differing:
        said += f", {item.differing} differ"
    if item.step is not None:
        said += f" from step {item.step} on: {clean(item.step_class, limit=80)}"
    if item.explained_by:
        said += f"; as with {clean(item.explained_by, limit=80)}"
    left = sum(item.skipped.values())
    if left:
        said += f"; {left} not compared: " + capped([clean(key, limit=120) for key in item.skipped], 3)
    return f"{where}: {said}"


def search_text(found: Mapping[str, Any]) -> tuple[str, str]:
    """Return what a search answers, and what it did."""
    winner = found["wiring"]
    sure = f"{found['margin']:.1f} standard errors ahead of the runner-up, confidence {found['confidence']:.3f}"
    by = "the target's distribution of the next token" if found["likelihood"] == "target" else "the text's next token"
    did = (
        f"{found['sequences']} sequences, {found['tokens']} tokens, by the likelihood of {by}; "
        f"{found['full_replays']} full replays, {found['screened']} of {found['possible']} wirings scored"
    )
    return (f"{winner}, {sure}" if winner else f"no winner; the first is {sure}"), did


def search_rows(found: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Return the wirings that a search replayed in full as a table with its heading, best first."""
    rows: list[tuple[str, ...]] = [("wiring", "log-likelihood", "behind, standard errors")]
    for item in found["ranking"]:
        margin = "" if item["margin"] is None else f"{item['margin']:.1f}"
        rows.append((item["wiring"], f"{item['log_likelihood']:.4f}", margin))
    return rows


def estimate_text(item: Estimate, *, percent: bool = False) -> str:
    """Return ``34.8 % [32.1, 37.5]``, or a plain number."""
    factor, digits, unit = (100, 1, " %") if percent else (1, 2, "")
    text = f"{item.value * factor:.{digits}f}{unit}"
    if item.low is None or item.high is None:
        return text
    return f"{text} [{item.low * factor:.{digits}f}, {item.high * factor:.{digits}f}]"


def crash_text(item: Predicted) -> str:
    """Return ``crash at the first request: TypeError ...``."""
    message = f": {clean(item.crash_message, limit=400)}" if item.crash_message else ""
    return f"crash {clean(item.crash, limit=80)}{message}"


def origin_text(item: Predicted) -> str:
    if item.key == "default":
        return " (the runtime's default)"
    if item.ids is None:
        return f" (from {clean(item.key, limit=80)})" if item.key else ""
    shift = "" if item.shift is None else f", boundary = id{_signed(item.shift)}"
    reason = next((step.partition(" because ")[2] for step in item.steps if " because " in step), "")
    shift += f" because {clean(reason, limit=80)}" if reason and shift else ""
    return f" ({clean(item.key, limit=80)} = [{capped([str(i) for i in item.ids], MAX_SLOTS)}]{shift})"


def _signed(shift: int) -> str:
    return f" {'+' if shift > 0 else '-'} {abs(shift)}" if shift else ""


def legend(report: Report) -> list[str]:
    """Return the boundaries that appear in findings, each once, in the spelling of every tool."""
    found = {
        boundary
        for item in report.findings
        for value in (item.expected, item.actual)
        for boundary in _boundaries(value)
    }
    listed = sorted(found)
    lines = [spell(boundary, num_hidden_layers=report.num_hidden_layers) for boundary in listed[:MAX_LEGEND]]
    more = len(listed) - MAX_LEGEND
    lines += [f"and {more} more"] if more > 0 else []
    return [*lines, CAVEAT] if lines else []


def _boundaries(value: Any) -> Iterator[int]:
    if isinstance(value, (list, tuple)):
        for item in value:
            boundary = item.get("boundary") if isinstance(item, dict) else None
            if isinstance(boundary, int) and not isinstance(boundary, bool) and 0 <= boundary < MAX_BOUNDARY:
                yield boundary


# Deeper targets do not exist; a larger number comes from a broken file and needs no spelling.
MAX_BOUNDARY = 100_000
