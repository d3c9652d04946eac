"""Faults and healthy variation of a capture, composable; each says which slug it must get (docs/identification.md)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from featurecontract.capture._record import Call, Capture

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor

__all__ = ["Mutator", "Planes", "capture_of", "mutators", "shift_tokens", "with_dtype"]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Planes:
    """Full-width tensors of a run of the target, ``[rows, hidden]`` each.

    ``boundary[b]``, ``mid_block[b]`` and ``mlp_output[b]`` as in `featurecontract.probe`; ``norm`` is the final norm.
    """

    boundary: tuple[Tensor, ...]
    mid_block: tuple[Tensor, ...]
    mlp_output: dict[int, Tensor]
    norm: Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class Mutator:
    """A fault: ``apply`` turns slots (a list of ``[rows, hidden]``) into faulty ones, which must be called ``slug``.

    ``axis`` groups mutators that may be combined: two of one axis compose into something else.
    """

    name: str
    slug: str
    axis: str
    slots: tuple[int, ...]
    apply: Callable[[list[Tensor]], list[Tensor]]


def capture_of(slots: list[Tensor], *, token_ids: tuple[int, ...] | None = None) -> Capture:
    """Return a capture with one prefill call of these slots."""
    values = torch.cat(slots, dim=1)
    ids = token_ids if token_ids is not None and len(token_ids) == len(values) else None
    return Capture(calls=(Call(values=values, phase="prefill", token_ids=ids),))


def mutators(planes: Planes, boundaries: tuple[int, ...], *, seed: int = 0) -> list[Mutator]:
    """Return every mutator of docs/identification.md at every slot where it changes something."""
    out = [*_plane_mutators(planes, boundaries), *_list_mutators(planes, boundaries)]
    for slot in range(len(boundaries)):
        out += _state_mutators(planes, boundaries, slot)
        out += _value_mutators(slot)
    return [*out, *_whole_mutators(planes, len(boundaries), seed=seed)]


def _put(slot: int, change: Callable[[Tensor], Tensor]) -> Callable[[list[Tensor]], list[Tensor]]:
    return lambda slots: [change(item) if index == slot else item for index, item in enumerate(slots)]


def _instead(value: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda _item: value


def _all_instead(values: list[Tensor]) -> Callable[[list[Tensor]], list[Tensor]]:
    return lambda _slots: values


def _copied(slot: int) -> Callable[[list[Tensor]], list[Tensor]]:
    return lambda slots: [slots[0] if index == slot else item for index, item in enumerate(slots)]


def _rolled(offset: int) -> Callable[[Tensor], Tensor]:
    return lambda item: item.roll(offset, 0)


def _each(change: Callable[[Tensor], Tensor]) -> Callable[[list[Tensor]], list[Tensor]]:
    return lambda slots: [change(item) for item in slots]


def _plane_mutators(planes: Planes, boundaries: tuple[int, ...]) -> Iterator[Mutator]:
    """Yield shifts of every slot and of one, by one block and by two."""
    depth = len(planes.boundary) - 1
    moving = tuple(slot for slot, b in enumerate(boundaries) if b > 0)
    for shift in (-2, -1, 1, 2):
        if all(0 < boundaries[slot] + shift <= depth for slot in moving):
            moved = [planes.boundary[b + shift if b > 0 else b] for b in boundaries]
            yield Mutator(f"shift all {shift:+d}", "layer-shift", "planes", moving, _all_instead(moved))
        for slot in moving:
            b = boundaries[slot] + shift
            if 0 <= b <= depth and len(boundaries) > 1 and b not in boundaries:
                change = _put(slot, _instead(planes.boundary[b]))
                yield Mutator(f"shift slot {slot} {shift:+d}", "layer-shift", "planes", (slot,), change)


def _list_mutators(planes: Planes, boundaries: tuple[int, ...]) -> Iterator[Mutator]:
    """Yield slots left out, appended, permuted and copied."""
    count, depth = len(boundaries), len(planes.boundary) - 1
    if count < 2:  # noqa: PLR2004
        return
    every = tuple(range(count))
    first = "slot-missing"
    if boundaries[0] == 0:
        first = "embedding-missing"
        appended = planes.boundary[next(b for b in range(depth - 2, 0, -1) if b not in boundaries)]
        yield Mutator("embedding missing", first, "planes", (0,), lambda slots: [*slots[1:], appended])
    yield Mutator("strip first", first, "planes", (0,), lambda slots: slots[1:])
    yield Mutator("strip last", "slot-missing", "planes", (count - 1,), lambda slots: slots[:-1])
    yield Mutator("reverse", "order", "planes", every, lambda slots: slots[::-1])
    if count > 2:  # noqa: PLR2004
        yield Mutator("rotate slots", "order", "planes", every, lambda slots: [*slots[1:], slots[0]])
    for slot in range(1, count):
        yield Mutator(f"duplicate 0 into {slot}", "slot-duplicate", "planes", (slot,), _copied(slot))


def _state_mutators(planes: Planes, boundaries: tuple[int, ...], slot: int) -> Iterator[Mutator]:
    """Yield wrong states of the residual stream at one slot."""
    b, depth = boundaries[slot], len(planes.boundary) - 1
    replaced: list[tuple[str, str, Tensor]] = []
    if b > 0:
        lower, added = planes.boundary[b - 1], planes.mlp_output[b]
        replaced += [
            ("mlp only", "residual-missing", added),
            ("block only", "residual-missing", planes.boundary[b] - lower),
            ("partial sum", "partial-sum", planes.mid_block[b - 1] + 0.5 * added),
        ]
    if b < depth:
        replaced.append(("mid block", "mid-block", planes.mid_block[b]))
    for name, slug, value in replaced:
        yield Mutator(f"{name} {slot}", slug, f"slot {slot}", (slot,), _put(slot, _instead(value)))
    last = b == depth
    change = _put(slot, planes.norm if last else _rms)
    yield Mutator(f"normalise {slot}", "final-norm" if last else "norm-before-fc", f"slot {slot}", (slot,), change)


def _value_mutators(slot: int) -> Iterator[Mutator]:
    """Yield faults of one slot's values that need no plane."""
    changes: dict[str, tuple[str, Callable[[Tensor], Tensor]]] = {
        f"scale {slot} x0.5": ("scale", lambda item: item * 0.5),
        f"scale {slot} x1.5": ("scale", lambda item: item * 1.5),
        f"zero {slot}": ("zero", torch.zeros_like),
        f"constant {slot}": ("constant", lambda item: item[:1].expand_as(item)),
        f"nan {slot}": ("non-finite", _nan),
    }
    for name, (slug, change) in changes.items():
        yield Mutator(name, slug, f"slot {slot}", (slot,), _put(slot, change))


def _whole_mutators(planes: Planes, count: int, *, seed: int) -> Iterator[Mutator]:
    """Yield faults of all slots: a rotated basis, and rows."""
    every = tuple(range(count))
    width = planes.boundary[0].shape[1]
    noise = torch.randn(width, width, generator=torch.Generator().manual_seed(seed))
    rotation = torch.linalg.qr(noise)[0]
    yield Mutator("rotate basis", "basis", "states", every, _each(lambda item: item @ rotation))
    for offset in (-3, -1, 1, 3):
        yield Mutator(f"roll rows {offset:+d}", "rows-shifted", "rows", every, _each(_rolled(offset)))
    yield Mutator("swap requests", "rows-swapped", "rows", every, _each(_swapped))
    yield Mutator("every 8th row zero", "rows-corrupt", "rows", every, _each(_period))
    yield Mutator("drop first 16 rows", "rows-missing", "rows", every, _each(lambda item: item[16:]))


def _rms(values: Tensor) -> Tensor:
    return values / values.square().mean(dim=1, keepdim=True).sqrt().clamp(min=1e-30)


def _nan(values: Tensor) -> Tensor:
    out = values.clone()
    out[len(out) // 2, 0] = torch.nan
    return out


def _swapped(values: Tensor) -> Tensor:
    # Two blocks of unequal place: halves that change places would be a roll.
    part = len(values) * 3 // 8
    return torch.cat([values[part : 2 * part], values[:part], values[2 * part :]])


def _period(values: Tensor) -> Tensor:
    out = values.clone()
    out[7::8] = 0
    return out


def with_dtype(capture: Capture, dtype: torch.dtype) -> Capture:
    """Return a capture as a runtime of another dtype would have produced it: healthy variation."""
    calls = tuple(replace(call, values=call.values.to(dtype).float()) for call in capture.calls)
    return replace(capture, calls=calls)


def shift_tokens(capture: Capture, offset: int = 0, *, token_shift: int = 1, sampled: int = 0) -> Capture:
    """Return a capture whose drafter ids are ``offset`` tokens off (slug ``tokens-shifted``); 0 is a healthy pairing.

    Row t of each call and request is paired with its token t + ``token_shift`` + ``offset``; what lies outside of the
    call is ``sampled``, as a token that the runtime has just drawn. Calls without token ids stay as they are.
    """
    calls = []
    for call in capture.calls:
        if call.token_ids is None:
            calls.append(call)
            continue
        ids = list(call.token_ids)
        groups: dict[str, list[int]] = {}
        for row in range(len(ids)):
            groups.setdefault(call.requests[row] if call.requests else "", []).append(row)
        drafter = [sampled] * len(ids)
        for rows in groups.values():
            for place, row in enumerate(rows):
                partner = place + token_shift + offset
                if 0 <= partner < len(rows):
                    drafter[row] = ids[rows[partner]]
        calls.append(replace(call, drafter_token_ids=tuple(drafter)))
    return replace(capture, calls=tuple(calls))
