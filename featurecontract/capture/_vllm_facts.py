"""What vLLM knows of the rows of one step, as the fields of a tag; nothing here waits for the device.

Rows are those that the target ran: every request's scheduled tokens one behind the other. A decode step holds the last
token and all drafts, rejected ones too; a row is accepted when its token is.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

__all__ = ["Requests", "Step", "accepted_rows", "facts_v1", "facts_v2"]


class Step(NamedTuple):
    """One request in one step: its label, the position that its rows start at, their number, its prompt's length."""

    request: str
    start: int
    rows: int
    prompt: int


@dataclass(slots=True)
class Requests:
    """Which requests took leading positions from the prefix cache: known when a request is first seen."""

    cached: dict[str, int] = field(default_factory=dict)
    seen: dict[str, None] = field(default_factory=dict)

    def phase_of(self, steps: Sequence[Step]) -> tuple[str, dict[str, int]]:
        """Return the phase of a call, and the cached positions of its requests."""
        for step in steps:
            if step.request not in self.seen:
                self.seen[step.request] = None
                if step.start > 0:
                    self.cached[step.request] = step.start
        # A server runs for months.
        while len(self.seen) > _MAX_REQUESTS:
            oldest = next(iter(self.seen))
            del self.seen[oldest]
            self.cached.pop(oldest, None)
        cached = {step.request: self.cached[step.request] for step in steps if step.request in self.cached}
        if len(steps) > 1:
            return "batch", cached
        only = steps[0]
        if only.start >= only.prompt:
            return "decode", cached
        if only.request in self.cached:
            return "prefix-hit", cached
        return ("prefill" if only.start == 0 and only.rows >= only.prompt else "chunked-prefill"), cached


_MAX_REQUESTS = 4096


def facts_v1(runner: Any, scheduled: Mapping[str, int], given: Mapping[str, Any], requests: Requests) -> dict[str, Any]:
    """Return the facts of a step of the V1 runner.

    Args:
        runner: vLLM's GPUModelRunner (v1/worker/gpu_model_runner.py).
        scheduled: ``SchedulerOutput.num_scheduled_tokens``.
        given: The arguments of ``SpecDecodeBaseProposer.propose``.
        requests: What was seen before.
    """
    batch = runner.input_batch
    labels = list(batch.req_ids[: batch.num_reqs])
    states = [runner.requests[label] for label in labels]
    steps = [
        Step(label, int(state.num_computed_tokens), int(scheduled[label]), int(state.num_prompt_tokens))
        for label, state in zip(labels, states, strict=True)
    ]
    meta = given["common_attn_metadata"]
    tokens: Tensor = given["target_token_ids"]
    positions: Tensor = given["target_positions"]
    bounds = meta.query_start_loc_cpu.tolist()
    phase, cached = requests.phase_of(steps)
    return {
        "token_ids": tokens,
        # Of the three rows of positions of M-RoPE, text has all equal.
        "positions": positions if positions.ndim == 1 else positions[0],
        "requests": _row_labels(labels, [stop - start for start, stop in pairwise(bounds)]),
        "accepted": accepted_rows(meta.query_start_loc, tokens.shape[0], given.get("num_rejected_tokens_gpu")),
        "phase": phase,
        "cached": cached,
    }


def facts_v2(given: Mapping[str, Any], requests: Requests) -> dict[str, Any]:
    """Return the facts of a step of the V2 runner, from the arguments of a speculator's ``propose``."""
    batch = given["input_batch"]
    labels = list(batch.req_ids[: batch.num_reqs])
    counts = [int(item) for item in batch.num_scheduled_tokens[: batch.num_reqs]]
    starts = batch.num_computed_tokens_np[: batch.num_reqs]
    prompts = batch.prefill_len_np[: batch.num_reqs]
    steps = [Step(*item) for item in zip(labels, map(int, starts), counts, map(int, prompts), strict=True)]
    rows = int(batch.num_tokens)
    phase, cached = requests.phase_of(steps)
    return {
        "token_ids": batch.input_ids[:rows],
        "positions": batch.positions[:rows],
        "requests": _row_labels(labels, counts),
        "accepted": accepted_rows(batch.query_start_loc[: batch.num_reqs + 1], rows, given.get("num_rejected")),
        "phase": phase,
        "cached": cached,
    }


def accepted_rows(bounds: Tensor, rows: int, rejected: Tensor | None) -> Tensor | None:
    """Return bool ``[rows]``: the last ``rejected[i]`` rows of request i are False; None where nothing was rejected.

    ``bounds`` is int ``[requests + 1]``, the running sum of rows.
    """
    if rejected is None:
        return None
    ends = bounds[1:].to(torch.int64)
    row = torch.arange(rows, device=bounds.device)
    request = torch.searchsorted(ends, row, right=True).clamp_(max=ends.shape[0] - 1)
    return row < ends[request] - rejected.to(torch.int64)[request]


def _row_labels(labels: Sequence[str], counts: Sequence[int]) -> Any:
    if len(labels) == 1:
        return labels[0]
    return [label for label, count in zip(labels, counts, strict=False) for _ in range(count)]
