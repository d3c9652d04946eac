"""The drafter's own input ids against the probe's tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from featurecontract.identify._assemble import UNKNOWN
from featurecontract.identify._calibration import Limits
from featurecontract.identify._work import Work, add

if TYPE_CHECKING:
    from torch import Tensor

    from featurecontract.identify._assemble import Segment

__all__ = ["say_tokens"]

# Offsets that are looked for. The faults on record are one or two tokens off.
FARTHEST = 8


def say_tokens(work: Work, segments: list[Segment]) -> None:
    """Say where the drafter embeds other tokens than the contract's ``alignment.token_shift`` pairs with the rows.

    One finding for each offset. Rows whose partner is no token of the probe are not counted, nor are the last ones of
    each call: the runtime sampled theirs.
    """
    by_offset: dict[int, list[Segment]] = {}
    unfit: list[Segment] = []
    for segment in segments:
        found = _offset(work, segment)
        if found is None:
            unfit.append(segment)
        elif found:
            by_offset.setdefault(found, []).append(segment)
    shift = work.contract.alignment.token_shift
    for offset, listed in sorted(by_offset.items()):
        add(
            work,
            "tokens-shifted",
            f"row t{_whose(listed)} is paired with the embedding of token {_plus(shift + offset)}, the contract says "
            f"{_plus(shift)}: the drafter's input ids are {offset:+d} against its features",
            (),
            expected=shift,
            actual=shift + offset,
            details={"offset": offset},
            next_step="look where the runtime shifts the drafter's input ids: once too often, or not at all",
        )
    if unfit:
        add(
            work,
            "tokens-shifted",
            f"the drafter's input ids{_whose(unfit)} are the probe's tokens at no offset, so their pairing with the "
            "rows was not compared",
            (),
            severity="note",
            next_step="check that the capture's drafter_token_ids are what the drafter embeds",
        )


def _offset(work: Work, segment: Segment) -> int | None:
    """Return how far a segment's drafter ids are off: 0 in place or too few to say, None where no offset fits."""
    ids = segment.drafter_token_ids
    if ids is None:
        return 0
    tokens = work.probe.token_ids
    wanted = segment.claimed + work.contract.alignment.token_shift
    known = ids != UNKNOWN
    places = {offset: _agreeing(ids, wanted + offset, known, tokens) for offset in range(-FARTHEST, FARTHEST + 1)}
    counted = {offset: (share, count) for offset, (share, count) in places.items() if count >= Limits.FEWEST_ROWS // 2}
    if 0 not in counted or counted[0][0] >= Limits.ROW_MAJORITY:
        return 0
    best = max(counted, key=lambda offset: (counted[offset][0], -abs(offset)))
    return best if counted[best][0] >= Limits.ROW_MAJORITY else None


def _agreeing(ids: Tensor, places: Tensor, known: Tensor, tokens: Tensor) -> tuple[float, int]:
    """Return the share of rows that hold the token at their place, and how many rows have one."""
    inside = known & (places >= 0) & (places < len(tokens))
    count = int(inside.sum())
    if not count:
        return 0.0, 0
    same = ids[inside] == tokens[places[inside]]
    return float(torch.mean(same.float())), count


def _whose(segments: list[Segment]) -> str:
    names = list(dict.fromkeys(item.request for item in segments if item.request))
    if not names:
        return ""
    return f" of request {', '.join(names[:4])}" + (f" and {len(names) - 4} more" if len(names) > 4 else "")  # noqa: PLR2004


def _plus(shift: int) -> str:
    return f"t{shift:+d}" if shift else "t"
