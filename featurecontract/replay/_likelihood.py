"""Log-likelihood of the next token under the drafter's first step, by sequence and wiring."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn import functional

from featurecontract.replay._drafter import State
from featurecontract.replay._labels import Labelled
from featurecontract.replay._measure import pad

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from featurecontract.replay._drafter import Drafter
    from featurecontract.replay._slices import Slices
    from featurecontract.replay._texts import PlaneName

__all__ = ["Bench"]

# Elements of one piece of logits: small enough for a processor's cache.
_MAX_LOGITS = 2**22
# Rows that are run together, of all wirings of a chunk.
_MAX_ROWS = 4096


class Bench:
    """A fixed set of rows on which wirings are compared.

    Args:
        drafter: The weights.
        samples: Sequences with their labels, and every plane that is to be compared.
        rows: Rows of each sequence, from its middle: the first ones have no context, and a row that all others attend
            to; None for all.
    """

    def __init__(self, drafter: Drafter, samples: Sequence[Labelled], *, rows: int | None = None) -> None:
        """Cut the sequences and lay out the labels."""
        self.drafter = drafter
        shift = drafter.spec.token_shift
        if rows is not None:
            samples = [_middle(sample, rows + shift + 1) for sample in samples]
        self.samples = [sample for sample in samples if len(sample.text.token_ids) > shift + 1]
        self.lengths = [len(sample.text.token_ids) - shift - 1 for sample in self.samples]
        width, device = max(self.lengths, default=0), drafter.device
        # Row t drafts token t + shift + 1.
        self.inputs = self._padded([sample.text.token_ids[shift:-1] for sample in self.samples])
        self.scored = self._padded([sample.scored[shift + 1 :] for sample in self.samples])
        self.wanted = self._padded([sample.wanted[shift + 1 :] for sample in self.samples])[self.scored]
        self.sizes = self.scored.sum(1).double().cpu()
        self.tokens = int(self.sizes.sum())
        self.rows = width * len(self.samples)
        self.positions = torch.arange(width, device=device)[None] + drafter.spec.position_offset

    def _padded(self, rows: Sequence[Tensor]) -> Tensor:
        return pad(rows).to(self.drafter.device) if rows else torch.zeros(0, 0, device=self.drafter.device).bool()

    def plane(self, name: PlaneName) -> Tensor:
        """Return ``[sequences, rows, H]`` of one plane, padded."""
        pieces = [
            sample.text.planes[name][:length] for sample, length in zip(self.samples, self.lengths, strict=True)
        ]
        return pad(pieces).to(self.drafter.device, self.drafter.dtype)

    def of_slices(self, slices: Slices, wirings: Sequence[Sequence[PlaneName | None]]) -> Tensor:
        """Return float64 ``[wirings, sequences]``: log-likelihoods summed over the tokens of each sequence."""
        size = max(1, _MAX_ROWS // max(1, self.rows))
        parts = [wirings[start : start + size] for start in range(0, len(wirings), size)]
        return torch.cat([self.of_states(torch.stack([slices.state(wiring) for wiring in part])) for part in parts])

    def replay(self, wiring: Sequence[PlaneName]) -> Tensor:
        """Return float64 ``[sequences]`` for one wiring, through ``fc`` as a whole: a replay of step 1."""
        planes = {name: self.plane(name) for name in dict.fromkeys(wiring)}
        with torch.inference_mode():
            states = self.drafter.project(torch.cat([planes[name] for name in wiring], dim=-1))
        return self.of_states(states[None])[0]

    def of_states(self, states: Tensor) -> Tensor:
        """Return the sums for states ``[wirings, sequences, rows, hidden]``."""
        count = len(states)
        batch = states.flatten(0, 1)
        ids = self.inputs.repeat(count, 1)
        scored = self.scored.repeat(count, 1)
        with torch.inference_mode():
            output = self.drafter.step(batch, ids, self.positions, State(self.drafter.spec.num_layers))
            values = self._values(output[scored], count)
        owner = torch.arange(len(batch), device=batch.device)[:, None].expand_as(scored)[scored]
        sums = torch.zeros(len(batch), dtype=torch.float64, device=batch.device)
        return sums.index_add_(0, owner, values).reshape(count, -1).cpu()

    def _values(self, rows: Tensor, count: int) -> Tensor:
        head = self.drafter.weights["head.weight"]
        block = max(1, _MAX_LOGITS // len(head))
        out = []
        for part, wanted in zip(
            torch.split(self.drafter.head_input(rows), block),
            torch.split(self.wanted.repeat(count, 1), block),
            strict=True,
        ):
            value = (part.float() * wanted).sum(-1) - functional.linear(part, head).float().logsumexp(-1)
            # A wiring that overflows is impossible, not missing.
            out.append(torch.nan_to_num(value, nan=-1e4, posinf=-1e4, neginf=-1e4).double())
        return torch.cat(out) if out else rows.new_zeros(0, dtype=torch.float64)


def _middle(sample: Labelled, tokens: int) -> Labelled:
    """Return so many tokens from the middle of a sequence, as a sequence of their own."""
    start = max(0, (len(sample.text.token_ids) - tokens) // 2)
    cut = slice(start, start + tokens)
    return Labelled(sample.text.cut(cut), sample.wanted[cut], sample.scored[cut])
