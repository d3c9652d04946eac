"""JSON: one object with the public keys; `report_schema` describes it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from featurecontract.findings import REPORT_VERSION
from featurecontract.render._clean import json_value
from featurecontract.render._view import ordered

if TYPE_CHECKING:
    from featurecontract.contract import Wiring
    from featurecontract.findings import Diagnosis, Drafted, Estimate, Finding, Observed, Predicted, Replayed, Report

__all__ = ["finding_object", "render", "report_object"]


def render(report: Report, *, color: bool = False, kind: str = "check") -> str:
    """Return the report as one JSON object, ASCII only, so that no terminal obeys what a file said."""
    del color
    return json.dumps(report_object(report, kind=kind), indent=2, allow_nan=False) + "\n"


def report_object(report: Report, *, kind: str = "check") -> dict[str, Any]:
    """Return the object that is printed; a prediction has a status and no verdict."""
    out: dict[str, Any] = {"report_version": REPORT_VERSION}
    if kind == "predict":
        out["exit_status"] = report.prediction_status
    else:
        out |= {"verdict": report.verdict, "exit_status": report.exit_status}
    if report.contract_path is not None:
        out["contract"] = {"path": report.contract_path, "sha256": report.contract_sha256}
    if report.declared is not None:
        out["declared"] = wiring_object(report.declared)
    if report.predicted:
        out["predicted"] = {item.runtime: _predicted_object(item) for item in report.predicted}
    if report.observed:
        out["observed"] = [_observed_object(item) for item in report.observed]
    if report.drafted:
        out["drafted"] = [_drafted_object(item) for item in report.drafted]
    if report.replayed:
        out["replayed"] = [_replayed_object(item) for item in report.replayed]
    if report.search is not None:
        out["search"] = dict(report.search)
    if report.diagnosis is not None:
        out["diagnosis"] = _diagnosis_object(report.diagnosis)
    # The lists of slots and findings are complete; what hangs from them is bounded one by one.
    return {key: _bounded(value) for key, value in out.items()} | {
        "findings": [finding_object(item) for item in ordered(report)]
    }


def _bounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(json_value(key)): _bounded(item) for key, item in value.items()}
    return [_bounded(item) for item in value] if isinstance(value, list) else json_value(value)


def wiring_object(wiring: Wiring) -> dict[str, Any]:
    """Return a wiring; ``columns`` are ``[start, stop]`` in the projection's input, or null."""
    start: int | None = 0
    features: list[dict[str, Any]] = []
    for item in wiring.features:
        stop = None if start is None or item.dim is None else start + item.dim
        features.append(
            {
                "slot": item.slot,
                "boundary": item.boundary,
                "state": item.state,
                "source": item.source,
                "dim": item.dim,
                "columns": None if stop is None else [start, stop],
                "row_offset": item.row_offset,
                "scale": item.scale,
                "reduction": item.reduction,
                "streams": item.streams,
                "name": str(item),
            }
        )
        start = stop
    return {
        "features": features,
        "width": wiring.width,
        "pre_norm": wiring.pre_norm,
        "recurrent_state": wiring.recurrent_state,
        "norm_before_residual": wiring.norm_before_residual,
        "bias": wiring.bias,
    }


def _predicted_object(item: Predicted) -> dict[str, Any]:
    out: dict[str, Any] = {} if item.wiring is None else wiring_object(item.wiring)
    optional = {
        "alternatives": {name: wiring_object(wiring) for name, wiring in item.alternatives.items()},
        "key": item.key,
        "ids": None if item.ids is None else list(item.ids),
        "shift": item.shift,
        "steps": list(item.steps),
        "crash": item.crash,
        "crash_message": item.crash_message,
        "reason": item.reason,
        "sources": list(item.sources),
    }
    # An empty list of ids and a shift of 0 are statements; an empty text is not.
    return out | {key: value for key, value in optional.items() if value or value == 0 or (key, value) == ("ids", [])}


def _observed_object(item: Observed) -> dict[str, Any]:
    """Return an observation: its wiring, each feature with the number and the margin behind it."""
    out = wiring_object(item.wiring)
    readings = {reading.slot: reading for reading in item.slots}
    for feature in out["features"]:
        reading = readings.get(feature["slot"])
        if reading is not None:
            feature |= {
                "confidence": round(reading.confidence, 4),
                "similarity": round(reading.similarity, 4),
                "margin": round(reading.margin, 4),
                "runner_up": reading.runner_up,
            }
    about = {"capture": item.source, "runtime": item.runtime, "phase": item.phase, "point": item.point}
    return about | {"rows": item.rows} | out


def _drafted_object(item: Drafted) -> dict[str, Any]:
    """Return a capture's drafts: counts by step, and what they say; ``reason`` is null where something was compared."""
    steps = [
        {
            "step": step.step,
            "compared": step.compared,
            "equal": step.equal,
            "near_ties": step.near_ties,
            "differing": step.differing,
        }
        for step in item.steps
    ]
    return {
        "capture": item.source,
        "runtime": item.runtime,
        "phases": list(item.phases),
        "point": item.point or None,
        "dtype": item.dtype or None,
        "rounds": item.rounds,
        "compared": item.compared,
        "equal": item.equal,
        "near_ties": item.near_ties,
        "differing": item.differing,
        "steps": steps,
        "skipped": dict(item.skipped),
        "reason": item.reason or None,
        "step": item.step,
        "class": item.step_class or None,
        "explained_by": item.explained_by or None,
        "notes": list(item.notes),
    }


def _replayed_object(item: Replayed) -> dict[str, Any]:
    """Return a replayed wiring: its features, and its figures with their intervals."""
    about = {"declared": item.declared, "states": item.source, "sequences": item.sequences, "rows": item.rows}
    figures: dict[str, Any] = {
        "accuracy": [_estimate_object(figure) for figure in item.accuracy],
        "agreement": [_estimate_object(figure) for figure in item.agreement] or None,
        "acceptance_length": None if item.acceptance_length is None else _estimate_object(item.acceptance_length),
    }
    if item.log_likelihood is not None:
        figures["log_likelihood"] = item.log_likelihood
    return about | figures | wiring_object(item.wiring)


def _diagnosis_object(item: Diagnosis) -> dict[str, Any]:
    return {
        "cause": item.cause,
        "sentence": item.sentence,
        "also": list(item.also),
        "evidence": [{"name": part.name, "ran": part.ran, "text": part.text} for part in item.evidence],
        "missing": list(item.missing),
    }


def _estimate_object(item: Estimate) -> dict[str, Any]:
    interval = None if item.low is None or item.high is None else [round(item.low, 6), round(item.high, 6)]
    return {"value": round(item.value, 6), "interval": interval, "samples": item.samples}


def finding_object(item: Finding) -> dict[str, Any]:
    """Return a finding; every key is always there."""
    return {
        "rule": item.rule,
        "slug": item.slug,
        "severity": item.severity,
        "runtime": json_value(item.runtime),
        "slots": list(item.slots),
        "columns": [list(span) for span in item.columns],
        "rows": None if item.rows is None else [list(span) for span in item.rows],
        "expected": json_value(item.expected),
        "actual": json_value(item.actual),
        "details": json_value(dict(item.details)),
        "message": json_value(item.message),
        "cause": json_value(item.cause),
        "next_step": json_value(item.next_step),
        "source": json_value(item.source),
        "unchecked": item.unchecked,
    }
