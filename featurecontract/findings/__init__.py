"""Findings: the rules, the one diff, the verdict and the report that every output renders."""

from featurecontract.findings._catalogue import Rule, catalogue, rule_for
from featurecontract.findings._diagnosis import CAUSES, Cause, Diagnosis, Evidence
from featurecontract.findings._diff import diff, feature_values
from featurecontract.findings._drafted import Drafted, DraftedStep
from featurecontract.findings._finding import Finding, Severity, finding
from featurecontract.findings._replayed import Estimate, Replayed
from featurecontract.findings._report import REPORT_VERSION, Observed, Predicted, Report, SlotReading
from featurecontract.findings._verdict import EXIT_STATUS, Verdict, verdict_of

__all__ = [
    "CAUSES",
    "EXIT_STATUS",
    "REPORT_VERSION",
    "Cause",
    "Diagnosis",
    "Drafted",
    "DraftedStep",
    "Estimate",
    "Evidence",
    "Finding",
    "Observed",
    "Predicted",
    "Replayed",
    "Report",
    "Rule",
    "Severity",
    "SlotReading",
    "Verdict",
    "catalogue",
    "diff",
    "feature_values",
    "finding",
    "rule_for",
    "verdict_of",
]
