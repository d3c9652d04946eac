"""The one diff: the cheapest set of findings that explains how an actual wiring differs from a declared one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Literal

from featurecontract.findings._explain_slots import Explanation, explain_boundaries
from featurecontract.findings._finding import Finding, finding

if TYPE_CHECKING:
    from collections.abc import Iterator

    from featurecontract.contract import Feature, Wiring

__all__ = ["diff", "feature_values"]

# Faults of a slot's state that leave nothing to compare its boundary with.
_BLANK_STATES = {"zero": "zero", "constant": "constant", "unknown": "unidentified"}
_STATE_SLUGS = {
    "block_output": "residual-missing",
    "mlp_output": "residual-missing",
    "mid_block": "mid-block",
    "normed": "norm-before-fc",
    "final_norm": "final-norm",
    "residual": "final-norm",
}


Origin = Literal["predicted", "observed", "declared"]


@dataclass(frozen=True, slots=True)
class _Words:
    """How a message speaks of the actual wiring, by where it comes from."""

    subject: str
    passive: str
    missing: str
    feeds_back: str


_WORDS: dict[Origin, _Words] = {
    "predicted": _Words("the runtime would feed", "would be fed", "would not be fed", "the runtime would feed back"),
    "observed": _Words("the runtime fed", "were fed", "was not fed", "the runtime fed back"),
    "declared": _Words("the new contract declares", "are declared", "is no longer declared", "the new contract has"),
}


def diff(declared: Wiring, actual: Wiring, *, origin: Origin = "predicted") -> tuple[Finding, ...]:
    """Compare two wirings and return what explains the difference; equal wirings give nothing.

    State faults of single slots come off first; the remaining boundaries are explained by at most three structural
    findings, in the order and with the costs of docs/architecture.md. Pure: no I/O, no clock.
    ``origin`` says where ``actual`` comes from, and only changes the words.
    """
    words = _WORDS[origin]
    masked_declared, masked_actual = _comparable(declared, actual)
    if _reordered(declared, actual):
        masked_declared, masked_actual = _with_states(declared, actual)
    steps = explain_boundaries(masked_declared, masked_actual)
    found = [*_state_faults(declared, actual, moved=bool(steps)), *_width_faults(declared, actual)]
    behind = any(step.slug == "embedding-missing" for step in steps)
    found += [_structural(step, declared, actual, words, behind=behind) for step in steps]
    found += _flag_faults(declared, actual, words)
    return tuple(found)


def feature_values(features: tuple[Feature, ...]) -> list[dict[str, Any]]:
    """Return features as JSON values for ``expected`` and ``actual``."""
    return [
        {"slot": item.slot, "source": item.source, "boundary": item.boundary, "state": item.state, "name": str(item)}
        for item in features
    ]


def _comparable(declared: Wiring, actual: Wiring) -> tuple[list[int], list[int]]:
    """Return both boundary sequences; a slot whose state left no boundary counts as the declared one."""
    wanted = [_key(item) for item in declared.features]
    fed = [_key(item) for item in actual.features]
    if len(wanted) == len(fed):
        fed = [
            wanted[slot] if fed[slot] in _UNNAMED or item.state in _BLANK_STATES else fed[slot]
            for slot, item in enumerate(actual.features)
        ]
    return wanted, fed


# Slices that are no plane of the target sort behind all boundaries and never take part in a shift.
_SOURCE_KEYS = {"drafter_embedding": -10_000, "mask_row": -20_000, "unknown": -30_000, "target": -40_000}
# Slices that nobody could name: there is no boundary to compare.
_UNNAMED = (-30_000, -40_000)


def _key(feature: Feature) -> int:
    if feature.source != "target" or feature.boundary is None:
        return _SOURCE_KEYS[feature.source]
    return feature.boundary


def _reordered(declared: Wiring, actual: Wiring) -> bool:
    """Whether the same slices stand in another order; of h[61] and norm(h[61]) the boundaries alone do not show it."""
    wanted, fed = ([(_key(item), item.state) for item in wiring.features] for wiring in (declared, actual))
    return wanted != fed and sorted(wanted) == sorted(fed)


def _with_states(declared: Wiring, actual: Wiring) -> tuple[list[int], list[int]]:
    """Return both sequences with the final norm apart from its boundary, for an order that only states show."""
    both = [
        [_key(item) if item.state == "residual" else -100_000 - _key(item) for item in wiring.features]
        for wiring in (declared, actual)
    ]
    return both[0], both[1]


@dataclass(frozen=True)
class _SlotFault:
    slug: str
    parameter: Any
    slot: int


def _state_faults(declared: Wiring, actual: Wiring, *, moved: bool) -> Iterator[Finding]:
    """Yield one finding for each kind and parameter of per-slot fault, listing its slots.

    ``moved`` says that a structural finding explains why slices stand elsewhere.
    """
    faults: list[_SlotFault] = []
    wanted_states = {(item.boundary, item.state) for item in declared.features}
    for item in actual.features:
        wanted = declared.features[item.slot] if item.slot < len(declared.features) else None
        same = wanted is not None and item.state == wanted.state
        # Under a permutation the declared state sits at another slot; it is no state fault then. Where no slice moved
        # nothing else says that the state is another.
        placed = moved and wanted is not None and (item.boundary, item.state) in wanted_states and not _blank(item)
        if not same and not placed and (wanted is not None or item.state != "residual"):
            slug = _BLANK_STATES.get(item.state) or _STATE_SLUGS[item.state]
            faults.append(_SlotFault(slug, item.state, item.slot))
        if wanted is not None and abs(item.scale - wanted.scale) > 1e-9 * max(1.0, abs(wanted.scale)):
            faults.append(_SlotFault("scale", item.scale / wanted.scale if wanted.scale else item.scale, item.slot))
        if wanted is not None and item.row_offset != wanted.row_offset:
            faults.append(_SlotFault("rows-shifted", item.row_offset - wanted.row_offset, item.slot))
    groups: dict[tuple[str, Any], list[int]] = {}
    for fault in faults:
        groups.setdefault((fault.slug, fault.parameter), []).append(fault.slot)
    for (slug, parameter), slots in groups.items():
        yield _slot_finding(slug, parameter, tuple(slots), declared, actual)


def _blank(feature: Feature) -> bool:
    return feature.state in _BLANK_STATES


def _slot_finding(slug: str, parameter: Any, slots: tuple[int, ...], declared: Wiring, actual: Wiring) -> Finding:
    where = _slots_text(slots)
    wanted = ", ".join(str(declared.features[s]) for s in slots if s < len(declared.features))
    got = ", ".join(str(replace(actual.features[s], scale=1.0)) for s in slots)
    details: dict[str, Any] = {"state": parameter}
    message = f"{where}: declared {wanted or 'nothing'}, fed {got}"
    if slug == "scale":
        details = {"factor": parameter}
        message = f"{where}: {wanted} is fed scaled by {parameter:.4g}"
    elif slug == "rows-shifted":
        details = {"offset": parameter}
        message = f"{where}: rows are {parameter:+d} against the declared row offset"
    return _placed(finding(slug, message, details=details), slots, declared, actual)


def _width_faults(declared: Wiring, actual: Wiring) -> Iterator[Finding]:
    wrong = [
        slot
        for slot, (wanted, fed) in enumerate(zip(declared.features, actual.features, strict=False))
        if wanted.dim is not None and fed.dim is not None and wanted.dim != fed.dim
    ]
    if wrong:
        slot = wrong[0]
        message = (
            f"{_slots_text(tuple(wrong))}: declared {declared.features[slot].dim} columns wide, "
            f"fed {actual.features[slot].dim}"
        )
        yield _placed(
            finding(
                "width",
                message,
                details={"declared": declared.features[slot].dim, "actual": actual.features[slot].dim},
            ),
            tuple(wrong),
            declared,
            actual,
        )


_MESSAGES = {
    "order": "the declared slices {passive} in another order: {actual}, not {declared}",
    "embedding-missing": "slot 0 was trained on the embedding, h[0]; {subject} {actual}, without it; every later "
    "slot moved up by one",
    "slot-missing": "{names} {missing}: {subject} {actual}, declared {declared}",
    "slot-extra": "{count} more slice(s) than declared: {subject} {actual}, declared {declared}",
    "slot-duplicate": "{subject} {actual}: {names} twice, declared {declared}",
    "layer-shift": "{where}, {shifted}: {subject} {actual}, declared {declared}",
    "layer-mismatch": "{where}: {subject} {actual}, declared {declared}",
}


def _structural(explanation: Explanation, declared: Wiring, actual: Wiring, words: _Words, *, behind: bool) -> Finding:
    slots = explanation.slots
    shift = explanation.details.get("shift", 0)
    gone = [str(declared.features[s]) for s in explanation.details.get("declared_slots", ())]
    copied = explanation.details.get("copy_of")
    twice = ""
    if copied is not None:
        # With more slices than declared the explanation counts slots of what is fed, and the copy shows its own name.
        more = len(actual.features) > len(declared.features)
        twice = str(actual.features[slots[0]] if more else declared.features[copied])
    where = _slots_text(slots) if len(slots) < len(declared.features) else "every slot"
    if behind and explanation.slug != "embedding-missing":
        where = f"beside the missing embedding, {', '.join(str(declared.features[s]) for s in slots)}"
    values = {
        "subject": words.subject,
        "passive": words.passive,
        "missing": words.missing,
        "actual": f"[{actual}]",
        "declared": f"[{declared}]",
        "where": where,
        "names": twice or ", ".join(gone),
        "count": len(slots),
        "shifted": f"{abs(shift)} block{'s' if abs(shift) != 1 else ''} too {'early' if shift < 0 else 'late'}",
    }
    message = _MESSAGES[explanation.slug].format(**values)
    details = {k: v for k, v in explanation.details.items() if k != "declared_slots"}
    return _placed(finding(explanation.slug, message, details=details), slots, declared, actual)


def _placed(item: Finding, slots: tuple[int, ...], declared: Wiring, actual: Wiring) -> Finding:
    stops = list(accumulate((feature.dim or 0 for feature in declared.features), initial=0))
    known = next((i for i, feature in enumerate(declared.features) if feature.dim is None), len(declared.features))
    return replace(
        item,
        slots=slots,
        columns=tuple((stops[s], stops[s + 1]) for s in slots if s < known),
        expected=feature_values(declared.features),
        actual=feature_values(actual.features),
    )


def _flag_faults(declared: Wiring, actual: Wiring, words: _Words) -> Iterator[Finding]:
    """Compare the flags of both wirings; what nobody stated is never a difference."""
    known = {declared.pre_norm, actual.pre_norm}
    if len(known) == 2 and "unknown" not in known:  # noqa: PLR2004
        yield finding(
            "norm-before-fc",
            f"the norm before the projection is {actual.pre_norm}; the drafter was trained with {declared.pre_norm}",
            slots=tuple(item.slot for item in declared.features),
            expected=declared.pre_norm,
            actual=actual.pre_norm,
            details={"stage": "pre_norm"},
        )
    states = {declared.recurrent_state, actual.recurrent_state}
    if len(states) == 2 and not states & {"unknown", "none"}:  # noqa: PLR2004
        yield finding(
            "recurrent-state",
            f"from draft step 2 on {words.feeds_back} the {actual.recurrent_state} state; "
            f"the drafter was trained with {declared.recurrent_state}",
            expected=declared.recurrent_state,
            actual=actual.recurrent_state,
        )
    if None not in (declared.norm_before_residual, actual.norm_before_residual) and (
        declared.norm_before_residual != actual.norm_before_residual
    ):
        yield finding(
            "norm-before-residual",
            f"norm_before_residual is {_word(actual.norm_before_residual)} there; "
            f"the drafter was trained with {_word(declared.norm_before_residual)}",
            expected=declared.norm_before_residual,
            actual=actual.norm_before_residual,
        )
    if declared.bias and actual.bias is False:
        yield finding(
            "bias-unread",
            "the projection was trained with a bias, and the runtime leaves it out",
            expected=True,
            actual=False,
        )


def _word(value: bool | None) -> str:  # noqa: FBT001
    return "true" if value else "false"


def _slots_text(slots: tuple[int, ...]) -> str:
    if len(slots) == 1:
        return f"slot {slots[0]}"
    return "slots " + ", ".join(str(slot) for slot in slots)
