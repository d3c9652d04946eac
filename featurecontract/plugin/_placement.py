"""Which statements a checkpoint has, and which of them a finding belongs to. Pure: no pytest, no files."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from featurecontract.findings import rule_for
from featurecontract.plugin._names import part, unique

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from featurecontract.contract import Contract
    from featurecontract.findings import Finding, Report

__all__ = ["DIGEST", "SCHEMA", "Plan", "RuntimeName", "homes", "plan_statements"]

SCHEMA = "contract::schema"
DIGEST = "contract::digest"
_WIDTH = "checkpoint::width"
_VOCAB = "checkpoint::vocab-map"
_CONFIG = "checkpoint::config"

_NORMS = frozenset(
    {
        "norm-before-fc",
        "norm-before-residual",
        "norm-flag-unread",
        "recurrent-state",
        "bias-unread",
        "embedding-source",
        "head-source",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeName:
    """A runtime as findings name it; ``known`` when there are rules, ``flags`` when its command line is checked."""

    key: str
    known: bool
    flags: bool


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The statements of one checkpoint, ``GROUP::STATEMENT``, in their order.

    Attributes:
        groups: Statements by group.
        runtimes: The group of each runtime, by its key in findings.
        tensors: The statement of each tensor that the contract names.
    """

    groups: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: {"contract": ("schema",)})
    runtimes: Mapping[str, str] = field(default_factory=dict)
    tensors: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def addresses(self) -> tuple[str, ...]:
        """Every statement."""
        return tuple(f"{group}::{name}" for group, names in self.groups.items() for name in names)


def plan_statements(
    contract: Contract, runtimes: Sequence[RuntimeName], *, readable: bool, strict: bool, serve_args: bool
) -> Plan:
    """Lay out the statements of a contract; ``readable`` says that the checkpoint has tensors to compare with."""
    tensors: dict[str, str] = {}
    taken: set[str] = set()
    for name in [item.tensor for item in contract.projections] + [item.name for item in contract.drafter.tensors]:
        if name not in tensors:
            last = unique(f"tensor-{part(name)}", taken)
            taken.add(last)
            tensors[name] = f"checkpoint::{last}"
    checkpoint = ["config"]
    if contract.projections:
        checkpoint.append("width")
    if readable or contract.vocab.d2t is not None:
        checkpoint.append("vocab-map")
    checkpoint += _last_parts(tensors)
    groups = {"contract": ("schema", "digest"), "checkpoint": tuple(checkpoint)}
    places: dict[str, str] = {}
    for item in runtimes:
        group = unique("predicted-" + part(item.key.replace("==", "-")), groups)
        places[item.key] = group
        names = ["runtime"]
        if item.known:
            names += [f"slot-{feature.slot}" for feature in contract.features]
            names.append("norms")
            if serve_args and item.flags:
                names.append("serve-args")
        groups[group] = tuple(names)
    if strict and not runtimes:
        groups["predicted"] = ("runtime",)
    return Plan(groups=groups, runtimes=places, tensors=tensors)


def _last_parts(tensors: Mapping[str, str]) -> list[str]:
    return [item.partition("::")[2] for item in tensors.values()]


def homes(plan: Plan, report: Report, found: Finding) -> tuple[str, ...]:
    """Return the statements that a finding is about, in the plan's order; each finding has at least one.

    The one exception is that no runtime was named: there is no prediction then that could fail, and the terminal
    summary says so. Strict runs have an item for it.
    """
    if found.slug == "nothing-compared":
        return tuple(item for item in plan.addresses if item == "predicted::runtime")
    group = plan.runtimes.get(found.runtime or "")
    wanted = set(_of_files(plan, found) if group is None else _of_runtime(plan, group, report, found))
    placed = tuple(item for item in plan.addresses if item in wanted)
    if placed:
        return placed
    rest = _CONFIG if group is None else f"{group}::runtime"
    return (rest,) if rest in plan.addresses else (SCHEMA,)


def _of_files(plan: Plan, found: Finding) -> Iterator[str]:
    tensor = str(found.details.get("tensor"))
    if found.slug in ("contract-missing", "contract-invalid", "contract-version", "features-missing"):
        yield SCHEMA
    elif found.slug == "checkpoint-unreadable":
        # Nothing about the tensors was looked at, so none of their statements may pass.
        yield from (item for item in plan.addresses if item.startswith("checkpoint::") and item != _CONFIG)
    elif found.slug == "width":
        yield _WIDTH
    elif found.slug == "vocab-map":
        yield _VOCAB
    elif tensor in plan.tensors:
        yield plan.tensors[tensor]
        if found.slots:
            yield _WIDTH
    else:
        yield _CONFIG
    for group in plan.runtimes.values():
        yield from _slots(group, found)


def _of_runtime(plan: Plan, group: str, report: Report, found: Finding) -> Iterator[str]:
    yield from _slots(group, found)
    if found.slug in _NORMS:
        yield f"{group}::norms"
    elif rule_for(found.slug).group == "flags" and "serve-args" in plan.groups[group]:
        yield f"{group}::serve-args"
    elif not found.slots:
        yield f"{group}::runtime"
        nothing_fed = any(item.runtime == found.runtime and item.wiring is None for item in report.predicted)
        if found.unchecked or (nothing_fed and found.severity == "error"):
            # Without a wiring no slot was compared: those statements may not pass either.
            yield from (f"{group}::{name}" for name in plan.groups[group] if name != "serve-args")
    if found.slug == "runtime-unknown":
        yield f"{group}::serve-args"


def _slots(group: str, found: Finding) -> Iterator[str]:
    return (f"{group}::slot-{slot}" for slot in found.slots)
