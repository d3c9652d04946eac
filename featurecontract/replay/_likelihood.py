"""Log-likelihood of the next token under the drafter's first step, by sequence and wiring."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn import functional

from featurecontract.replay._drafter import State
from featurecontract.replay._labels import Labelled
from featurecontract.replay._measure import pad

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch import Tensor

    from featurecontract.replay._drafter import Drafter
    from featurecontract.replay._slices import Slices
    from featurecontract.replay._texts import PlaneName

__all__ = ["Bench"]

# Elements of one piece of logits: small enough for a processor's cache.
_MAX_LOGITS = 2**22
# Rows that are run together, of all sequences and wirings: they bound the memory.
_MAX_ROWS = 2048


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
        self.positions = torch.arange(width, device=device)[None] + drafter.spec.position_offset

    def _padded(self, rows: Sequence[Tensor]) -> Tensor:
        return pad(rows).to(self.drafter.device) if rows else torch.zeros(0, 0, device=self.drafter.device).bool()

    def plane(self, name: PlaneName, part: slice = slice(None)) -> Tensor:
        """Return ``[sequences, rows, H]`` of one plane, padded; ``part`` of the sequences."""
        width = int(self.inputs.shape[1])
        pieces = [
            functional.pad(sample.text.planes[name][:length], (0, 0, 0, width - length))
            for sample, length in zip(self.samples[part], self.lengths[part], strict=True)
        ]
        return torch.stack(pieces).to(self.drafter.device, self.drafter.dtype)

    def parts(self) -> Iterator[slice]:
        """Yield groups of sequences that are run together."""
        size = max(1, _MAX_ROWS // max(1, int(self.inputs.shape[1])))
        for start in range(0, len(self.samples), size):
            yield slice(start, start + size)

    def of_slices(self, slices: Slices, wirings: Sequence[Sequence[PlaneName | None]]) -> Tensor:
        """Return float64 ``[wirings, sequences]``: log-likelihoods summed over the tokens of each sequence."""
        size = max(1, _MAX_ROWS // max(1, self.scored.numel()))
        groups = [wirings[start : start + size] for start in range(0, len(wirings), size)]
        return torch.cat([self.of_states(torch.stack([slices.state(wiring) for wiring in group])) for group in groups])

    def replay(self, wiring: Sequence[PlaneName]) -> Tensor:
        """Return float64 ``[sequences]`` for one wiring, through ``fc`` as a whole: a replay of step 1."""
        return self._through(lambda part: torch.cat([self.plane(name, part) for name in wiring], dim=-1))

    def between(self, wiring: Sequence[PlaneName], other: Sequence[PlaneName], share: float) -> Tensor:
        """Return float64 ``[sequences]`` for features that lie a share of the way from one wiring to another."""

        def mixed(part: slice) -> Tensor:
            mine, theirs = (torch.cat([self.plane(name, part) for name in names], dim=-1) for names in (wiring, other))
            return torch.lerp(mine, theirs, share)

        return self._through(mixed)

    def blind(self, names: Sequence[PlaneName], slots: int) -> Tensor:
        """Return float64 ``[sequences]`` for features that say nothing: the mean over these planes in every slot."""

        def mean(part: slice) -> Tensor:
            total = self.plane(names[0], part)
            for name in names[1:]:
                total = total + self.plane(name, part)
            return (total / len(names)).repeat(1, 1, slots)

        return self._through(mean)

    def _through(self, features: Callable[[slice], Tensor]) -> Tensor:
        out = []
        for part in self.parts():
            with torch.inference_mode():
                states = self.drafter.project(features(part))
            out.append(self.of_states(states[None], part)[0])
        return torch.cat(out)

    def of_states(self, states: Tensor, part: slice = slice(None)) -> Tensor:
        """Return the sums for states ``[wirings, sequences, rows, hidden]``; ``part`` says of which sequences."""
        count = len(states)
        batch = states.flatten(0, 1)
        scored = self.scored[part].repeat(count, 1)
        first = int(self.sizes[: part.start or 0].sum())
        wanted = self.wanted[first : first + int(self.sizes[part].sum())].repeat(count, 1)
        with torch.inference_mode():
            carry = State(self.drafter.spec.num_layers)
            output = self.drafter.step(batch, self.inputs[part].repeat(count, 1), self.positions, carry)
            values = self._values(output[scored], wanted)
        owner = torch.arange(len(batch), device=batch.device)[:, None].expand_as(scored)[scored]
        sums = torch.zeros(len(batch), dtype=torch.float64, device=batch.device)
        return sums.index_add_(0, owner, values).reshape(count, -1).cpu()

    def _values(self, rows: Tensor, wanted: Tensor) -> Tensor:
        head = self.drafter.weights["head.weight"]
        block = max(1, _MAX_LOGITS // len(head))
        out = []
        for part, label in zip(
            torch.split(self.drafter.head_input(rows), block), torch.split(wanted, block), strict=True
        ):
            value = (part.float() * label).sum(-1) - functional.linear(part, head).float().logsumexp(-1)
            # A wiring that overflows is impossible, not missing.
            out.append(torch.nan_to_num(value, nan=-1e4, posinf=-1e4, neginf=-1e4).double())
        return torch.cat(out) if out else rows.new_zeros(0, dtype=torch.float64)


def _middle(sample: Labelled, tokens: int) -> Labelled:
    """Return so many tokens from the middle of a sequence, as a sequence of their own."""
    start = max(0, (len(sample.text.token_ids) - tokens) // 2)
    cut = slice(start, start + tokens)
    return Labelled(sample.text.cut(cut), sample.wanted[cut], sample.scored[cut])
