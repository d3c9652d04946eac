"""Observed parts of a checkpoint's check: a group of statements, and the report that they are read from.

This is the seam for everything that observes what a runtime feeds. Whoever has a `Report` of one observation, or can
make one, hands over a `Source`::

    Source(
        group="live-vllm-prefill",            # the GROUP of the node ids, unique within the checkpoint
        statements=statements_of(contract),   # slot-0, ..., rows, and drafts where tokens are drafted again
        obtain=lambda: verify_captures(contract, probe, [capture], path=..., file=...),
    )

``obtain`` is called at most once in a process, when the first of the items runs, and may raise `InputError`: then every
statement is an error. The session makes the items, places the findings, merges the report into the checkpoint's, and
brings it from the workers of pytest-xdist to the controller.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

from featurecontract.errors import FeatureContractError, InputError
from featurecontract.findings import finding
from featurecontract.gate import refused

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from featurecontract.contract import Contract
    from featurecontract.findings import Finding, Report

__all__ = ["DRAFTS", "ROWS", "Source", "merged", "missing_library", "observed_homes", "statements_of"]

ROWS = "rows"
DRAFTS = "drafts"
_DIFFER = "draft-tokens-differ"


def statements_of(contract: Contract, *, drafts: bool = False) -> tuple[str, ...]:
    """Return the statements about one observation: ``slot-0``, ``slot-1``, ..., ``rows``, and ``drafts``."""
    return (*(f"slot-{feature.slot}" for feature in contract.features), ROWS, *((DRAFTS,) if drafts else ()))


@dataclass(kw_only=True)
class Source:
    """One observation: a group of statements and the way to its report.

    Attributes:
        group: The group in the node ids; no two of one checkpoint are the same.
        statements: The statements of the group, in their order.
        obtain: Makes the report of this observation alone; may raise InputError, or ImportError for a library.
        path: What the report of a failure calls the checkpoint.
        home: Which of the statements a finding is about; at least one.
    """

    group: str
    statements: tuple[str, ...]
    obtain: Callable[[], Report]
    path: str = ""
    home: Callable[[Sequence[str], Report, Finding], tuple[str, ...]] = field(default_factory=lambda: observed_homes)

    @cached_property
    def result(self) -> Report | InputError:
        """The report, or why there is none; computed once."""
        try:
            return self.obtain()
        except InputError as error:
            return error
        except FeatureContractError as error:
            return InputError.single(self.path, str(error), slug="nothing-compared")
        except (ImportError, OSError) as error:
            return missing_library(error) if isinstance(error, ImportError) else _unreadable(self.path, error)

    @cached_property
    def report(self) -> Report:
        """The report; of one finding where it could not be made."""
        found = self.result
        if isinstance(found, InputError):
            return refused(self.path, found)
        return _drafts_said(found) if DRAFTS in self.statements else found

    @cached_property
    def places(self) -> tuple[tuple[str, ...], ...]:
        """The statements, ``GROUP::STATEMENT``, of each finding."""
        return tuple(
            tuple(f"{self.group}::{name}" for name in self.home(self.statements, self.report, found))
            for found in self.report.findings
        )

    @property
    def computed(self) -> bool:
        """Whether the report is there already."""
        return "report" in vars(self)

    def adopt(self, report: Report) -> None:
        """Take the report that another process made."""
        vars(self).setdefault("report", report)


def observed_homes(statements: Sequence[str], report: Report, found: Finding) -> tuple[str, ...]:
    """Return the statements that a finding of one observation is about; each finding has at least one.

    Where nothing was compared none of the statements may pass, so that a finding is about all of them.
    """
    every = tuple(statements)
    if found.slug == _DIFFER or found.details.get("about") == _DIFFER:
        return (DRAFTS,) if DRAFTS in every else every
    drafted = sum(item.compared > 0 for item in report.drafted)
    if drafted:
        # They were compared, whatever is wrong with the rows.
        every = tuple(name for name in every if name != DRAFTS)
    named = {f"slot-{slot}" for slot in found.slots} & set(every)
    slots = {name for name in every if name.startswith("slot-")}
    if report.compared <= drafted or (found.unchecked and (not found.slots or named == slots)):
        return every
    if found.slug.startswith(("rows-", "tokens-")) or not named:
        named.add(ROWS)
    return tuple(name for name in every if name in named) or every


def _drafts_said(report: Report) -> Report:
    """Return a report in which draft tokens that could not be compared are a finding: their item must not pass."""
    if not report.observed or any(item.compared for item in report.drafted):
        return report
    reason = next((item.reason for item in report.drafted if item.reason), "the capture holds no draft tokens")
    found = finding(
        "nothing-compared",
        f"no draft token was compared: {reason}",
        runtime=next((item.runtime for item in report.observed if item.runtime), None),
        details={"about": _DIFFER},
        next_step="capture whole prompts, nothing of them from a cache, and verify again",
    )
    return replace(report, findings=(*report.findings, found))


def merged(static: Report, observed: Iterable[Report]) -> Report:
    """Return one report of a checkpoint: what was predicted, and every observation, in their order.

    That no runtime was named is no finding once an observation was compared: it says what is fed.
    """
    parts = list(observed)
    findings = list(static.findings)
    if static.declared is not None and any(item.compared for item in parts):
        findings = [item for item in findings if item.slug != "nothing-compared"]
    for part in parts:
        # The observations of one capture share what is wrong with the capture itself.
        findings += [item for item in part.findings if item not in findings]
    first = next((item for item in parts if item.declared is not None), static)
    whole = static if static.declared is not None else replace(first, checkpoint=static.checkpoint, observed=())
    return replace(
        whole,
        observed=static.observed + tuple(item for part in parts for item in part.observed),
        replayed=static.replayed + tuple(item for part in parts for item in part.replayed),
        drafted=static.drafted + tuple(item for part in parts for item in part.drafted),
        findings=tuple(findings),
        compared=static.compared + sum(part.compared for part in parts),
        strict=static.strict,
    )


def missing_library(error: ImportError) -> InputError:
    """Return the error of a library that is not installed, with the command that installs it."""
    name = (error.name or str(error)).partition(".")[0]
    return InputError.single(
        name,
        "is not installed, and captures cannot be read without it",
        next_step='pip install "featurecontract[torch]"',
        slug="nothing-compared",
    )


def _unreadable(path: str, error: OSError) -> InputError:
    return InputError.single(path, f"cannot be read ({error.strerror or error})", slug="nothing-compared")
