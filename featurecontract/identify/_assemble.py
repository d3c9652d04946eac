"""Captured calls -> rows with the probe row that each one claims to be."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import Tensor

    from featurecontract.capture._record import Call
    from featurecontract.probe._data import ProbeData

__all__ = ["Segment", "segments_of"]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Segment:
    """Rows of one request, in order: ``values`` ``[rows, width]``, ``claimed`` the probe row that each should be.

    ``cached`` counts leading positions that the runtime declared cached; ``foreign`` counts captured rows that are none
    of the probe's: other prompts, padding.
    """

    request: str
    values: Tensor
    claimed: Tensor
    cached: int = 0
    foreign: int = 0
    drafter_token_ids: tuple[int | None, ...] = field(default=())


def segments_of(calls: Sequence[Call], probe: ProbeData) -> list[Segment]:
    """Split calls into requests and give each row its probe row, by position and token where they are known."""
    tokens = probe.token_ids.tolist()
    rows: dict[str, list[tuple[Tensor, int, int | None]]] = {}
    cached: dict[str, int] = {}
    foreign: dict[str, int] = {}
    for call in calls:
        for request, value, position, token, drafter in _rows(call, rows):
            cached[request] = max(cached.get(request, 0), call.cached.get(request, 0))
            known = 0 <= position < len(tokens) and (token is None or token == tokens[position])
            if known:
                rows.setdefault(request, []).append((value, position, drafter))
            else:
                foreign[request] = foreign.get(request, 0) + 1
    return [
        Segment(
            request=request,
            values=torch.stack([value for value, _, _ in items]).float(),
            claimed=torch.tensor([position for _, position, _ in items]),
            cached=cached.get(request, 0),
            foreign=foreign.get(request, 0),
            drafter_token_ids=tuple(drafter for _, _, drafter in items),
        )
        for request, items in rows.items()
        if items
    ]


def _rows(
    call: Call, before: dict[str, list[tuple[Tensor, int, int | None]]]
) -> Iterator[tuple[str, Tensor, int, int | None, int | None]]:
    """Yield (request, row, position, token, drafter token); rows of tokens that were not accepted are left out."""
    counts: dict[str, int] = {}
    for index in range(call.values.shape[0]):
        request = call.requests[index] if call.requests else ""
        if call.accepted is not None and not call.accepted[index]:
            continue
        if call.positions is not None:
            position = call.positions[index]
        else:
            # Nobody said: rows go on from the last one of this request, behind what was declared cached.
            start = len(before.get(request, ())) or call.cached.get(request, 0)
            position = start + counts.get(request, 0) if request not in before else start
            counts[request] = counts.get(request, 0) + 1
        token = call.token_ids[index] if call.token_ids else None
        drafter = call.drafter_token_ids[index] if call.drafter_token_ids else None
        yield request, call.values[index], position, token, drafter
