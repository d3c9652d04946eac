"""Runtimes: how each turns a checkpoint into a wiring, as data with version ranges and sources."""

from featurecontract.runtimes._express import Spelled, express, express_from
from featurecontract.runtimes._format import RULES_FORMAT, RuntimeRules, parse_rules, read_rules
from featurecontract.runtimes._query import Case, Crash, Query, Resolution
from featurecontract.runtimes._registry import NAMES, RuntimeChoice, choose, rules_of, runtime_names, unknown_runtime
from featurecontract.runtimes._resolve import resolve
from featurecontract.runtimes._schema import rules_schema
from featurecontract.runtimes._versions import in_range, parse_version

__all__ = [
    "NAMES",
    "RULES_FORMAT",
    "Case",
    "Crash",
    "Query",
    "Resolution",
    "RuntimeChoice",
    "RuntimeRules",
    "Spelled",
    "choose",
    "express",
    "express_from",
    "in_range",
    "parse_rules",
    "parse_version",
    "read_rules",
    "resolve",
    "rules_of",
    "rules_schema",
    "runtime_names",
    "unknown_runtime",
]
