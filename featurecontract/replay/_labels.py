"""What a search scores each row against: the target's own distribution of the next token, or the text's token.

A trainer teaches a drafter the target's distribution, cut to the drafter's vocabulary (speculators' KL loss,
SpecForge's soft labels). The text's token is one draw from it, and the draw is most of the noise of a comparison. So
where the target's logits are known, the likelihood is averaged over them; this needs no more work than one token:

    sum_v p(v) log q(v)  =  (sum_v p(v) head[v]) . row  -  logsumexp(head row)

and the sum in brackets is a row of the drafter's head like any other, the same for every wiring.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch.nn import functional

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import Tensor

    from featurecontract.replay._drafter import Drafter
    from featurecontract.replay._texts import Text

__all__ = ["Labelled", "labelled"]


class Labelled(NamedTuple):
    """One sequence and its labels; row t of each tensor belongs to token t.

    Attributes:
        text: The sequence, cut; it no longer holds what makes the target's logits.
        wanted: float32 ``[tokens, hidden]``: the head's row of token t, or the mean of the head's rows over the
            target's distribution of token t.
        scored: bool ``[tokens]``: the label is known, and the loss mask counts the token.
    """

    text: Text
    wanted: Tensor
    scored: Tensor


def labelled(drafter: Drafter, texts: Iterable[Text]) -> tuple[list[Labelled], bool]:
    """Label sequences, read one at a time; the second value says that all labels are the target's distribution.

    One without the target's logits gives the text's tokens to all: a comparison has one measure. So do logits that
    explain the text worse than chance does: they belong to another target.
    """
    kept: list[Text] = []
    taught: list[tuple[Tensor, Tensor]] = []
    total, count, soft = 0.0, 0, True
    with torch.inference_mode():
        for text in texts:
            logits = text.teacher(drafter.to_target) if soft and text.teacher is not None else None
            kept.append(replace(text, teacher=None))
            if logits is None or logits.shape != (len(text.token_ids), drafter.spec.draft_vocab_size):
                soft = False
                continue
            wanted, known, likelihoods = _mean_rows(drafter, text, logits)
            taught.append((wanted, known))
            total, count = total + float(likelihoods.sum()), count + len(likelihoods)
        soft = soft and count > 0 and total / count > -math.log(drafter.spec.draft_vocab_size)
        labels = taught if soft else [_token_rows(drafter, text) for text in kept]
    return [
        Labelled(text, wanted, known if text.counted is None else known & text.counted.to(known.device).bool())
        for text, (wanted, known) in zip(kept, labels, strict=True)
    ], soft


def _mean_rows(drafter: Drafter, text: Text, logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return mean head rows, which are known, and the log-likelihoods of the text's own tokens, where it has them."""
    head = drafter.weights["head.weight"].float()
    log = logits.to(head.device, torch.float32).log_softmax(dim=-1)[:-1]
    known = functional.pad(~log.isnan().any(-1), (1, 0))
    wanted = functional.pad(torch.nan_to_num(log.exp()) @ head, (0, 0, 1, 0))
    own = draft_ids(drafter, text.token_ids.to(head.device))[1:]
    said = known[1:] & (own >= 0)
    return wanted, known, log[said].gather(1, own[said][:, None])[:, 0]


def _token_rows(drafter: Drafter, text: Text) -> tuple[Tensor, Tensor]:
    head = drafter.weights["head.weight"]
    own = draft_ids(drafter, text.token_ids.to(head.device))
    return head[own.clamp(min=0)].float(), own >= 0


def draft_ids(drafter: Drafter, tokens: Tensor) -> Tensor:
    """Return the drafter's id of each of the target's tokens, -1 for those that it cannot draft."""
    if drafter.to_target is None:
        return torch.where(tokens < drafter.spec.draft_vocab_size, tokens, -1)
    size = max(int(drafter.to_target.max()), int(tokens.max()) if tokens.numel() else 0) + 1
    inverse = torch.full((size,), -1, dtype=torch.int64, device=tokens.device)
    inverse[drafter.to_target] = torch.arange(len(drafter.to_target), device=tokens.device)
    return inverse[tokens]
