"""A llama-like decoder with a drafter's projection behind it, random weights, one decode step at a time."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

__all__ = ["SMOLLM2", "Decoder", "Shape"]


class Shape(NamedTuple):
    """What decides the cost of a step."""

    layers: int
    width: int
    heads: int
    kv_heads: int
    inner: int
    vocabulary: int
    taps: tuple[int, ...]  # boundaries that enter the projection


#: SmolLM2-135M (its config.json), with a drafter on the embedding, h[3] and h[15].
SMOLLM2 = Shape(layers=30, width=576, heads=9, kv_heads=3, inner=1536, vocabulary=49152, taps=(0, 3, 15))


class Block(nn.Module):
    """One layer: attention over a preallocated cache, and a gated MLP."""

    def __init__(self, shape: Shape, context: int) -> None:
        super().__init__()
        size = shape.width // shape.heads
        self.heads, self.kv_heads, self.size = shape.heads, shape.kv_heads, size
        self.before, self.between = nn.RMSNorm(shape.width), nn.RMSNorm(shape.width)
        self.qkv = nn.Linear(shape.width, (shape.heads + 2 * shape.kv_heads) * size, bias=False)
        self.out = nn.Linear(shape.heads * size, shape.width, bias=False)
        self.gate_up = nn.Linear(shape.width, 2 * shape.inner, bias=False)
        self.down = nn.Linear(shape.inner, shape.width, bias=False)
        self.register_buffer("cache", torch.zeros(2, 1, shape.kv_heads, context, size))
        self.cache: Tensor

    def forward(self, x: Tensor, position: Tensor) -> Tensor:
        """Return h[k+1] ``[1, width]`` for h[k]."""
        query, key, value = self.qkv(self.before(x)).split(
            [self.heads * self.size, self.kv_heads * self.size, self.kv_heads * self.size], dim=-1
        )
        for slot, new in enumerate((key, value)):
            self.cache[slot].index_copy_(2, position, new.view(1, self.kv_heads, 1, self.size))
        attended = functional.scaled_dot_product_attention(
            query.view(1, self.heads, 1, self.size), self.cache[0], self.cache[1], enable_gqa=True
        )
        x = x + self.out(attended.reshape(1, -1))
        gate, up = self.gate_up(self.between(x)).chunk(2, dim=-1)
        out: Tensor = x + self.down(functional.silu(gate) * up)
        return out


class Decoder(nn.Module):
    """Target and projection: returns logits ``[1, vocabulary]`` and the projected features ``[1, width]``."""

    def __init__(self, shape: Shape, *, context: int = 128) -> None:
        super().__init__()
        self.taps = shape.taps
        self.embed = nn.Embedding(shape.vocabulary, shape.width)
        self.blocks = nn.ModuleList(Block(shape, context) for _ in range(shape.layers))
        self.norm = nn.RMSNorm(shape.width)
        self.fc = nn.Linear(len(shape.taps) * shape.width, shape.width, bias=False)

    def forward(self, token: Tensor, position: Tensor) -> tuple[Tensor, Tensor]:
        """Run one decode step of batch 1; ``token`` and ``position`` are int64 ``[1]``."""
        x = self.embed(token)
        kept = []
        for number, block in enumerate(self.blocks):
            if number in self.taps:
                kept.append(x)
            x = block(x, position)
        logits = functional.linear(self.norm(x), self.embed.weight)
        return logits, self.fc(torch.cat(kept, dim=-1))
