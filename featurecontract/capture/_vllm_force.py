"""Teacher forcing in a vLLM worker, for tests of decoding: a single request emits tokens that are known beforehand.

The rows of decode steps are rows of the tokens that were emitted, and a probe knows only its own. So the sampler's
answer and the drafts are replaced, each behind the code that is tested: what the target computes for its rows and what
is fed to the drafter stay vLLM's own. Drafts beyond the asked number of accepted ones are wrong on purpose, so rows of
rejected drafts are there too. V1 runner only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from featurecontract.capture._method import replace_method

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["force_tokens"]

_REJECTED = -1  # vLLM's PLACEHOLDER_TOKEN_ID (v1/sample/rejection_sampler.py)


def force_tokens(
    runner: Any, drafter: Any, token_ids: Sequence[int], start: int, accepted: Sequence[int]
) -> Callable[[], None]:
    """Make the runner emit ``token_ids[start:]`` and, behind them, the last one; return the way back.

    Args:
        runner: The V1 model runner.
        drafter: Its proposer.
        token_ids: Prompt and continuation.
        start: Length of the prompt.
        accepted: Drafts that each verification accepts, in turn.
    """
    ids = [int(item) for item in token_ids]
    state = {"next": start, "step": 0}

    def token(place: int) -> int:
        return ids[min(place, len(ids) - 1)]

    def sample(call: Callable[[], Any], _args: Any, _kwargs: Any) -> Any:
        found = call()
        sampled = found.sampled_token_ids
        count = 1
        # A prefill has one column and verifies nothing.
        if sampled.shape[1] > 1:
            count = min(accepted[state["step"] % len(accepted)], sampled.shape[1] - 1) + 1
            state["step"] += 1
        row = [token(state["next"] + place) if place < count else _REJECTED for place in range(sampled.shape[1])]
        sampled.copy_(sampled.new_tensor([row] * sampled.shape[0]))
        state["next"] += count
        return found

    def propose(call: Callable[[], Any], _args: Any, _kwargs: Any) -> Any:
        drafts = call()
        good = accepted[state["step"] % len(accepted)]
        row = []
        for place in range(drafts.shape[1]):
            right = token(state["next"] + place)
            row.append(right if place < good else next(item for item in ids if item != right))
        drafts.copy_(drafts.new_tensor([row] * drafts.shape[0]))
        return drafts

    back = [replace_method(runner, "_sample", sample), replace_method(drafter, "propose", propose)]

    def restore() -> None:
        for undo in reversed(back):
            undo()

    return restore
