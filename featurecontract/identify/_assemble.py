"""Captured calls -> rows with the probe row that each one claims to be."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from featurecontract.identify._calibration import Limits

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from featurecontract.capture._record import Call
    from featurecontract.probe._data import ProbeData

__all__ = ["Segment", "segments_of"]

UNKNOWN = -1


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Segment:
    """Rows of one pass over one request, in order: ``values`` ``[rows, width]``, a view of the call where it can be.

    ``claimed`` is the probe row that each should be. ``cached`` counts leading positions that the runtime declared
    cached. ``drafter_token_ids`` int64 ``[rows]`` are the drafter's own ids, -1 where nobody said or where a call ended
    (the id behind its last rows is sampled by the runtime), None without any.
    """

    request: str
    values: Tensor
    claimed: Tensor
    cached: int = 0
    drafter_token_ids: Tensor | None = None


@dataclass(slots=True, eq=False, repr=False)
class _Open:
    """A request while its calls are read."""

    cached: int = 0
    next: int = 0
    broken: int | None = None
    pieces: list[tuple[Tensor, Tensor, Tensor]] = field(default_factory=list)


def segments_of(calls: Sequence[Call], probe: ProbeData, *, token_shift: int = 1) -> list[Segment]:
    """Split calls into passes over requests and give each row its probe row, by position and token where known.

    Rows of other prompts, padding and tokens that were not accepted are left out. A position that comes again begins
    another pass, so that no segment has more rows than the probe.
    """
    tokens = probe.token_ids
    requests: dict[str, _Open] = {}
    for call in calls:
        for request, rows in _by_request(call):
            held = requests.setdefault(request, _Open())
            held.cached = max(held.cached, call.cached.get(request, 0))
            _take(held, call, rows, tokens, token_shift)
    return [item for request, held in requests.items() for item in _passes(request, held)]


def _by_request(call: Call) -> list[tuple[str, Tensor]]:
    """Return the accepted rows of each request, ascending."""
    count = call.values.shape[0]
    rows = torch.arange(count)
    if call.accepted is not None:
        rows = rows[torch.tensor(call.accepted, dtype=torch.bool)]
    if call.requests is None:
        return [("", rows)] if len(rows) else []
    grouped: dict[str, list[int]] = {}
    for row in rows.tolist():
        grouped.setdefault(call.requests[row], []).append(row)
    return [(request, torch.tensor(listed)) for request, listed in grouped.items()]


def _take(held: _Open, call: Call, rows: Tensor, tokens: Tensor, token_shift: int) -> None:
    """Keep a call's rows that are the probe's."""
    given = torch.tensor(call.token_ids)[rows] if call.token_ids else None
    if call.positions is not None:
        positions = torch.tensor(call.positions)[rows]
    else:
        positions = _guessed(held, given, len(rows), tokens)
    inside = (positions >= 0) & (positions < len(tokens))
    if given is not None:
        same = inside & (tokens[positions.clamp(0, len(tokens) - 1)] == given)
        _note_other_context(held, positions[inside & ~same], positions[same])
        inside = same
    if held.broken is not None:
        inside &= positions < held.broken
    ids = torch.full((len(rows),), UNKNOWN)
    if call.drafter_token_ids:
        ids = torch.tensor(call.drafter_token_ids)[rows]
        ids[max(0, len(rows) - max(token_shift, 0)) :] = UNKNOWN
    if not inside.any():
        return
    kept, claimed, ids = rows[inside], positions[inside], ids[inside]
    # Cut before each position that does not go on.
    cuts = (torch.nonzero(claimed[1:] <= claimed[:-1]).flatten() + 1).tolist()
    for a, b in zip([0, *cuts], [*cuts, len(kept)], strict=True):
        held.pieces.append((_view(call.values, kept[a:b]), claimed[a:b], ids[a:b]))
    held.next = int(claimed[-1]) + 1


def _guessed(held: _Open, given: Tensor | None, count: int, tokens: Tensor) -> Tensor:
    """Return positions that nobody said: behind the last ones of this request, or behind what was declared cached.

    A call whose tokens are the probe's from its start is another pass over it.
    """
    steps = torch.arange(count)
    if held.next and given is not None:
        head = min(count, len(tokens))
        if bool((given[:head] == tokens[:head]).float().mean() >= Limits.ROW_MAJORITY):
            return steps
    return (held.next or held.cached) + steps


def _note_other_context(held: _Open, other: Tensor, same: Tensor) -> None:
    """Remember where a request stops being the probe: a row depends on all tokens before it.

    A position that also holds the probe's token does not count: padding often has the position of a real row.
    """
    other = other[torch.isin(other, same, invert=True)]
    if len(other):
        first = int(other.min())
        held.broken = first if held.broken is None else min(held.broken, first)


def _view(values: Tensor, rows: Tensor) -> Tensor:
    """Return rows of a call without a copy where they are a run."""
    first, last = int(rows[0]), int(rows[-1])
    return values[first : last + 1] if last - first + 1 == len(rows) else values[rows]


def _passes(request: str, held: _Open) -> list[Segment]:
    """Join pieces as long as their positions go on."""
    out: list[Segment] = []
    at = 0
    while at < len(held.pieces):
        end = at + 1
        while end < len(held.pieces) and int(held.pieces[end][1][0]) > int(held.pieces[end - 1][1][-1]):
            end += 1
        values, claimed, ids = zip(*held.pieces[at:end], strict=True)
        whole = values[0] if len(values) == 1 else torch.cat(values)
        drafter = torch.cat(ids)
        out.append(
            Segment(
                request=request,
                values=whole.float(),
                claimed=torch.cat(claimed),
                cached=held.cached,
                drafter_token_ids=drafter if bool((drafter != UNKNOWN).any()) else None,
            )
        )
        at = end
    return out
