"""Attention of training-time test: every row drafts its own chain, all rows at once.

At step k, row t sees the keys of step 1 up to its own, and of each later step its own key alone: a row's chain never
sees another row's drafts. That is the mask of speculators (models/eagle3/attention.py) and SpecForge
(modeling/draft/llama3_eagle.py); here the later keys are never laid out as a matrix.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

__all__ = ["ChainCache", "chain_attention"]

# Elements of one score matrix; longer sequences are taken in blocks of rows.
_MAX_SCORES = 2**25


class ChainCache:
    """Keys and values of one layer, ``[batch, kv_heads, rows, width]`` for each step so far; the widths may differ."""

    def __init__(self) -> None:
        """Begin with no step."""
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []

    def add(self, key: Tensor, value: Tensor) -> None:
        """Keep one step's keys and values."""
        self.keys.append(key)
        self.values.append(value)


def chain_attention(
    query: Tensor, cache: ChainCache, *, window: int | None = None, scale: float | None = None
) -> Tensor:
    """Return ``[batch, heads, rows, value_dim]`` for a query ``[..., head_dim]``, the current step's keys in the cache.

    ``scale`` is what scores are multiplied by, ``head_dim**-0.5`` where it is None.

    Rows that pad a sequence on its right are never seen by the rows before them, so no padding mask is needed.
    """
    if len(cache.keys) == 1 and window is None:
        return functional.scaled_dot_product_attention(
            query,
            cache.keys[0],
            cache.values[0],
            is_causal=True,
            scale=scale,
            enable_gqa=query.shape[1] != cache.keys[0].shape[1],
        )
    batch, heads, rows, width = query.shape
    groups = heads // cache.keys[0].shape[1]
    # [batch, kv_heads, groups, rows, head_dim]: the keys of one group are read in place, never repeated.
    grouped = query.reshape(batch, heads // groups, groups, rows, width) * (width**-0.5 if scale is None else scale)
    block = max(1, min(rows, _MAX_SCORES // max(1, batch * heads * rows)))
    parts = [
        _block(grouped[..., start : start + block, :], cache, start, window=window) for start in range(0, rows, block)
    ]
    return torch.cat(parts, dim=-2).flatten(1, 2) if len(parts) > 1 else parts[0].flatten(1, 2)


def _wide(rows: Tensor) -> torch.dtype:
    return torch.float64 if rows.dtype == torch.float64 else torch.float32


def _block(query: Tensor, cache: ChainCache, start: int, *, window: int | None) -> Tensor:
    """Attend for rows ``start`` and on: the prefix as a matrix, the row's own chain as a few more columns."""
    count = query.shape[-2]
    stop = start + count
    first = max(0, start - window + 1) if window is not None else 0
    keys, values = cache.keys[0][:, :, None, first:stop], cache.values[0][:, :, None, first:stop]
    scores = query @ keys.transpose(-1, -2)
    at = torch.arange(start, stop, device=query.device)[:, None]
    seen = torch.arange(first, stop, device=query.device)[None, :]
    hidden = seen > at
    if window is not None:
        hidden |= seen <= at - window
    scores = scores.masked_fill(hidden, float("-inf"))
    own = [(query * key[:, :, None, start:stop]).sum(-1, keepdim=True) for key in cache.keys[1:]]
    weights = torch.cat((scores, *own), dim=-1).softmax(dim=-1, dtype=_wide(query)).to(query.dtype)
    out = weights[..., : stop - first] @ values
    for step, value in enumerate(cache.values[1:]):
        column = stop - first + step
        out = out + weights[..., column : column + 1] * value[:, :, None, start:stop]
    return out
