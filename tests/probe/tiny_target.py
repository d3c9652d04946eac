"""A decoder written by hand, with names that no finder knows: for what must work without transformers."""

from __future__ import annotations

import torch
from torch import nn

LAYERS, HIDDEN, VOCAB = 5, 24, 200
PATHS = {"layers": "trunk.stages", "norm": "trunk.closing", "embedding": "words", "head": "answer"}
IDS = tuple((torch.randperm(VOCAB, generator=torch.Generator().manual_seed(7))[:64]).tolist())


class RootMean(nn.Module):
    """RMSNorm with weight w, or 1 + w."""

    def __init__(self, *, plus_one=False):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(HIDDEN) * 0.2 + (0.0 if plus_one else 1.0))
        self.plus_one, self.eps = plus_one, 1e-6

    def forward(self, x):
        unit = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)
        return unit * (1 + self.weight if self.plus_one else self.weight)


class Mix(nn.Module):
    """Causal attention with one head."""

    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(HIDDEN, 3 * HIDDEN, bias=False)
        self.out = nn.Linear(HIDDEN, HIDDEN, bias=False)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        scores = q @ k.transpose(-1, -2) / HIDDEN**0.5
        mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
        return self.out(scores.masked_fill(~mask, float("-inf")).softmax(-1) @ v)


class Stage(nn.Module):
    def __init__(self, kind="sequential"):
        super().__init__()
        self.kind = kind
        self.one, self.mixer, self.two = RootMean(), Mix(), RootMean()
        self.more = nn.Linear(HIDDEN, HIDDEN)
        self.ffn = nn.Sequential(nn.Linear(HIDDEN, 32), nn.SiLU(), nn.Linear(32, HIDDEN))

    def forward(self, x):
        if self.kind == "nothing":
            return x.clone()
        if self.kind == "parallel":
            entry = self.one(x)
            return x + self.mixer(entry) + self.ffn(entry)
        if self.kind == "opaque":  # its summands are never seen: F.linear in place of modules
            return x + torch.tanh(x.roll(1, -1))
        if self.kind == "experts":  # two summands side by side, neither of them attention
            entry = self.one(x)
            return x + self.ffn(entry) + self.more(entry)
        if self.kind == "single":
            return x + self.mixer(self.one(x))
        x = x + self.mixer(self.one(x))
        return x + self.ffn(self.two(x))


class Trunk(nn.Module):
    def __init__(self, kinds, *, plus_one):
        super().__init__()
        self.stages = nn.ModuleList(Stage(kind) for kind in kinds)
        self.closing = RootMean(plus_one=plus_one)

    def forward(self, x):
        for stage in self.stages:
            x = stage(x)
        return self.closing(x)


class Target(nn.Module):
    def __init__(self, kinds=("sequential",) * LAYERS, *, plus_one=False, scale=1.0):
        super().__init__()
        self.words = nn.Embedding(VOCAB, HIDDEN)
        self.trunk = Trunk(kinds, plus_one=plus_one)
        self.answer = nn.Linear(HIDDEN, VOCAB, bias=False)
        self.scale = scale

    def forward(self, ids):
        return self.answer(self.trunk(self.words(ids) * self.scale))


def target(*args, **kwargs):
    torch.manual_seed(3)
    return Target(*args, **kwargs)
