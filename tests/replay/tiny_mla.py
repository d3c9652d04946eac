"""Tiny EAGLE-3 drafters with latent attention, in the names of the published Kimi checkpoints."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from tiny_drafters import Tiny


@dataclass
class TinyMla(Tiny):
    """What to write; widths all differ, so that no two can be exchanged unseen."""

    query_rank: int | None = 20
    latent_rank: int = 12
    plain_dim: int = 10
    rope_dim: int = 8
    value_dim: int = 14
    fused: bool = False

    def tensors(self) -> dict[str, torch.Tensor]:
        g = torch.Generator().manual_seed(self.seed + 100)

        def matrix(rows: int, columns: int, scale: float = 1.5) -> torch.Tensor:
            return torch.randn(rows, columns, generator=g) * (scale / columns**0.5)

        def vector(size: int, mean: float = 1.0) -> torch.Tensor:
            return mean + 0.3 * torch.randn(size, generator=g)

        out = {name: value for name, value in super().tensors().items() if ".self_attn." not in name}
        for layer in range(self.layers):
            name = self.prefix if self.prefix == "midlayer" and layer == 0 else f"layers.{layer}"
            name += ".self_attn"
            wide = 2 * self.hidden if layer == 0 else self.hidden
            queries = self.heads * (self.plain_dim + self.rope_dim)
            out |= {
                f"{name}.kv_a_proj_with_mqa.weight": matrix(self.latent_rank + self.rope_dim, wide),
                f"{name}.kv_a_layernorm.weight": vector(self.latent_rank),
                f"{name}.kv_b_proj.weight": matrix(self.heads * (self.plain_dim + self.value_dim), self.latent_rank),
                f"{name}.o_proj.weight": matrix(self.hidden, self.heads * self.value_dim),
            }
            if self.query_rank is None:
                out[f"{name}.q_proj.weight"] = matrix(queries, wide, 3.0)
            else:
                out |= {
                    f"{name}.q_a_proj.weight": matrix(self.query_rank, wide),
                    f"{name}.q_a_layernorm.weight": vector(self.query_rank),
                    f"{name}.q_b_proj.weight": matrix(queries, self.query_rank, 3.0),
                }
            if self.attention_bias:
                first = ("kv_a_proj_with_mqa", "q_a_proj", "o_proj")
                out |= {
                    f"{name}.{part}.bias": vector(out[f"{name}.{part}.weight"].shape[0], 0.0)
                    for part in first
                    if f"{name}.{part}.weight" in out
                }
            if self.fused:
                for kind in ("weight", "bias") if self.attention_bias else ("weight",):
                    parts = [out.pop(f"{name}.{part}.{kind}") for part in ("q_a_proj", "kv_a_proj_with_mqa")]
                    out[f"{name}.fused_qkv_a_proj.{kind}"] = torch.cat(parts)
        return out

    def settings(self) -> dict[str, Any]:
        body = super().settings() | {
            "architectures": ["Eagle3DeepseekV2ForCausalLM"],
            "model_type": "kimi_k2",
            "num_key_value_heads": self.heads,
            "q_lora_rank": self.query_rank,
            "kv_lora_rank": self.latent_rank,
            "qk_nope_head_dim": self.plain_dim,
            "qk_rope_head_dim": self.rope_dim,
            "v_head_dim": self.value_dim,
        }
        return body | self.config
