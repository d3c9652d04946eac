"""A finding: one thing that is wrong, or worth knowing, with its place and its next step."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from featurecontract.findings._catalogue import rule_for

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Finding", "Severity", "finding"]

Severity = Literal["error", "warning", "note"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One explained difference.

    Attributes:
        rule: Rule id such as ``FC301``; stable.
        slug: The rule's short name such as ``layer-shift``; stable.
        severity: error, warning or note, as DESIGN defines them.
        message: What is wrong, in one line, with what was declared and what is fed.
        next_step: What the user can paste or run.
        runtime: ``NAME==VERSION``, or None for a finding about the files.
        slots: 0-based slots that the finding is about.
        columns: ``[start, stop)`` columns of those slots in the projection's input, where known.
        rows: ``[start, stop)`` pairs of captured rows, or None.
        expected: What the contract says, as JSON values.
        actual: What was predicted or observed, as JSON values.
        details: Per slug, such as ``{"shift": -1}``.
        cause: The likely cause in one line, where one is known.
        source: Where the rule behind it was read: project, version, file or thread.
        unchecked: True when the finding means that the statement could not be checked.
    """

    rule: str
    slug: str
    severity: Severity
    message: str
    next_step: str = ""
    runtime: str | None = None
    slots: tuple[int, ...] = ()
    columns: tuple[tuple[int, int], ...] = ()
    rows: tuple[tuple[int, int], ...] | None = None
    expected: Any = None
    actual: Any = None
    details: Mapping[str, Any] = field(default_factory=dict, hash=False)
    cause: str = ""
    source: str = ""
    unchecked: bool = False

    @property
    def title(self) -> str:
        """The rule's one-line title."""
        return rule_for(self.slug).title


def finding(slug: str, message: str, *, severity: Severity | None = None, **fields: Any) -> Finding:
    """Build a finding of a catalogued rule, with the rule's own severity unless one is given."""
    rule = rule_for(slug)
    return Finding(
        rule=rule.rule,
        slug=slug,
        severity=severity or rule.severity,
        message=message,
        unchecked=rule.unchecked,
        **fields,
    )
