"""Rotary embedding of the drafter: frequencies by kind of scaling, and their application in both styles.

The formulas are those of transformers 5.19 (modeling_rope_utils.py) and of SpecForge 0.2.0
(modeling/draft/llama3_eagle.py), which differ in one point of YaRN: see ``RopeSpec.deepseek_mscale``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch

from featurecontract.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

__all__ = ["RopeSpec", "RopeTables", "read_scaling", "yarn_mscale"]

Kind = Literal["default", "linear", "llama3", "yarn"]
_KINDS: tuple[Kind, ...] = ("default", "linear", "llama3", "yarn")
_MAX_FACTOR = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeSpec:
    """Rotary embedding as trained.

    Attributes:
        theta: Base of the frequencies.
        kind: How they are scaled.
        factor: Stretch of the context; 1.0 for ``default``.
        original: Context length before the stretch, in positions.
        low, high: ``low_freq_factor`` and ``high_freq_factor`` of Llama 3.
        fast, slow: ``beta_fast`` and ``beta_slow`` of YaRN.
        attention_factor: Factor on cos and sin.
        truncate: Whether YaRN's ramp begins and ends at whole dimensions.
        partial: Share of each head that is rotated.
        interleaved: Pairs are neighbours (GPT-J style) and not halves (NeoX style).
    """

    theta: float = 10000.0
    kind: Kind = "default"
    factor: float = 1.0
    original: float = 0.0
    low: float = 1.0
    high: float = 4.0
    fast: float = 32.0
    slow: float = 1.0
    attention_factor: float = 1.0
    truncate: bool = True
    partial: float = 1.0
    interleaved: bool = False

    def inverse_frequencies(self, head_dim: int) -> Tensor:
        """Return float32 ``[rotated / 2]``: radians that each pair turns by for one position."""
        rotated = int(head_dim * self.partial)
        steps = torch.arange(0, rotated, 2, dtype=torch.float32) / rotated
        plain = 1.0 / (self.theta**steps)
        if self.kind == "linear":
            return plain / self.factor
        if self.kind == "llama3":
            return self._llama3(plain)
        if self.kind == "yarn":
            return self._yarn(plain, rotated)
        return plain

    def _llama3(self, plain: Tensor) -> Tensor:
        length = 2 * math.pi / plain
        span = self.high - self.low
        smooth = (self.original / length - self.low) / span if span else torch.zeros_like(plain)
        between = (1 - smooth) * plain / self.factor + smooth * plain
        slow = torch.where(length > self.original / self.low, plain / self.factor, between)
        return torch.where(length < self.original / self.high, plain, slow)

    def _yarn(self, plain: Tensor, rotated: int) -> Tensor:
        def dimension(turns: float) -> float:
            return rotated * math.log(self.original / (turns * 2 * math.pi)) / (2 * math.log(self.theta))

        low, high = dimension(self.fast), dimension(self.slow)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, rotated - 1)
        if low == high:
            high += 0.001
        ramp = ((torch.arange(rotated // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
        return plain / self.factor * ramp + plain * (1 - ramp)


def read_scaling(
    scaling: Mapping[str, Any], *, theta: float, longest: int | None, deepseek: bool, source: str
) -> RopeSpec:
    """Read ``rope_scaling`` or ``rope_parameters`` in any spelling.

    Args:
        scaling: The object; empty for none.
        theta: The base.
        longest: ``max_position_embeddings``, what stands in for a missing original length.
        deepseek: Take YaRN's factor on cos and sin as mscale over mscale_all_dim even where one of them is 0, as
            SpecForge and DeepSeek do; transformers then leaves both out.
        source: The file, for messages.

    Raises:
        InputError: a kind that is not known here, or parameters that are missing or no numbers.
    """
    kind = scaling.get("rope_type") or scaling.get("type") or "default"
    if kind == "mrope":
        kind = "default"  # on text, its three position ids are one
    if kind not in _KINDS:
        raise _error(source, f"rope of type {str(kind)[:40]!r} cannot be replayed", f"known: {', '.join(_KINDS)}")

    def number(key: str, default: float | None = None) -> float:
        value = scaling.get(key)
        value = default if value is None else value
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 <= value <= _MAX_FACTOR * 1000:
            raise _error(source, f"rope of type {kind} has no usable {key}", f"write {key} in rope_scaling")
        return float(value)

    partial = number("partial_rotary_factor", 1.0)
    if kind == "default":
        return RopeSpec(theta=theta, partial=partial)
    factor = number("factor")
    if not 0 < factor <= _MAX_FACTOR:
        raise _error(source, f"rope factor {factor:g} is none", "write the factor that the drafter was trained with")
    if kind == "linear":
        return RopeSpec(theta=theta, kind="linear", factor=factor, partial=partial)
    original = number("original_max_position_embeddings", float(longest) if longest else None)
    if original < 1:
        raise _error(source, "original_max_position_embeddings is below 1", "write the length before the stretch")
    if kind == "llama3":
        low, high = number("low_freq_factor"), number("high_freq_factor")
        return RopeSpec(
            theta=theta, kind="llama3", factor=factor, original=original, low=low, high=high, partial=partial
        )
    return RopeSpec(
        theta=theta,
        kind="yarn",
        factor=factor,
        original=original,
        fast=number("beta_fast", 32.0),
        slow=number("beta_slow", 1.0),
        attention_factor=_attention_factor(scaling, factor, number, deepseek=deepseek),
        truncate=scaling.get("truncate") is not False,
        partial=partial,
    )


def _attention_factor(scaling: Mapping[str, Any], factor: float, number: Any, *, deepseek: bool) -> float:
    if scaling.get("attention_factor") is not None:
        return float(number("attention_factor"))
    both = scaling.get("mscale") is not None and scaling.get("mscale_all_dim") is not None
    if both and (deepseek or (scaling["mscale"] and scaling["mscale_all_dim"])):
        return yarn_mscale(factor, number("mscale")) / yarn_mscale(factor, number("mscale_all_dim"))
    return yarn_mscale(factor, 1.0)


def yarn_mscale(factor: float, weight: float) -> float:
    """Return YaRN's factor for a stretch of the context; 1 for none."""
    return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0


def _error(source: str, message: str, step: str) -> InputError:
    return InputError.single(source, message, place="rope_scaling", next_step=step, slug="checkpoint-unreadable")


class RopeTables:
    """cos and sin by position, grown as longer sequences come; float32 until they are applied."""

    def __init__(self, spec: RopeSpec, head_dim: int, device: torch.device) -> None:
        """Compute the frequencies; the tables come on first use."""
        self.spec = spec
        self.frequencies = spec.inverse_frequencies(head_dim).to(device)
        self._length = 0
        self._cos = self._sin = self.frequencies.new_empty(0)

    def at(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return cos and sin ``[..., rotated / 2]`` for int64 positions ``[...]``, none of them negative."""
        needed = int(positions.max()) + 1 if positions.numel() else 0
        if needed > self._length:
            self._length = max(needed, 2 * self._length, 256)
            at = torch.arange(self._length, dtype=torch.float32, device=self.frequencies.device)
            angles = torch.outer(at, self.frequencies)
            self._cos = angles.cos() * self.spec.attention_factor
            self._sin = angles.sin() * self.spec.attention_factor
        return self._cos[positions].to(dtype), self._sin[positions].to(dtype)

    def rotate(self, heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Rotate ``[batch, heads, rows, head_dim]`` by tables ``[batch or 1, 1, rows, rotated / 2]``."""
        half = cos.shape[-1]
        turned, kept = heads[..., : 2 * half], heads[..., 2 * half :]
        if self.spec.interleaved:
            first, second = turned[..., 0::2], turned[..., 1::2]
        else:
            first, second = turned[..., :half], turned[..., half:]
        a, b = first * cos - second * sin, second * cos + first * sin
        out = torch.stack((a, b), dim=-1).flatten(-2) if self.spec.interleaved else torch.cat((a, b), dim=-1)
        return torch.cat((out, kept), dim=-1) if kept.shape[-1] else out
