"""A live target as a source of texts: every boundary, recorded on the fly, one sequence at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from featurecontract.errors import InputError, UsageError
from featurecontract.probe import tap
from featurecontract.replay._target import TargetParts
from featurecontract.replay._texts import PlaneName, Teacher, Text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import nn

    from featurecontract.probe import Layout
    from featurecontract.probe._taps import Tapped

__all__ = ["LiveTexts", "cut"]

# bfloat16 logits of one head differ by this much of the largest between ways to multiply.
_SAME_LOGITS = 0.02


class LiveTexts:
    """Runs the target anew each time it is iterated; nothing is kept but the tokens.

    Args:
        model: The target.
        layout: Where its parts are.
        sequences: Token ids.
        planes: The boundaries that are wanted; None for all and the final norm.
    """

    def __init__(
        self,
        model: nn.Module,
        layout: Layout,
        sequences: Sequence[Sequence[int]],
        *,
        planes: Sequence[PlaneName] | None = None,
    ) -> None:
        """Keep the model and the tokens; the target runs when the texts are read."""
        self.model, self.layout = model, layout
        self.sequences = [tuple(item) for item in sequences]
        depth = len(layout.layers)
        every = (*(PlaneName(b) for b in range(depth + 1)), PlaneName(depth, "final_norm"))
        self.planes = every if planes is None else tuple(dict.fromkeys(planes))
        beyond = [str(name) for name in self.planes if name not in every]
        if beyond:
            raise UsageError(f"{', '.join(beyond)}: the target has h[0]..h[{depth}] and norm(h[{depth}])")

    def __len__(self) -> int:
        """Return the number of sequences."""
        return len(self.sequences)

    def __iter__(self) -> Iterator[Text]:
        """Yield the planes and the answers of each sequence."""
        for index in range(len(self)):
            yield self[index]

    def __getitem__(self, index: int) -> Text:
        """Run the target on one sequence."""
        if not 0 <= index < len(self):
            raise IndexError(index)
        tokens = torch.tensor(self.sequences[index], dtype=torch.int64)
        seen = tap(self.model, self.layout, tokens[None], blocks=False)
        planes = {}
        for name in self.planes:
            plane = seen.boundaries[name.boundary] if name.state == "residual" else seen.normed
            if plane is None:
                raise InputError.single(
                    "the target", f"did not show {name}", next_step="name the final norm with --norm"
                )
            planes[name] = plane
        answers = None if seen.logits is None else seen.logits.argmax(dim=-1)
        return Text(tokens, planes, answers, None, f"sequence {index}", self._teacher(seen))

    def _teacher(self, seen: Tapped) -> Teacher | None:
        """Keep the rows that the head reads, not the logits, which are many times as wide."""
        head = getattr(self.layout.head, "weight", None)
        if seen.normed is None or seen.logits is None or not isinstance(head, torch.Tensor) or head.dim() != 2:  # noqa: PLR2004
            return None
        parts, some = TargetParts(head=head.detach()), min(4, len(seen.normed))
        made = parts.logits(seen.normed[:some], "final_norm", None)
        if made is None or made.shape != seen.logits[:some].shape:
            return None
        off = float((made.cpu() - seen.logits[:some]).abs().max())
        # A factor, a cap or a bias behind the head: what it gives alone is not the model's distribution.
        if not off <= _SAME_LOGITS * float(seen.logits[:some].abs().max()):
            return None
        return Teacher(parts.logits, seen.normed, "final_norm")


def cut(ids: Sequence[int], length: int) -> list[tuple[int, ...]]:
    """Cut one stream of tokens into sequences of ``length``; a rest of less than half of that is left out.

    A stream that is shorter than ``length`` is no rest: it is kept as it is.
    """
    starts = range(0, len(ids), length)
    return [tuple(ids[at : at + length]) for at in starts if at == 0 or 2 * (len(ids) - at) >= length]
