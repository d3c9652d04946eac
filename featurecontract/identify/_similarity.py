"""The statistic: blind to scale and drift, sharp enough for neighbouring blocks of a quantised target.

Each tensor is standardised by its own per-channel centre and spread over rows, then compared by the cosine of each row.
Neighbouring boundaries are close in the raw (cosine 0.95 to 0.97 in SmolLM2-135M); what a channel does over the rows is
what tells them apart. docs/identification.md has the measurements.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["agreement", "robust", "row_cosines", "standardise", "trimmed_mean"]

TRIM = 0.1
# Past a few spreads the size of an outlier says nothing more.
CLIP = 8.0


def standardise(values: Tensor) -> Tensor:
    """Centre by the mean and scale by the deviation of each channel over the rows, ``[..., rows, channels]``."""
    centred = values - values.mean(dim=-2, keepdim=True)
    return centred / (centred.square().mean(dim=-2, keepdim=True).sqrt() + 1e-6 * values.abs().amax() + 1e-30)


def robust(values: Tensor) -> Tensor:
    """Standardise by median and mean absolute deviation: for rows that may be anything, a massive one included."""
    centred = values - values.median(dim=-2, keepdim=True).values
    return (centred / (centred.abs().mean(dim=-2, keepdim=True) + 1e-30)).clamp(-CLIP, CLIP)


def row_cosines(first: Tensor, second: Tensor) -> Tensor:
    """Return the cosine of each row, ``[..., rows]``, of tensors that broadcast over ``[..., rows, channels]``."""
    return torch.nn.functional.cosine_similarity(first, second, dim=-1, eps=1e-12)


def trimmed_mean(values: Tensor, *, trim: float = TRIM) -> Tensor:
    """Return the mean over the last dimension without the ``trim`` smallest and largest parts."""
    count = values.shape[-1]
    cut = int(count * trim)
    return values.sort(dim=-1).values[..., cut : count - cut].mean(dim=-1)


def agreement(values: Tensor, planes: Tensor) -> Tensor:
    """Return how well ``values`` ``[rows, channels]`` fits each of ``planes`` ``[planes, rows, channels]``: -1..1."""
    return trimmed_mean(row_cosines(standardise(values), standardise(planes)))
