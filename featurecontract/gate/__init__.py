"""The gate: reads the inputs, asks the rules, runs the one diff, returns a report."""

from featurecontract.gate._changes import prediction_changes
from featurecontract.gate._compare import compare_contracts
from featurecontract.gate._compose import compose_contract, pick_candidate
from featurecontract.gate._inputs import Inputs, load_inputs, query_of, refused, target_text
from featurecontract.gate._listing import json_schema, listing
from featurecontract.gate._run import check, check_inputs, predict, predict_inputs
from featurecontract.gate._write import write_contract

__all__ = [
    "Inputs",
    "check",
    "check_inputs",
    "compare_contracts",
    "compose_contract",
    "json_schema",
    "listing",
    "load_inputs",
    "pick_candidate",
    "predict",
    "predict_inputs",
    "prediction_changes",
    "query_of",
    "refused",
    "target_text",
    "write_contract",
]
