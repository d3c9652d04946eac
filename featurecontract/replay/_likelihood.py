"""Log-likelihood of the text's next token under the drafter's first step, token by token."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch.nn import functional

from featurecontract.replay._drafter import State
from featurecontract.replay._measure import pad

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from featurecontract.replay._drafter import Drafter
    from featurecontract.replay._slices import Slices
    from featurecontract.replay._texts import PlaneName, Text

__all__ = ["Bench"]

_MAX_LOGITS = 2**24


class Bench:
    """A fixed set of tokens on which wirings are compared.

    Only tokens of the drafter's own vocabulary are scored: the others have no likelihood under any wiring.

    Args:
        drafter: The weights.
        texts: Sequences with every plane that is to be compared.
        rows: Rows of each sequence, from its middle: the first ones have no context, and a row that all others attend
            to; None for all.
    """

    def __init__(self, drafter: Drafter, texts: Sequence[Text], *, rows: int | None = None) -> None:
        """Cut the sequences and find the labels."""
        self.drafter = drafter
        shift = drafter.spec.token_shift
        if rows is not None:
            texts = [_middle(text, rows + shift + 1) for text in texts]
        self.lengths = [len(text.token_ids) - shift - 1 for text in texts]
        kept = [index for index, length in enumerate(self.lengths) if length > 0]
        self.texts = [texts[index] for index in kept]
        self.lengths = [self.lengths[index] for index in kept]
        ids = [text.token_ids[: length + shift + 1] for text, length in zip(self.texts, self.lengths, strict=True)]
        tokens = pad(ids).to(drafter.device)
        width = max(self.lengths, default=0)
        self.inputs = tokens[:, shift : shift + width]
        label = tokens[:, shift + 1 : shift + 1 + width]
        at = torch.arange(width, device=drafter.device)[None]
        inside = at < torch.tensor(self.lengths, device=drafter.device)[:, None]
        counted = [
            torch.ones(length, dtype=torch.bool)
            if text.counted is None
            else text.counted[shift + 1 : shift + 1 + length].bool()
            for text, length in zip(self.texts, self.lengths, strict=True)
        ]
        self.labels = _draft_ids(drafter, label)
        self.scored = inside & pad(counted).to(drafter.device) & (self.labels >= 0)
        self.sizes = self.scored.sum(1).double().cpu()
        self.tokens = int(self.sizes.sum())
        self.positions = at + drafter.spec.position_offset

    def planes(self, names: Sequence[PlaneName]) -> dict[PlaneName, Tensor]:
        """Return ``[sequences, rows, H]`` of each plane, padded."""
        return {
            name: pad([text.planes[name][:length] for text, length in zip(self.texts, self.lengths, strict=True)]).to(
                self.drafter.device, self.drafter.dtype
            )
            for name in names
        }

    def of_slices(self, slices: Slices, wirings: Sequence[Sequence[PlaneName | None]]) -> Tensor:
        """Return float64 ``[wirings, sequences]``: log-likelihoods summed over the tokens of each sequence."""
        return self.of_states(torch.stack([slices.state(wiring) for wiring in wirings]))

    def replay(self, wiring: Sequence[PlaneName]) -> Tensor:
        """Return float64 ``[sequences]`` for one wiring, through ``fc`` as a whole: a full replay of step 1."""
        planes = self.planes(list(dict.fromkeys(wiring)))
        features = torch.cat([planes[name] for name in wiring], dim=-1)
        return self.of_states(self.drafter.project(features)[None])[0]

    def of_states(self, states: Tensor) -> Tensor:
        """Return the sums for states ``[wirings, sequences, rows, hidden]``."""
        count = len(states)
        batch = states.flatten(0, 1)
        ids = self.inputs[None].expand(count, -1, -1).flatten(0, 1)
        with torch.inference_mode():
            output = self.drafter.step(batch, ids, self.positions, State(self.drafter.spec.num_layers))
            scored = self.scored[None].expand(count, -1, -1).flatten(0, 1)
            values = self._values(output[scored], count)
        owner = torch.arange(len(batch), device=batch.device)[:, None].expand_as(scored)[scored]
        sums = torch.zeros(len(batch), dtype=torch.float64, device=batch.device)
        return sums.index_add_(0, owner, values).reshape(count, -1).cpu()

    def _values(self, rows: Tensor, count: int) -> Tensor:
        head = self.drafter.weights["head.weight"]
        wanted = self.labels[self.scored].repeat(count)
        block = max(1, _MAX_LOGITS // len(head))
        out = []
        for part, label in zip(
            torch.split(self.drafter.head_input(rows), block), torch.split(wanted, block), strict=True
        ):
            logits = functional.linear(part, head).float()
            value = logits.gather(1, label[:, None])[:, 0] - logits.logsumexp(-1)
            # A wiring that overflows is impossible, not missing.
            out.append(torch.nan_to_num(value, nan=-1e4, neginf=-1e4).double())
        return torch.cat(out) if out else rows.new_zeros(0, dtype=torch.float64)


def _middle(text: Text, tokens: int) -> Text:
    """Return so many tokens from the middle of a sequence, as a sequence of their own."""
    start = max(0, (len(text.token_ids) - tokens) // 2)
    cut = slice(start, start + tokens)
    planes = {name: plane[cut] for name, plane in text.planes.items()}
    return replace(
        text, token_ids=text.token_ids[cut], planes=planes, counted=None if text.counted is None else text.counted[cut]
    )


def _draft_ids(drafter: Drafter, tokens: Tensor) -> Tensor:
    """Return the drafter's id of each of the target's tokens, -1 for those that it cannot draft."""
    if drafter.to_target is None:
        return torch.where(tokens < drafter.spec.draft_vocab_size, tokens, -1)
    size = max(int(drafter.to_target.max()), int(tokens.max()) if tokens.numel() else 0) + 1
    inverse = torch.full((size,), -1, dtype=torch.int64, device=tokens.device)
    inverse[drafter.to_target] = torch.arange(len(drafter.to_target), device=tokens.device)
    return inverse[tokens]
