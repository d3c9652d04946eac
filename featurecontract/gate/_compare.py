"""Two contracts: what changed, and whether a runtime that served the old one would serve the new one wrongly."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from featurecontract.contract import contract_to_dict
from featurecontract.findings import Finding, Report, diff, finding

if TYPE_CHECKING:
    from collections.abc import Iterator

    from featurecontract.contract import Contract

__all__ = ["compare_contracts"]

# Slug for a change of each breaking part; what is not listed here is information.
_BREAKING = {
    "method": "method-unsupported",
    "target": "target-mismatch",
    "projections": "width",
    "alignment": "tokens-shifted",
    "vocab": "vocab-map",
    "rope": "rope",
}
_DESCRIPTIVE_TARGET = ("name", "revision", "dtype", "quantization", "extra")


def compare_contracts(old: Contract, new: Contract, *, paths: tuple[str, str]) -> Report:
    """Return a report whose errors are the breaking changes from ``old`` to ``new`` and whose notes are the others."""
    fed = diff(old.wiring, new.wiring, origin="declared")
    findings = [
        *(fed if any(item.severity == "error" for item in fed) else [*fed, *_features(old, new)]),
        *_parts(old, new),
        *_tensors(old, new),
        *_copies(old, new),
    ]
    step = "serve and test the drafter again with the new contract before it replaces the old one"
    return Report(
        checkpoint=paths[1],
        contract_path=paths[0],
        declared=old.wiring,
        num_hidden_layers=old.target.num_hidden_layers,
        findings=tuple(
            replace(item, next_step=step) if item.severity == "error" and index == 0 else item
            for index, item in enumerate(sorted(findings, key=lambda item: item.severity != "error"))
        ),
        compared=len(old.features) + len(_BREAKING),
    )


def _parts(old: Contract, new: Contract) -> Iterator[Finding]:
    before, after = contract_to_dict(old), contract_to_dict(new)
    for key in sorted(before.keys() | after.keys()):
        if key in ("features", "recurrent_state", "norm_before_residual", "drafter"):
            continue
        first, second = before.get(key), after.get(key)
        if first == second:
            continue
        changed = _changed_keys(first, second)
        breaking = key in _BREAKING and not (key == "target" and set(changed) <= set(_DESCRIPTIVE_TARGET))
        if key == "projections":
            # The norms are compared with the wiring, and said there.
            breaking = _without_norms(first) != _without_norms(second)
            if not breaking:
                continue
        slug = _BREAKING[key] if breaking else "contract-changed"
        where = f"{key}.{{{', '.join(changed)}}}" if changed else key
        yield finding(
            slug,
            f"{where} changed" + ("" if changed else f" from {first!r} to {second!r}")[:200],
            severity="error" if breaking else "note",
            expected={k: first.get(k) for k in changed} if changed and isinstance(first, dict) else first,
            actual={k: second.get(k) for k in changed} if changed and isinstance(second, dict) else second,
            details={"key": key},
        )


def _features(old: Contract, new: Contract) -> Iterator[Finding]:
    """Yield what differs in features of the same planes, such as how streams become one slice: no plane tells that."""
    before, after = contract_to_dict(old)["features"], contract_to_dict(new)["features"]
    slots: dict[tuple[str, ...], list[int]] = {}
    for slot, (first, second) in enumerate(zip(before, after, strict=False)):
        if changed := tuple(_changed_keys(first, second)):
            slots.setdefault(changed, []).append(slot)
    for changed, listed in slots.items():
        yield finding(
            "contract-changed",
            f"features.{{{', '.join(changed)}}} changed",
            severity="error",
            slots=tuple(listed),
            expected={key: before[listed[0]].get(key) for key in changed},
            actual={key: after[listed[0]].get(key) for key in changed},
            details={"key": "features"},
        )


def _changed_keys(first: Any, second: Any) -> list[str]:
    if not isinstance(first, dict) or not isinstance(second, dict):
        return []
    return sorted(key for key in first.keys() | second.keys() if first.get(key) != second.get(key))


def _without_norms(projections: Any) -> Any:
    if not isinstance(projections, list):
        return projections
    return [{k: v for k, v in item.items() if k not in ("pre_norm", "bias")} for item in projections]


def _tensors(old: Contract, new: Contract) -> Iterator[Finding]:
    after = {item.name: item for item in new.drafter.tensors}
    for record in old.drafter.tensors:
        other = after.get(record.name)
        if other is None:
            yield finding(
                "tensor-missing", f"{record.name} is no longer in the contract", details={"tensor": record.name}
            )
        elif (other.shape, other.dtype) != (record.shape, record.dtype) or (
            record.sha256 and other.sha256 and record.sha256 != other.sha256
        ):
            yield finding(
                "tensor-digest",
                f"{record.name} changed",
                expected=contract_to_dict(record),
                actual=contract_to_dict(other),
                details={"tensor": record.name},
            )


def _copies(old: Contract, new: Contract) -> Iterator[Finding]:
    for part, slug in (("embedding", "embedding-source"), ("head", "head-source")):
        before, after = getattr(old.drafter, part), getattr(new.drafter, part)
        if before != after:
            yield finding(slug, f"drafter.{part} changed from {before} to {after}", expected=before, actual=after)
