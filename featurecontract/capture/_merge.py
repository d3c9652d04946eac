"""Captures of several processes as one: shards and stages side by side, replicas once, or a reason why not."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import torch

from featurecontract.capture._record import Call, Capture
from featurecontract.capture._tag import PER_ROW
from featurecontract.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["merge"]

_NEXT_STEP = "verify the captures one by one, or capture again with Tap(..., shard=(index, count)) on every rank"

_MAX_NAMED = 8


class _Placed(NamedTuple):
    """A call, and its place among the calls of its own process."""

    order: int
    capture: int
    call: Call


def merge(captures: Sequence[Capture]) -> Capture:
    """Return one capture with whole rows, in call order.

    * Calls that hold a shard are gathered: the k-th call of shard 0 with the k-th of shard 1, and so on, columns (or
      rows, where the tap said ``shard_axis="rows"``) in the order of the shards.
    * Calls of different pipeline stages, without shards, are gathered the same way, in the order of the stages.
    * Equal calls of several ranks are replicas and kept once. Unequal ones are all kept: each is held against the
      contract, since one rank may be wrong alone.

    Raises:
        InputError: ``nothing-captured``: there is no call, a shard is missing, the shards have different numbers of
            calls or rows, or the captures are of different contracts.
    """
    held = [capture for capture in captures if capture.calls or capture.failure]
    if not any(capture.calls for capture in held):
        failures = "; ".join(capture.failure for capture in held[:3])
        _refuse(f"no call was captured{f' ({failures})' if failures else ''}", "run the model while the taps are on")
    contracts = sorted({capture.contract_sha256 for capture in held} - {""})
    if len(contracts) > 1:
        shown = ", ".join(sha256[:12] for sha256 in contracts[:4])
        _refuse(f"the captures are of {len(contracts)} contracts ({shown})", "merge those of one drafter only")
    groups: dict[tuple[Any, ...], list[_Placed]] = defaultdict(list)
    for number, capture in enumerate(held):
        for order, call in enumerate(capture.calls):
            groups[_group(call)].append(_Placed(order, number, call))
    cut = {number for number, capture in enumerate(held) if capture.dropped}
    if any(held[number].extra.get("keep") == "last" for number in cut) and len(held) > 1:
        _refuse("a capture that keeps its last calls has dropped some, so nobody knows which fit together", _NEXT_STEP)
    merged: list[_Placed] = []
    for (point, count, _), placed in groups.items():
        if count:
            merged += _gather(
                placed,
                [placed_call.call.shard[0] for placed_call in placed if placed_call.call.shard],
                range(count),
                what="shard",
                point=point,
                cut=cut,
            )
            continue
        stages = sorted({item.call.stage for item in placed})
        if len(stages) > 1:
            merged += _gather(placed, [item.call.stage for item in placed], stages, what="stage", point=point, cut=cut)
        else:
            merged += _without_replicas(placed)
    merged.sort(key=lambda item: (item.order, item.capture))
    return Capture(
        calls=tuple(item.call for item in merged),
        runtime=next((capture.runtime for capture in held if capture.runtime), ""),
        contract_sha256=contracts[0] if contracts else "",
        failure="; ".join(f"{capture.source}: {capture.failure}" for capture in held if capture.failure),
        dropped=sum(capture.dropped for capture in held),
        source=", ".join(capture.source for capture in held[:8]),
        extra={"merged": len(held)} | dict(held[0].extra),
    )


def _group(call: Call) -> tuple[Any, ...]:
    """Return what calls must share to be parts of one another."""
    # Places differ in name between stages; between the shards of one projection they do not.
    return call.point, call.shard[1] if call.shard else 0, call.extra.get("place") if call.shard else None


def _gather(
    placed: list[_Placed], keys: list[int], wanted: Sequence[int], *, what: str, point: str, cut: set[int]
) -> list[_Placed]:
    """Gather the k-th calls of every shard (or stage)."""
    parts: dict[int, list[_Placed]] = defaultdict(list)
    for key, item in zip(keys, placed, strict=True):
        parts[key].append(item)
    # The first one is enough: the count of shards is the file's word.
    missing = next((key for key in wanted if key not in parts), None)
    if missing is not None:
        there = ", ".join(str(key) for key in sorted(parts)[:_MAX_NAMED])
        _refuse(f"{point}: {what} {missing} of {len(wanted)} is missing (there are: {there})", _NEXT_STEP)
    columns = [_without_replicas(parts[key]) for key in wanted]
    lengths = [len(column) for column in columns]
    if len(set(lengths)) > 1 and not cut:
        shown = ", ".join(f"{what} {key}: {length}" for key, length in zip(wanted, lengths, strict=True))
        _refuse(f"{point}: the numbers of calls differ ({shown})", _NEXT_STEP)
    # Where a bound cut one of them short at its end, what all have is still whole.
    return [_join(column, what=what, point=point) for column in zip(*columns, strict=False)]


def _join(parts: tuple[_Placed, ...], *, what: str, point: str) -> _Placed:
    first = parts[0].call
    by_rows = first.extra.get("shard_axis") == "rows"
    sizes = [tuple(item.call.values.shape) for item in parts]
    if len({width if by_rows else rows for rows, width in sizes}) > 1:
        shown = ", ".join(str(list(size)) for size in sizes[:8])
        _refuse(
            f"{point}: call {parts[0].order} has different {'widths' if by_rows else 'rows'} per {what} ({shown})",
            _NEXT_STEP,
        )
    facts: dict[str, Any] = {}
    for name in PER_ROW:
        said = [getattr(item.call, name) for item in parts]
        if by_rows:
            facts[name] = None if None in said else tuple(value for part in said for value in part)
        else:
            known = {part for part in said if part is not None}
            if len(known) > 1:
                _refuse(f"{point}: call {parts[0].order} has different {name} per {what}", _NEXT_STEP)
            facts[name] = next(iter(known), None)
    values = torch.cat([item.call.values for item in parts], dim=0 if by_rows else 1)
    ranks = sorted({item.call.rank for item in parts})
    extra = {key: value for key, value in first.extra.items() if key != "shard_axis"}
    call = replace(first, values=values, shard=None, extra=extra | {"gathered": what, "ranks": ranks}, **facts)
    return _Placed(parts[0].order, parts[0].capture, call)


def _without_replicas(placed: list[_Placed]) -> list[_Placed]:
    """Return the calls without those that another process holds as well, in call order."""
    ordered = sorted(placed, key=lambda item: (item.order, item.capture))
    by_capture: dict[int, list[_Placed]] = defaultdict(list)
    for item in ordered:
        by_capture[item.capture].append(item)
    first, *others = by_capture.values()
    kept = list(first)
    for other in others:
        for number, item in enumerate(other):
            # The k-th call of one replica is the k-th of another.
            if number >= len(first) or not _equal(first[number].call, item.call):
                kept.append(item)
    return sorted(kept, key=lambda item: (item.order, item.capture))


def _equal(one: Call, other: Call) -> bool:
    same_facts = all(getattr(one, name) == getattr(other, name) for name in (*PER_ROW, "phase", "shard"))
    if not same_facts or one.values.shape != other.values.shape:
        return False
    # Two NaN at one place are equal here.
    return bool(((one.values == other.values) | (one.values.isnan() & other.values.isnan())).all())


def _refuse(message: str, next_step: str) -> NoReturn:
    raise InputError.single("captures", f"cannot be merged: {message}", next_step=next_step, slug="nothing-captured")
