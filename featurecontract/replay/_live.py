"""A live target as a source of texts: every boundary, recorded on the fly, one sequence at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from featurecontract.errors import InputError, UsageError
from featurecontract.probe import tap
from featurecontract.replay._texts import PlaneName, Text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import nn

    from featurecontract.probe import Layout

__all__ = ["LiveTexts", "cut"]


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
        for index, ids in enumerate(self.sequences):
            tokens = torch.tensor(ids, dtype=torch.int64)
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
            yield Text(tokens, planes, answers, None, f"sequence {index}")


def cut(ids: Sequence[int], length: int) -> list[tuple[int, ...]]:
    """Cut one stream of tokens into sequences of ``length``; a rest of less than half of that is left out.

    A stream that is shorter than ``length`` is no rest: it is kept as it is.
    """
    starts = range(0, len(ids), length)
    return [tuple(ids[at : at + length]) for at in starts if at == 0 or 2 * (len(ids) - at) >= length]
