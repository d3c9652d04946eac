"""How alike two recordings of one plane are: the statistic of identification, for the noise floor."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["similarity"]

_TRIM = 0.1


def similarity(first: Tensor, second: Tensor) -> float:
    """Return how alike two ``[rows, channels]`` are, -1..1: cosines of standardised rows, trimmed mean, row 0 left out.

    Row 0 attends only to itself and often carries massive activations, which would stretch every channel's deviation.
    """
    cosines = torch.nn.functional.cosine_similarity(_standardised(first[1:]), _standardised(second[1:]), dim=-1)
    cut = int(len(cosines) * _TRIM)
    return float(cosines.sort().values[cut : len(cosines) - cut].mean())


def _standardised(values: Tensor) -> Tensor:
    values = values.float()
    centred = values - values.mean(dim=0)
    spread = values.std(dim=0, correction=0)
    standard: Tensor = centred / (spread + 1e-6 * values.abs().amax() + 1e-30)
    return standard
