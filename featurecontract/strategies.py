"""Hypothesis strategies for your own property tests: contracts, wirings, orderings, mutations, captures.

::

    from hypothesis import given
    from featurecontract.strategies import mutations, wirings

    @given(wirings(num_hidden_layers=32).flatmap(lambda w: mutations(w, num_hidden_layers=32)))
    def test_my_exporter_notices(mutation): ...

Everything shrinks towards one slot, the embedding, a shallow target and plain values. Needs hypothesis
(``pip install "featurecontract[pytest]"``); `captures` needs torch as well. docs/strategies.md shows each.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from hypothesis import strategies as st

from featurecontract.contract import (
    CONVENTIONS,
    METHODS,
    Alignment,
    Block,
    Contract,
    Drafter,
    Feature,
    Projection,
    Provenance,
    Quality,
    Rope,
    Serving,
    Statement,
    Target,
    TensorRecord,
    Vocab,
    Wiring,
)
from featurecontract.errors import UsageError
from featurecontract.findings.mutations import PARTIAL, shifted, slugs_of

if TYPE_CHECKING:
    from hypothesis.strategies import DrawFn, SearchStrategy
    from torch import Tensor

    from featurecontract.capture import Call, Capture
    from featurecontract.probe import ProbeData

__all__ = ["Mutation", "can_mutate", "captures", "contracts", "mutations", "orderings", "wirings"]

MAX_DEPTH = 96


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutation:
    """A wiring that differs from a declared one by one fault.

    Attributes:
        name: What was done, such as ``shift all +1``.
        wiring: What is fed then.
        slugs: The slugs that may name it: more than one where two faults lead to equal tensors.
    """

    name: str
    wiring: Wiring
    slugs: frozenset[str]


def _drawn(draw: DrawFn, value: int | SearchStrategy[int]) -> int:
    return value if isinstance(value, int) else draw(value)


@st.composite
def wirings(
    draw: DrawFn,
    *,
    num_hidden_layers: int | SearchStrategy[int] = st.integers(1, MAX_DEPTH),  # noqa: B008 - strategies are values
    dim: int | None = 64,
    min_slots: int = 1,
    max_slots: int = 8,
    distinct: bool = False,
    final_norm: bool = True,
) -> Wiring:
    """Draw a wiring that a contract may declare.

    The corners come up often: the embedding in slot 0, the last boundary, its final norm, a boundary twice, one slot,
    ``max_slots``. ``distinct`` leaves duplicates out, ``final_norm=False`` norm(h[L]).

    Raises:
        UsageError: there are not that many distinct boundaries, or no slots.
    """
    depth = _drawn(draw, num_hidden_layers)
    if not 1 <= min_slots <= max_slots or (distinct and min_slots > depth + 1):
        raise UsageError(f"min_slots={min_slots}, max_slots={max_slots} on a target of {depth} layers: no such wiring")
    most = min(max_slots, depth + 1) if distinct else max_slots
    # An explicit size for the corner of many slots: lists are short by nature.
    size = draw(st.integers(min_slots, most) | st.just(most))
    boundary = st.integers(0, depth) | st.just(depth)
    boundaries = draw(st.lists(boundary, min_size=size, max_size=size, unique=distinct))
    if draw(st.booleans()):
        boundaries.sort()
    # A norm only behind the last boundary; both of them may be fed.
    normed = [final_norm and b == depth and draw(st.booleans()) for b in boundaries]
    return Wiring(
        features=tuple(
            Feature(slot=slot, boundary=b, state="final_norm" if norm else "residual", dim=dim)
            for slot, (b, norm) in enumerate(zip(boundaries, normed, strict=True))
        )
    )


def orderings(wiring: Wiring) -> SearchStrategy[Wiring]:
    """Draw a wiring with the same slices in any order, the declared one among them; shrinks towards that."""
    return st.permutations(wiring.features).map(lambda features: _reslotted(wiring, tuple(features)))


def _reslotted(wiring: Wiring, features: tuple[Feature, ...]) -> Wiring:
    return replace(wiring, features=tuple(replace(item, slot=slot) for slot, item in enumerate(features)))


#: Faults of one slot that a capture can show: slug -> the field of the feature, and its value.
_STATES: dict[str, tuple[str, Any]] = {
    "zero": ("state", "zero"),
    "constant": ("state", "constant"),
    "unidentified": ("state", "unknown"),
    "residual-missing": ("state", "block_output"),
    "mid-block": ("state", "mid_block"),
    "norm-before-fc": ("state", "normed"),
    "scale": ("scale", 2.0),
    "rows-shifted": ("row_offset", 1),
    "width": ("dim", None),
}


@st.composite
def mutations(draw: DrawFn, wiring: Wiring, *, num_hidden_layers: int, states: bool = False) -> Mutation:
    """Draw one fault of a wiring, with the slug that it must get.

    Shifts of every slot and of some, a slot left out, the embedding left out, another order, one slot copied over
    another; with ``states`` also what only a capture sees: a zero slot, a missing residual, a scale, another width.
    A wiring that holds slices other than residual boundaries gets those faults whose slug is certain for it.

    Raises:
        UsageError: nothing can be changed with certainty, such as the order of a single slot; ``states=True`` helps.
    """
    plain = _plain(wiring)
    kinds = [*_kinds(wiring, num_hidden_layers), *(["state"] if states else [])]
    if not kinds:
        raise UsageError("no mutation of this wiring has a certain slug; give states=True, or another wiring")
    kind = draw(st.sampled_from(kinds))
    if kind == "state":
        return _state(draw, wiring)
    if kind == "order":
        moved = draw(orderings(wiring).filter(lambda item: item != wiring))
        return Mutation(name="order", wiring=moved, slugs=frozenset({"order"}) if not plain else _slugs(wiring, moved))
    declared = tuple(item.boundary or 0 for item in wiring.features)
    name, listed = _CHANGES[kind](draw, declared, num_hidden_layers)
    fed = _with_boundaries(wiring, listed)
    return Mutation(name=name, wiring=fed, slugs=slugs_of(declared, listed))


def can_mutate(wiring: Wiring, *, num_hidden_layers: int) -> bool:
    """Whether `mutations` can draw anything without ``states``."""
    return bool(_kinds(wiring, num_hidden_layers))


def _plain(wiring: Wiring) -> bool:
    return all(item.source == "target" and item.state == "residual" for item in wiring.features)


def _kinds(wiring: Wiring, depth: int) -> list[str]:
    return _lists(wiring, depth) if _plain(wiring) else _orders(wiring)


def _slugs(wiring: Wiring, fed: Wiring) -> frozenset[str]:
    declared, listed = (tuple(item.boundary or 0 for item in w.features) for w in (wiring, fed))
    return slugs_of(declared, listed)


def _with_boundaries(wiring: Wiring, boundaries: tuple[int, ...]) -> Wiring:
    last = wiring.features[-1]
    kept = [*wiring.features, *([last] * max(0, len(boundaries) - len(wiring.features)))]
    return replace(
        wiring,
        features=tuple(replace(kept[slot], slot=slot, boundary=b) for slot, b in enumerate(boundaries)),
    )


def _orders(wiring: Wiring) -> list[str]:
    kinds = {(item.source, item.boundary, item.state) for item in wiring.features}
    alike = len({(item.dim, item.scale, item.row_offset, item.reduction) for item in wiring.features}) == 1
    return ["order"] if len(kinds) > 1 and alike else []


def _lists(wiring: Wiring, depth: int) -> list[str]:
    declared = tuple(item.boundary or 0 for item in wiring.features)
    first = declared[0] == 0 and 0 not in declared[1:]
    out = [*_orders(wiring)]
    out += ["shift all"] if any(declared) and max(min(b for b in declared if b), depth - max(declared)) > 0 else []
    out += ["shift some"] if any(0 <= b + k <= depth for b in declared for k in PARTIAL) else []
    out += ["strip first", "strip last"] if len(declared) > 1 else []
    out += ["embedding missing"] if first and len(declared) > 1 else []
    out += ["duplicate"] if len(set(declared)) > 1 else []
    return out


def _shift_all(draw: DrawFn, declared: tuple[int, ...], depth: int) -> tuple[str, tuple[int, ...]]:
    moving = [slot for slot, b in enumerate(declared) if b]
    low, high = -min(declared[slot] for slot in moving), depth - max(declared)
    k = draw(st.sampled_from(sorted((k for k in range(low, high + 1) if k), key=abs)))
    return f"shift all {k:+d}", shifted(declared, depth, k, moving) or declared


def _shift_some(draw: DrawFn, declared: tuple[int, ...], depth: int) -> tuple[str, tuple[int, ...]]:
    ways = [(k, slot) for slot, b in enumerate(declared) for k in PARTIAL if 0 <= b + k <= depth]
    k, first = draw(st.sampled_from(sorted(ways, key=lambda item: (abs(item[0]), item[1]))))
    able = [slot for slot, b in enumerate(declared) if 0 <= b + k <= depth]
    slots = sorted({first} | draw(st.sets(st.sampled_from(able), max_size=len(able))))
    return f"shift slots {slots} {k:+d}", shifted(declared, depth, k, slots) or declared


def _embedding_missing(draw: DrawFn, declared: tuple[int, ...], depth: int) -> tuple[str, tuple[int, ...]]:
    last = draw(st.integers(1, depth))
    return f"embedding missing, h[{last}] behind", (*declared[1:], last)


def _duplicate(draw: DrawFn, declared: tuple[int, ...], _depth: int) -> tuple[str, tuple[int, ...]]:
    slot = draw(st.integers(0, len(declared) - 1))
    other = draw(st.sampled_from([b for b in range(len(declared)) if declared[b] != declared[slot]]))
    return f"slot {other} copied into {slot}", (*declared[:slot], declared[other], *declared[slot + 1 :])


_CHANGES: dict[str, Any] = {
    "shift all": _shift_all,
    "shift some": _shift_some,
    "strip first": lambda _draw, declared, _depth: ("strip first", declared[1:]),
    "strip last": lambda _draw, declared, _depth: ("strip last", declared[:-1]),
    "embedding missing": _embedding_missing,
    "duplicate": _duplicate,
}


def _state(draw: DrawFn, wiring: Wiring) -> Mutation:
    slot = draw(st.integers(0, len(wiring.features) - 1))
    item = wiring.features[slot]
    able = [slug for slug in _STATES if slug != "width" or item.dim is not None]
    able = [slug for slug in able if slug not in ("norm-before-fc", "scale") or item.state == "residual"]
    slug = draw(st.sampled_from(able))
    key, value = _STATES[slug]
    if slug == "width":
        value = (item.dim or 0) + draw(st.integers(1, 64))
    elif slug == "scale":
        value = item.scale * value
    elif slug == "rows-shifted":
        value = item.row_offset + value
    wrong = replace(item, **{key: value})
    features = tuple(wrong if feature.slot == slot else feature for feature in wiring.features)
    return Mutation(name=f"{slug} in slot {slot}", wiring=replace(wiring, features=features), slugs=frozenset({slug}))


_words = st.text(st.characters(codec="utf-8"), min_size=1, max_size=12)
_shas = st.none() | st.text("0123456789abcdef", min_size=64, max_size=64)
_reals = st.floats(allow_nan=False, allow_infinity=False)
_json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | _reals | _words,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(_words, inner, max_size=2),
    max_leaves=4,
)


@st.composite
def contracts(
    draw: DrawFn,
    *,
    wiring: Wiring | None = None,
    num_hidden_layers: int | SearchStrategy[int] = st.integers(1, 100_000),  # noqa: B008 - strategies are values
    hidden_size: int | SearchStrategy[int] = st.integers(1, 2**20),  # noqa: B008
    contract_version: Literal["1.0", "1.3"] = "1.0",
) -> Contract:
    """Draw a valid contract that states a random part of everything: it can be saved, loaded and digested.

    Args:
        draw: Given by Hypothesis.
        wiring: The declared wiring; drawn when left out, as wide as the target, at times scaled and with row offsets.
        num_hidden_layers: The target's depth, a number or a strategy; at least the wiring's last boundary.
        hidden_size: The target's width, likewise.
        contract_version: ``1.3`` is a newer minor version, which also states what no release of this one knows.
    """
    depth, width = _drawn(draw, num_hidden_layers), _drawn(draw, hidden_size)
    newer = st.dictionaries(_words.map(lambda w: f"x-{w}"), _json_values, max_size=2)
    extra = st.just({}) if contract_version == "1.0" else newer
    features = wiring.features if wiring else _any_features(draw, depth, width, extra)
    fc = Projection(
        tensor=draw(_words),
        role="fc",
        slots=tuple(range(len(features))),
        in_features=sum(item.dim or 0 for item in features),
        out_features=draw(st.integers(1, 2**31)),
        bias=draw(st.booleans()),
        pre_norm=draw(st.sampled_from(["none", "joint", "per_feature", "unknown"])),
        extra=draw(extra),
    )
    record = TensorRecord(name=draw(_words), dtype="BF16", shape=tuple(draw(st.lists(st.integers(0, 9)))), sha256=None)
    return Contract(
        contract_version=contract_version,
        name=draw(_words),
        method=draw(st.sampled_from(METHODS)),
        target=Target(
            num_hidden_layers=depth,
            hidden_size=width,
            name=draw(st.none() | _words),
            tokenizer_sha256=draw(_shas),
        ),
        drafter=Drafter(
            hidden_size=width,
            block=draw(st.none() | st.builds(Block, size=st.integers(1, 64), anchor=st.none() | _words, extra=extra)),
            tensors=draw(st.sampled_from([(), (record,)])),
        ),
        features=features,
        projections=draw(st.sampled_from([(), (fc,)])) if fc.in_features else (),
        alignment=Alignment(token_shift=draw(st.integers(-3, 3))),
        norm_before_residual=draw(st.none() | st.booleans()),
        vocab=Vocab(d2t=draw(st.sampled_from([None, "offset", "absolute"])), t2d_sha256=draw(_shas)),
        rope=draw(
            st.none()
            | st.builds(
                Rope,
                theta=st.none() | st.floats(0, 1e9),
                scaling=st.none() | st.dictionaries(_words, _json_values, max_size=2),
            )
        ),
        quality=draw(st.none() | st.builds(Quality, step_accuracies=st.lists(st.floats(0, 1)).map(tuple))),
        serving=draw(st.none() | st.builds(Serving, runtimes=st.lists(_words, max_size=2).map(tuple))),
        provenance=Provenance(
            ids=draw(st.none() | st.lists(st.integers(-(2**31), 99)).map(tuple)),
            convention=draw(st.sampled_from([None, *CONVENTIONS])),
            statements=(Statement(path=draw(_words), source="inferred", confidence=draw(st.floats(0, 1))),),
        ),
        extra=draw(extra),
    )


def _any_features(draw: DrawFn, depth: int, width: int, extra: SearchStrategy[dict[str, Any]]) -> tuple[Feature, ...]:
    found = draw(wirings(num_hidden_layers=depth, dim=width, max_slots=4))
    return tuple(
        replace(item, scale=draw(st.just(1.0) | _reals), row_offset=draw(st.integers(-9, 9)), extra=draw(extra))
        for item in found.features
    )


@st.composite
def captures(
    draw: DrawFn, contract: Contract, probe: ProbeData | None = None, *, wiring: Wiring | None = None
) -> Capture:
    """Draw a capture of an engine that feeds a wiring, in one of the ways in which a healthy one does.

    The probe's rows in one call or in chunks, with positions or without, in float32 or rounded to bfloat16. Shrinks
    towards one float32 call. Held against the contract with `featurecontract.gate.verify_captures`, one of the declared
    wiring has nothing above a note.

    Args:
        draw: Given by Hypothesis.
        contract: The contract.
        probe: Its probe (`featurecontract.probe.read_probe`); without one the rows are noise of the right width.
        wiring: What is fed, the declared one when left out. A slice must be one of the contract's slots, or a boundary
            of a target so narrow that the bank holds all of its channels.

    Raises:
        UsageError: the probe does not hold a slice of ``wiring`` in full.
    """
    import torch

    from featurecontract.capture import Call, Capture

    fed = wiring or contract.wiring
    if probe is None:
        rows = draw(st.integers(1, 64))
        generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
        values = torch.randn(rows, fed.width or contract.target.hidden_size, generator=generator)
        token_ids = list(range(rows))
    else:
        values = torch.cat([_slice(contract, probe, item) for item in fed.features], dim=1)
        token_ids = probe.token_ids.tolist()
    dtype = draw(st.sampled_from(["float32", "bfloat16"]))
    values = values.to(getattr(torch, dtype)).float()
    cuts = sorted(draw(st.sets(st.integers(1, max(1, len(values) - 1)), max_size=3)) if len(values) > 1 else ())
    positions = draw(st.booleans())
    calls: list[Call] = [
        Call(
            values=values[start:stop].clone(),
            phase="chunked-prefill" if cuts else "prefill",
            token_ids=tuple(token_ids[start:stop]),
            positions=tuple(range(start, stop)) if positions or cuts else None,
            dtype=dtype,
        )
        for start, stop in zip([0, *cuts], [*cuts, len(values)], strict=True)
    ]
    return Capture(calls=tuple(calls))


def _slice(contract: Contract, probe: ProbeData, wanted: Feature) -> Tensor:
    """Return ``[rows, dim]`` of a feature, from the golden rows or from a bank that holds every channel."""
    for item in contract.features:
        if replace(item, slot=wanted.slot) == wanted and item.slot not in probe.unrecorded:
            start, stop = contract.wiring.columns(item.slot) or (0, 0)
            return probe.golden[:, start:stop]
    if wanted.source == "target" and wanted.state == "residual" and len(probe.bank.channels) == wanted.dim:
        for plane, values in zip(probe.bank.planes, probe.bank.values, strict=True):
            if (plane.kind, plane.boundary) == ("boundary", wanted.boundary):
                found: Tensor = values
                return found
    raise UsageError(f"the probe does not hold {wanted} in full; feed slots of the contract, in any order and number")
