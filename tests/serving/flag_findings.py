"""A short form of findings about flags, for comparing."""

from __future__ import annotations


def short(findings):
    return [
        (item.severity, item.slug, item.details["parameter"], item.details["requested"], item.details["effective"])
        for item in findings
    ]
