"""Latent attention row by row as runtimes decode it: only latents are kept, and the heads' matrices are absorbed."""

from __future__ import annotations

import math

import torch
from one_by_one import OneByOne, norm, turn


class MlaOneByOne(OneByOne):
    """``factor`` is YaRN's mscale; ``turned`` is how far one position turns each pair where that is no plain rope."""

    def __init__(self, *args, factor=1.0, turned=None, interleaved=True, **kwargs):
        super().__init__(*args, interleaved=interleaved, **kwargs)
        self.factor, self.turned = factor, turned

    def part(self, name):
        return self.t[f"midlayer.self_attn.{name}.weight"], self.t.get(f"midlayer.self_attn.{name}.bias", 0)

    def through(self, name, x):
        weight, bias = self.part(name)
        return weight @ x + bias

    def rotated(self, vector, position):
        if self.turned is None:
            return turn(vector, position, self.theta, interleaved=self.interleaved)
        assert self.interleaved
        first, second = vector[0::2], vector[1::2]
        cos, sin = (position * self.turned).cos(), (position * self.turned).sin()
        return torch.stack([first * cos - second * sin, second * cos + first * sin], dim=-1).reshape(-1)

    def latents(self, x):
        tiny = self.tiny
        if "midlayer.self_attn.fused_qkv_a_proj.weight" not in self.t:
            low = None if tiny.query_rank is None else self.through("q_a_proj", x)
            return low, self.through("kv_a_proj_with_mqa", x)
        both = self.through("fused_qkv_a_proj", x)
        return both[: tiny.query_rank], both[tiny.query_rank :]

    def mixed(self, x, position, keys, values):
        tiny = self.tiny
        low, latent = self.latents(x)
        shared = latent[tiny.latent_rank :]
        latent = norm(latent[: tiny.latent_rank], self.part("kv_a_layernorm")[0], 1e-5)
        keys.append((latent, self.rotated(shared, position)))
        values.append(None)
        if low is None:
            queries = self.through("q_proj", x)
        else:
            queries = self.part("q_b_proj")[0] @ norm(low, self.part("q_a_layernorm")[0], 1e-5)
        absorbed = self.part("kv_b_proj")[0].reshape(tiny.heads, tiny.plain_dim + tiny.value_dim, tiny.latent_rank)
        scale = self.factor**2 / math.sqrt(tiny.plain_dim + tiny.rope_dim)
        out = []
        for index, query in enumerate(queries.reshape(tiny.heads, -1)):
            inside = absorbed[index, : tiny.plain_dim].T @ query[: tiny.plain_dim]
            outside = self.rotated(query[tiny.plain_dim :], position)
            scores = torch.stack([inside @ kept + outside @ key for kept, key in keys]) * scale
            read = sum(p * kept for p, (kept, _) in zip(scores.softmax(0), keys, strict=True))
            out.append(absorbed[index, tiny.plain_dim :] @ read)
        return out
