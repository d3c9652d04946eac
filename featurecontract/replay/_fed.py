"""A drafter on rows at hand: the probe's golden ones, and those that a runtime fed for the same tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from featurecontract.replay._texts import PlaneName, Text
from featurecontract.replay._unroll import unroll

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from torch import Tensor

    from featurecontract.capture import Call
    from featurecontract.replay._drafter import Drafter

__all__ = ["Fed", "drafted_tokens", "fed_rows", "text_of_rows"]

_LEAST = 8


class Fed(NamedTuple):
    """Rows of the first tokens of a sequence, as one request was fed them: ``values`` ``[rows, width]``."""

    phase: str
    values: Tensor


def fed_rows(calls: Iterable[Call], token_ids: Tensor) -> Iterator[Fed]:
    """Yield, by phase, what the first request that carries these tokens from position 0 on was fed.

    Args:
        calls: Calls of a merged capture, whole rows, in order; those of the point ``features`` are read.
        token_ids: int64 ``[tokens]``.

    A request is taken up to its first row that is missing, of a rejected draft, or of another token; one of fewer than
    eight rows is left out. Where nobody said positions, a request's rows count on from the call before.
    """
    wanted = token_ids.tolist()
    held: dict[tuple[str, str], dict[int, Tensor]] = {}
    following: dict[tuple[str, str], int] = {}
    for call in calls:
        if call.point != "features" or call.token_ids is None:
            continue
        for row, token in enumerate(call.token_ids):
            key = (call.phase, "" if call.requests is None else call.requests[row])
            position = following.get(key, 0) if call.positions is None else call.positions[row]
            following[key] = position + 1
            real = call.accepted is None or call.accepted[row]
            if real and 0 <= position < len(wanted) and token == wanted[position]:
                held.setdefault(key, {})[position] = call.values[row]
    seen: set[str] = set()
    for (phase, _), rows in held.items():
        count = next((at for at in range(len(wanted)) if at not in rows), len(wanted))
        if count >= _LEAST and phase not in seen:
            seen.add(phase)
            yield Fed(phase, torch.stack([rows[at] for at in range(count)]))


def text_of_rows(values: Tensor, token_ids: Tensor, planes: tuple[PlaneName, ...]) -> Text:
    """Return rows ``[rows, width]`` as a sequence whose planes, of equal width, have these names."""
    slots = torch.chunk(values, len(planes), dim=-1)
    return Text(token_ids=token_ids[: len(values)], planes=dict(zip(planes, slots, strict=True)))


def drafted_tokens(drafter: Drafter, features: Tensor, token_ids: Tensor, *, steps: int) -> Tensor:
    """Return int64 ``[rows, steps]``: what each row drafts when the text's own tokens are fed, in the target's ids.

    Args:
        drafter: The weights.
        features: ``[rows, width]``.
        token_ids: int64 ``[rows]``.
        steps: Draft steps.
    """
    with torch.inference_mode():
        states = drafter.project(features.to(drafter.device, drafter.dtype)[None])
        found = [
            drafter.tokens(drafter.logits(step.output))[0]
            for step in unroll(drafter, states, token_ids.to(drafter.device)[None], steps=steps)
        ]
    return torch.stack(found, dim=-1).cpu()
