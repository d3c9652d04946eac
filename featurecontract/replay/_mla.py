"""Multi-head latent attention (MLA) of the Kimi drafters: queries and keys come out of narrow latents.

Names and order are those of the published checkpoints and of vLLM 0.32.0 (layers/mla.py), SGLang
(models/kimi_k25_eagle3.py) and transformers (DeepseekV3Attention). Keys and values are expanded per head, never kept as
latents: a replay keeps few rows, and then the attention of training-time test is the plain one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from torch import Tensor

__all__ = ["FUSED", "MlaSpec", "is_latent", "latent_heads", "latent_parts"]

#: q_a_proj and kv_a_proj_with_mqa stacked, as the runtimes keep them.
FUSED = "fused_qkv_a_proj"
_PART = re.compile(
    rf"layers\.\d{{1,4}}\.self_attn\.(?:kv_a_proj_with_mqa|kv_a_layernorm|kv_b_proj|q_a_proj|q_a_layernorm|q_b_proj|{FUSED})\."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MlaSpec:
    """Widths of latent attention, in channels.

    Attributes:
        query_rank: Of the queries' latent (``q_lora_rank``); None where ``q_proj`` makes queries at once.
        latent_rank: Of the latent that keys and values come from (``kv_lora_rank``).
        plain_dim: Part of each query and key that has no position (``qk_nope_head_dim``).
        rope_dim: Part that is rotated; its key is one for all heads (``qk_rope_head_dim``).
        value_dim: Of each head's value (``v_head_dim``).
        scale: On the scores: ``(plain_dim + rope_dim)**-0.5``, times YaRN's mscale squared.
        eps: Of the norms of both latents.
    """

    query_rank: int | None
    latent_rank: int
    plain_dim: int
    rope_dim: int
    value_dim: int
    scale: float
    eps: float


def is_latent(names: Iterable[str]) -> bool:
    """Whether tensors of these plain names hold latent attention."""
    return any(_PART.match(name) for name in names)


def latent_parts(
    spec: MlaSpec, *, heads: int, width: int, hidden: int, fused: bool
) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the tensors of one layer's attention by their names in ``self_attn``, with their shapes."""
    query = heads * (spec.plain_dim + spec.rope_dim)
    latent = spec.latent_rank + spec.rope_dim
    if fused:
        yield f"{FUSED}.weight", ((spec.query_rank or 0) + latent, width)
    else:
        yield "kv_a_proj_with_mqa.weight", (latent, width)
    if spec.query_rank is None:
        yield "q_proj.weight", (query, width)
    else:
        if not fused:
            yield "q_a_proj.weight", (spec.query_rank, width)
        yield "q_a_layernorm.weight", (spec.query_rank,)
        yield "q_b_proj.weight", (query, spec.query_rank)
    yield "kv_a_layernorm.weight", (spec.latent_rank,)
    yield "kv_b_proj.weight", (heads * (spec.plain_dim + spec.value_dim), spec.latent_rank)
    yield "o_proj.weight", (hidden, heads * spec.value_dim)


def latent_heads(
    spec: MlaSpec,
    weights: Mapping[str, Tensor],
    name: str,
    rows: Tensor,
    *,
    heads: int,
    linear: Callable[[str, Tensor], Tensor],
    norm: Callable[[str, Tensor, float], Tensor],
    rotate: Callable[[Tensor], Tensor],
) -> tuple[Tensor, Tensor, Tensor]:
    """Return query and key ``[batch, heads, rows, plain_dim + rope_dim]`` and value ``[..., value_dim]``.

    Args:
        spec: The widths.
        weights: Which tensors there are.
        name: Of the layer's attention.
        rows: ``[batch, rows, width]``, what the attention reads.
        heads: Their number.
        linear: Applies the projection of a name.
        norm: Applies the norm of a name with a given eps.
        rotate: Turns ``[batch, heads, rows, rope_dim]`` by the rows' positions.
    """
    low = None
    if f"{name}.{FUSED}.weight" in weights:
        both = linear(f"{name}.{FUSED}", rows)
        low, latent = torch.split(both, [spec.query_rank or 0, spec.latent_rank + spec.rope_dim], dim=-1)
    else:
        latent = linear(f"{name}.kv_a_proj_with_mqa", rows)
    if spec.query_rank is None:
        query = linear(f"{name}.q_proj", rows)
    else:
        low = linear(f"{name}.q_a_proj", rows) if low is None else low
        query = linear(f"{name}.q_b_proj", norm(f"{name}.q_a_layernorm", low, spec.eps))
    plain, turned = torch.split(_by_heads(query, heads), [spec.plain_dim, spec.rope_dim], dim=-1)
    query = torch.cat((plain, rotate(turned)), dim=-1)
    compressed, shared = torch.split(latent, [spec.latent_rank, spec.rope_dim], dim=-1)
    expanded = linear(f"{name}.kv_b_proj", norm(f"{name}.kv_a_layernorm", compressed, spec.eps))
    plain, value = torch.split(_by_heads(expanded, heads), [spec.plain_dim, spec.value_dim], dim=-1)
    shared = rotate(shared[:, None]).expand(-1, heads, -1, -1)
    return query, torch.cat((plain, shared), dim=-1), value


def _by_heads(rows: Tensor, heads: int) -> Tensor:
    """Return ``[batch, heads, rows, width]`` for ``[batch, rows, heads * width]``."""
    return rows.reshape(*rows.shape[:-1], heads, rows.shape[-1] // heads).transpose(1, 2)
