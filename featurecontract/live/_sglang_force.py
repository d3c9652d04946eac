"""Decode steps on the probe's own tokens: a plugin of SGLang for live runs only, never part of an installed server.

The features of generated tokens can be compared only if those tokens are the probe's. So for requests whose id names
a given list, the target's sampler is made to choose the list's next token, and draft tokens are replaced so that each
verify step accepts as many as planned. Hidden states, layer ids and ``fc`` are not touched: what is fed for a token is
what the runtime feeds for it.

The file that FEATURECONTRACT_LIVE_FORCE names holds ``{"tokens": {PREFIX: [ids]}, "accepted": [counts]}``; a request
belongs to the list whose prefix its id begins with. Hook points: SGLang 0.5.23, srt/model_executor/model_runner.py,
srt/speculative/eagle_worker_common.py and eagle_worker_v2.py.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["VARIABLE", "plugin"]

VARIABLE = "FEATURECONTRACT_LIVE_FORCE"


class _Plan:
    """Which requests are forced, to which tokens, and how many drafts each of their steps accepts."""

    def __init__(self, path: str) -> None:
        given = json.loads(Path(path).read_text("utf-8"))
        self.tokens: dict[str, list[int]] = given["tokens"]
        self.accepted: list[int] = given["accepted"]
        self.steps: dict[str, int] = {}

    def of(self, request: str) -> list[int] | None:
        """Return the tokens of a request, None where it runs freely."""
        return next((ids for prefix, ids in self.tokens.items() if request.startswith(prefix)), None)

    def accepts(self, request: str) -> int:
        """Return how many drafts the request's next step accepts, and count the step."""
        step = self.steps.get(request, 0)
        self.steps[request] = step + 1
        return self.accepted[step % len(self.accepted)]


def plugin() -> None:
    """Register the hooks where the variable is set."""
    path = os.environ.get(VARIABLE)
    if not path:
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    plan = _Plan(path)

    def sample(original: Any, runner: Any, logits_output: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
        for row, (request, length) in enumerate(zip(batch.rids or (), batch.seq_lens.tolist(), strict=False)):
            _choose(logits_output.next_token_logits, row, plan.of(str(request)), length)
        return original(runner, logits_output, batch, *args, **kwargs)

    def verify(original: Any, drafted: Any, batch: Any, logits_output: Any, *args: Any, **kwargs: Any) -> Any:
        width = int(drafted.draft_token_num)
        for number, (request, length) in enumerate(zip(batch.reqs, batch.seq_lens.tolist(), strict=True)):
            for step in range(width):
                row, ids = number * width + step, plan.of(str(request.rid))
                _choose(logits_output.next_token_logits, row, ids, length + step + 1)
        return original(drafted, batch, logits_output, *args, **kwargs)

    def drafts(original: Any, worker: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
        # Behind the drafting, so that a capture of the draft tokens holds what was drafted.
        if not batch.forward_mode.is_idle():
            _replace_drafts(plan, batch)
        return original(worker, batch, *args, **kwargs)

    HookRegistry.register("sglang.srt.model_executor.model_runner.ModelRunner.sample", sample, HookType.AROUND)
    HookRegistry.register("sglang.srt.speculative.eagle_utils.eagle_sample", verify, HookType.AROUND)
    HookRegistry.register("sglang.srt.speculative.eagle_worker_v2.EAGLEWorkerV2.verify", drafts, HookType.AROUND)


def _replace_drafts(plan: _Plan, batch: Any) -> None:
    """Put the planned drafts of forced requests in place of the drafter's."""
    rows = batch.spec_info.draft_token.view(len(batch.reqs), -1)
    for number, (request, length) in enumerate(zip(batch.reqs, batch.seq_lens.tolist(), strict=True)):
        ids = plan.of(str(request.rid))
        if ids is not None:
            rows[number, 1:] = _drafts(ids[length + 1 :], plan.accepts(str(request.rid)), rows[number, 1:])


def _choose(logits: Tensor, row: int, ids: list[int] | None, place: int) -> None:
    """Make the token at ``place`` of a list the only choice of a row."""
    if ids is not None and place < len(ids):
        logits[row] = float("-inf")
        logits[row, ids[place]] = 0.0


def _drafts(coming: list[int], accepted: int, drafted: Tensor) -> Tensor:
    """Return drafts of which exactly the first ``accepted`` are what comes, as far as the list goes."""
    out = drafted.clone()
    for step in range(min(len(out), len(coming))):
        wanted = coming[step]
        if step < accepted:
            out[step] = wanted
        elif step == accepted:
            out[step] = wanted - 1 if wanted else wanted + 1
    return out
