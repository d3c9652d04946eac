"""What SGLang's scheduler batches say of their rows, as the fields of a tag; no import of SGLang.

Names and meanings: SGLang 0.5.23, srt/managers/schedule_batch.py, srt/speculative/eagle_worker_v2.py and
eagle_worker_common.py.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import torch
from torch import Tensor

__all__ = ["Progress", "decode_facts", "prefill_facts"]

_MAX_REQUESTS = 4096


class Progress:
    """How far each request was prefilled, to tell the next chunk from a prefix that came from the cache."""

    def __init__(self) -> None:
        self._seen: OrderedDict[str, tuple[int, int]] = OrderedDict()

    def take(self, request: str, start: int, stop: int) -> tuple[int, bool]:
        """Return the request's leading positions from the cache, and whether these rows follow an earlier chunk."""
        end, cached = self._seen.pop(request, (-1, start))
        follows = start == end
        if not follows:
            cached = start
        self._seen[request] = (stop, cached)
        while len(self._seen) > _MAX_REQUESTS:
            self._seen.popitem(last=False)
        return cached, follows


def prefill_facts(batch: Any, progress: Progress) -> dict[str, Any]:
    """Return what is known of the rows of a prefill: those of ``batch.input_ids``, before the drafter shifts them.

    Args:
        batch: A ``ScheduleBatch``: ``prefix_lens`` and ``extend_lens`` count, per request, the positions that were
            there before and the rows that are fed now.
        progress: What was prefilled before.
    """
    positions: list[int] = []
    requests: list[str] = []
    cached: dict[str, int] = {}
    chunked = False
    for request, before, count in zip(batch.reqs, batch.prefix_lens, batch.extend_lens, strict=True):
        label, start, stop = str(request.rid), int(before), int(before) + int(count)
        positions += range(start, stop)
        requests += [label] * int(count)
        leading, follows = progress.take(label, start, stop)
        chunked = chunked or follows or stop < len(request.origin_input_ids)
        if leading:
            cached[label] = leading
    if chunked:
        phase = "chunked-prefill"
    elif len(batch.reqs) > 1:
        phase = "batch"
    else:
        phase = "prefix-hit" if cached else "prefill"
    return {
        "token_ids": batch.input_ids,
        "positions": positions,
        "requests": requests,
        "cached": cached,
        "phase": phase,
    }


def decode_facts(batch: Any, result: Any, width: int) -> dict[str, Any]:
    """Return what is known of the rows that follow a verify step: ``width`` of each request, the first ones accepted.

    A row holds the features of the token that the target was given there: the last committed token in the first
    row, then the accepted ones, each of which is what the target predicted in the row before. Rows behind the accepted
    ones are of rejected tokens. Nothing is read from the device.

    Args:
        batch: The ``ScheduleBatch`` after verification; ``seq_lens`` is the length before it.
        result: The ``GenerationBatchResult``: ``next_token_ids`` ``[requests * width]`` is what the target predicted
            and the drafter is given, ``accept_lens`` ``[requests]`` counts accepted rows, the first one included.
        width: ``speculative_num_draft_tokens``.
    """
    count = len(batch.reqs)
    predicted = result.next_token_ids.reshape(-1).to(torch.int64)
    step = torch.arange(width, device=predicted.device)
    lengths = batch.seq_lens.reshape(-1, 1).to(predicted.device, torch.int64)
    accepted = result.accept_lens.reshape(-1, 1).to(predicted.device)
    facts: dict[str, Any] = {
        "positions": (lengths + step).reshape(-1),
        "requests": [str(request.rid) for request in batch.reqs for _ in range(width)],
        "accepted": (step < accepted).reshape(-1),
        "drafter_token_ids": predicted,
        "phase": "decode",
    }
    roots = _roots(batch.spec_info, count, width)
    if roots is not None and predicted.numel() == count * width:
        shifted = predicted.reshape(count, width)[:, :-1]
        facts["token_ids"] = torch.cat([roots.to(predicted), shifted], dim=1).reshape(-1)
    return facts


def _roots(verified: Any, count: int, width: int) -> Tensor | None:
    """Return ``[requests, 1]``: the committed token at the root of each request's draft."""
    drafted = getattr(verified, "draft_token", None)
    if not isinstance(drafted, Tensor) or drafted.numel() != count * width:
        return None
    return drafted.reshape(count, width)[:, :1]
