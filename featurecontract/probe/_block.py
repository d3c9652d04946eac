"""Inside one decoder layer: which tensor is the residual after attention, and what the MLP adds to it.

No model's names are known here. The tensors that went into and came out of the layer's submodules are searched for
a pair that adds up to the layer's output; what does not add up is not recorded.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import combinations
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Block", "Trace", "explain_block"]

_SAMPLE = 512
# Rounding of a sum of three terms; the ratio keeps out a "sum" whose second term is below the rounding of the first.
_ROUNDINGS = 4.0
_MOST_UNEXPLAINED = 0.25
_ATTENTION = ("attn", "attention", "mixer")


@dataclass(slots=True, eq=False)
class Trace:
    """The tensors of one call of a layer, ``[rows, width]`` each, with the submodule that they entered or left."""

    inputs: list[tuple[str, Tensor]] = field(default_factory=list)
    outputs: list[tuple[str, Tensor]] = field(default_factory=list)


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """``mid`` is the residual after attention (None where the layer has no such point), ``mlp`` the last summand."""

    mid: Tensor | None
    mlp: Tensor


class _Candidates:
    """Distinct tensors with a fixed sample of their elements, so that most sums are refuted at little cost."""

    def __init__(self, named: list[tuple[str, Tensor]], at: Tensor, without: tuple[Tensor, ...] = ()) -> None:
        self.names: list[str] = []
        self.full: list[Tensor] = []
        self.sample: list[Tensor] = []
        for name, tensor in named:
            if any(torch.equal(tensor, other) for other in without):
                continue
            sample = tensor.reshape(-1)[at]
            if any(
                torch.equal(sample, seen) and torch.equal(tensor, full)
                for seen, full in zip(self.sample, self.full, strict=True)
            ):
                continue
            self.names.append(name)
            self.full.append(tensor)
            self.sample.append(sample)


def explain_block(entry: Tensor, exit_: Tensor, trace: Trace, *, eps: float) -> Block | None:
    """Explain a layer's output as a sum of what was seen inside, or return None.

    Tried in this order: ``mid + mlp`` with mid seen as some submodule's input (Llama, Gemma, GPT-OSS, ...);
    ``entry + attention + mlp`` (parallel: Phi, GPT-NeoX, Cohere); ``entry + block`` (a layer of one sublayer);
    ``mid + c * mlp`` with a factor (Granite).

    Args:
        entry: float32 ``[rows, width]``, what entered the layer.
        exit_: The same, what left it.
        trace: What went through the submodules meanwhile.
        eps: Machine epsilon of the dtype that the layer computes in.
    """
    count = exit_.numel()
    at = torch.linspace(0, count - 1, min(_SAMPLE, count), dtype=torch.float64).long()
    parts = _Candidates(trace.outputs, at, without=(entry, exit_))
    points = _Candidates(trace.inputs + trace.outputs, at, without=(entry, exit_))
    whole = exit_.reshape(-1)[at]
    return (
        _sequential(points, parts, exit_, whole, eps)
        or _parallel(entry, parts, exit_, at, eps)
        or _single(entry, parts, exit_, eps)
        or _scaled(points, parts, exit_, eps)
    )


def _adds_up(total: Tensor, *terms: Tensor, eps: float) -> bool:
    size = total.abs()
    left = total.clone()
    for term in terms:
        left -= term
        size = size + term.abs()
    return bool((left.abs() <= _ROUNDINGS * eps * size + torch.finfo(torch.float32).tiny).all())


def _unexplained(total: Tensor, base: Tensor, part: Tensor) -> float:
    """Return how much of the step from ``base`` to ``total`` the part leaves over, 0 for nothing."""
    step = total - base
    size = float(step.norm())
    return float((step - part).norm()) / size if size > 0 else 1.0


def _sequential(points: _Candidates, parts: _Candidates, exit_: Tensor, whole: Tensor, eps: float) -> Block | None:
    best: tuple[float, Block] | None = None
    for mid, mid_sample in zip(points.full, points.sample, strict=True):
        for part, part_sample in zip(parts.full, parts.sample, strict=True):
            if part is mid or not _adds_up(whole, mid_sample, part_sample, eps=eps):
                continue
            if not _adds_up(exit_, mid, part, eps=eps):
                continue
            over = _unexplained(exit_, mid, part)
            # A sum has no order: of `a + b` the residual is the one that carries more, which the ratio cannot tell.
            if over < _MOST_UNEXPLAINED and (best is None or over < best[0]):
                best = over, Block(mid, part)
    return best[1] if best else None


def _parallel(entry: Tensor, parts: _Candidates, exit_: Tensor, at: Tensor, eps: float) -> Block | None:
    start, whole = entry.reshape(-1)[at], exit_.reshape(-1)[at]
    for first, second in combinations(range(len(parts.full)), 2):
        if not _adds_up(whole, start, parts.sample[first], parts.sample[second], eps=eps):
            continue
        named = _is_attention(parts.names[first]), _is_attention(parts.names[second])
        # Two summands side by side look alike, so here the name decides; without it nothing is proved. Routed and
        # shared experts of a layer that has no attention add up in the same way.
        if named[0] == named[1]:
            continue
        attention, mlp = (first, second) if named[0] else (second, first)
        mid = entry + parts.full[attention]
        if _adds_up(exit_, entry, parts.full[attention], parts.full[mlp], eps=eps) and (
            _unexplained(exit_, mid, parts.full[mlp]) < _MOST_UNEXPLAINED
        ):
            return Block(mid, parts.full[mlp])
    return None


def _is_attention(name: str) -> bool:
    return any(word in name for word in _ATTENTION)


def _single(entry: Tensor, parts: _Candidates, exit_: Tensor, eps: float) -> Block | None:
    for part in parts.full:
        if _adds_up(exit_, entry, part, eps=eps) and _unexplained(exit_, entry, part) < _MOST_UNEXPLAINED:
            return Block(None, part)
    return None


def _scaled(points: _Candidates, parts: _Candidates, exit_: Tensor, eps: float) -> Block | None:
    pairs = ((mid, part) for mid in points.full for part in parts.full if part is not mid and float(part.norm()) > 0)
    for mid, part in pairs:
        factor = float(((exit_ - mid) * part).sum() / (part * part).sum())
        summand = part * factor
        if _adds_up(exit_, mid, summand, eps=2 * eps) and _unexplained(exit_, mid, summand) < _MOST_UNEXPLAINED:
            return Block(mid, summand)
    return None
