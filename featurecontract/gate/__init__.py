"""The gate: reads the inputs, asks the rules, runs the one diff, returns a report. Names are imported on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from featurecontract.gate._audit import audit_data
    from featurecontract.gate._changes import prediction_changes
    from featurecontract.gate._compare import compare_contracts
    from featurecontract.gate._compose import compose_contract, pick_candidate
    from featurecontract.gate._diagnose import Symptoms, diagnose
    from featurecontract.gate._drafts import Drafting, unreplayable
    from featurecontract.gate._inputs import Inputs, load_inputs, query_of, refused, target_text
    from featurecontract.gate._listing import json_schema, listing
    from featurecontract.gate._record import record, record_target
    from featurecontract.gate._recorded import RecordedTarget, write_recorded
    from featurecontract.gate._replay import ReplayOptions, replay
    from featurecontract.gate._run import check, check_inputs, predict, predict_inputs
    from featurecontract.gate._verify import verify, verify_captures
    from featurecontract.gate._write import write_contract

__all__ = [
    "Drafting",
    "Inputs",
    "RecordedTarget",
    "ReplayOptions",
    "Symptoms",
    "audit_data",
    "check",
    "check_inputs",
    "compare_contracts",
    "compose_contract",
    "diagnose",
    "json_schema",
    "listing",
    "load_inputs",
    "pick_candidate",
    "predict",
    "predict_inputs",
    "prediction_changes",
    "query_of",
    "record",
    "record_target",
    "refused",
    "replay",
    "target_text",
    "unreplayable",
    "verify",
    "verify_captures",
    "write_contract",
    "write_recorded",
]

# `check` is the command of a gate that runs at every deploy: it does not pay for what `init` and `diff` need.
_HOMES = {
    "_audit": ("audit_data",),
    "_changes": ("prediction_changes",),
    "_compare": ("compare_contracts",),
    "_compose": ("compose_contract", "pick_candidate"),
    "_diagnose": ("Symptoms", "diagnose"),
    "_drafts": ("Drafting", "unreplayable"),
    "_inputs": ("Inputs", "load_inputs", "query_of", "refused", "target_text"),
    "_listing": ("json_schema", "listing"),
    "_record": ("record", "record_target"),
    "_recorded": ("RecordedTarget", "write_recorded"),
    "_replay": ("ReplayOptions", "replay"),
    "_run": ("check", "check_inputs", "predict", "predict_inputs"),
    "_verify": ("verify", "verify_captures"),
    "_write": ("write_contract",),
}


def __getattr__(name: str) -> Any:
    """Import a public name from its module on first use."""
    from importlib import import_module

    for module, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"featurecontract.gate.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
