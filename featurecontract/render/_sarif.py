"""SARIF 2.1.0 (OASIS standard), as code-scanning services read it: one run, one result per finding."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from featurecontract._version import __version__
from featurecontract.findings import rule_for
from featurecontract.render._clean import clean, clean_block, json_value
from featurecontract.render._json import finding_object
from featurecontract.render._view import is_failing, ordered

if TYPE_CHECKING:
    from featurecontract.findings import Finding, Report, Rule

__all__ = ["render"]

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
# GitHub reads at most this many results of a run.
MAX_RESULTS = 25_000
_PROPERTIES = ("runtime", "slots", "columns", "rows", "expected", "actual", "details", "cause", "source", "unchecked")


def render(report: Report, *, color: bool = False, kind: str = "check") -> str:
    """Return the log; its only location is the contract, or the checkpoint where there is none."""
    del color
    found = ordered(report)[:MAX_RESULTS]
    slugs = list(dict.fromkeys(item.slug for item in found))
    run: dict[str, Any] = {
        "tool": {
            "driver": {
                "name": "featurecontract",
                "version": __version__,
                "rules": [_rule(rule_for(slug)) for slug in slugs],
            }
        },
        "columnKind": "unicodeCodePoints",
        "invocations": [
            {
                "executionSuccessful": True,
                "exitCode": report.prediction_status if kind == "predict" else report.exit_status,
            },
        ],
        "results": [_result(item, slugs.index(item.slug), report) for item in found],
    }
    if kind != "predict":
        run["properties"] = {"verdict": report.verdict, "compared": report.compared}
        if report.diagnosis is not None:
            run["properties"]["diagnosis"] = clean(report.diagnosis.sentence)
    return json.dumps({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2, allow_nan=False) + "\n"


def _rule(rule: Rule) -> dict[str, Any]:
    out: dict[str, Any] = {
        "id": rule.rule,
        "name": rule.slug,
        "shortDescription": {"text": rule.title},
        "defaultConfiguration": {"level": rule.severity},
        "properties": {"group": rule.group},
    }
    if rule.text:
        out["fullDescription"] = {"text": rule.text}
    return out


def _result(item: Finding, index: int, report: Report) -> dict[str, Any]:
    path = clean(report.contract_path or report.checkpoint, limit=400).replace("\\", "/")
    text = clean(item.message)
    if item.next_step:
        text += "\n" + clean_block(item.next_step)
    values = finding_object(item)
    names = [{"name": f"slot-{slot}", "kind": "member"} for slot in item.slots[:100]]
    location: dict[str, Any] = {"physicalLocation": {"artifactLocation": {"uri": quote(path)}}}
    if names:
        location["logicalLocations"] = names
    place = json.dumps(json_value([item.rule, item.runtime, list(item.slots), path]))
    return {
        "ruleId": item.rule,
        "ruleIndex": index,
        "level": "error" if is_failing(item, report) else item.severity,
        "message": {"text": text},
        "locations": [location],
        "partialFingerprints": {"place/v1": hashlib.sha256(place.encode()).hexdigest()},
        "properties": {key: values[key] for key in _PROPERTIES},
    }
