"""Texts that a tiny drafter predicts well under one wiring: its own drafts, with some tokens at random between them."""

from __future__ import annotations

import torch

from featurecontract.replay import PlaneName, Text, unroll


def residual_planes(depth, rows, width, *, step=0.6, seed=0):
    """Planes of a residual stream: each boundary is the one before it and something new."""
    g = torch.Generator().manual_seed(seed)
    planes = {PlaneName(0): torch.randn(rows, width, generator=g)}
    for boundary in range(1, depth + 1):
        planes[PlaneName(boundary)] = planes[PlaneName(boundary - 1)] + step * torch.randn(rows, width, generator=g)
    last = planes[PlaneName(depth)]
    # With weights of its own, or the drafter's norm of each slice would make it the same as the plane before it.
    weight = torch.linspace(0.2, 2.0, width)[torch.randperm(width, generator=torch.Generator().manual_seed(7))]
    planes[PlaneName(depth, "final_norm")] = weight * last / last.pow(2).mean(-1, keepdim=True).sqrt()
    return planes


def written_by(drafter, wiring, *, sequences=16, length=40, depth=8, follow=0.7, seed=0, vocab=64, step=0.6):
    """Return texts whose token t + 2 is, with probability ``follow``, what the drafter drafts from row t."""
    g = torch.Generator().manual_seed(seed)
    width = drafter.spec.target_hidden_size
    planes = [residual_planes(depth, length, width, seed=1000 * seed + n, step=step) for n in range(sequences)]
    tokens = torch.randint(vocab, (sequences, length), generator=g)
    states = drafter.project(
        torch.stack([torch.cat([p[name] for name in wiring], dim=-1) for p in planes]).to(drafter.dtype)
    )
    for row in range(length - 2):
        (first,) = unroll(drafter, states[:, : row + 1], tokens[:, : row + 2], steps=1)
        drafted = drafter.tokens(drafter.logits(first.output[:, -1]))
        keep = torch.rand(sequences, generator=g) < follow
        tokens[:, row + 2] = torch.where(keep, drafted, tokens[:, row + 2])
    return [Text(ids, p, source=f"text {n}") for n, (ids, p) in enumerate(zip(tokens, planes, strict=True))]
