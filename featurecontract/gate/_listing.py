"""What the listing commands print: rules, runtimes, dialects, schemas."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

__all__ = ["json_schema", "listing"]


def listing(what: str) -> list[dict[str, str]]:
    """Return rows of ``rules``, ``runtimes`` or ``dialects``."""
    if what == "runtimes":
        from featurecontract.runtimes import NAMES, rules_of

        rows = []
        for name in NAMES:
            rules = rules_of(name)
            known = rules.snapshot or f"{rules.oldest} to {rules.newest}"
            rows.append({"name": name, "versions": known, "source": rules.source})
        return rows
    if what == "dialects":
        from featurecontract.dialects import FAMILIES

        return [{"code": f.code, "name": f.name, "trainer": f.trainer or "-"} for f in FAMILIES]
    from featurecontract.findings import catalogue

    return [
        {"rule": r.rule, "slug": r.slug, "severity": "could not check" if r.unchecked else r.severity, "title": r.title}
        for r in catalogue().values()
    ]


def contract_schema() -> Path:
    """Return the file of the contract's schema."""
    return Path(__file__).parents[1] / "contract" / "schema" / "feature_contract-1.schema.json"


def json_schema(which: str) -> dict[str, Any]:
    """Return a published JSON Schema: ``contract``, ``report`` or ``rules``."""
    if which == "report":
        from featurecontract.render import report_schema

        return report_schema()
    if which == "rules":
        from featurecontract.runtimes import rules_schema

        return rules_schema()
    text = contract_schema().read_text("utf-8")
    schema: dict[str, Any] = json.loads(text)
    return schema
