"""Tiny drafters on disk, in the spellings of the trainers, with random weights."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import save_file

if TYPE_CHECKING:
    from pathlib import Path


@dataclass
class Tiny:
    """What to write; the defaults are SpecForge's spelling of a plain EAGLE-3 drafter."""

    hidden: int = 32
    target_hidden: int = 32
    vocab: int = 64
    draft_vocab: int = 24
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 8
    middle: int = 48
    planes: int = 3
    layers: int = 1
    prefix: str = "midlayer"
    pre_norm: str = "none"
    own_embedding: bool = True
    map_kind: str = "offset"
    fc_bias: bool = False
    attention_bias: bool = False
    qk_norm: bool = False
    eagle1: bool = False
    seed: int = 0
    config: dict[str, Any] = field(default_factory=dict)

    def tensors(self) -> dict[str, torch.Tensor]:  # noqa: C901 - a drafter has that many parts
        g = torch.Generator().manual_seed(self.seed)

        def matrix(rows: int, columns: int) -> torch.Tensor:
            return torch.randn(rows, columns, generator=g) * (1.5 / columns**0.5)

        def vector(size: int, mean: float = 1.0) -> torch.Tensor:
            return mean + 0.3 * torch.randn(size, generator=g)

        h = self.hidden
        width = 2 * h if self.eagle1 else self.planes * self.target_hidden
        out = {"fc.weight": matrix(h, width)}
        if not self.eagle1:
            out |= {"norm.weight": vector(h), "lm_head.weight": 2 * matrix(self.draft_vocab, h)}
        if self.fc_bias:
            out["fc.bias"] = vector(h, 0.0)
        if self.pre_norm == "joint":
            out["input_norm.weight"] = vector(width)
        if self.pre_norm == "per_feature":
            out |= {f"fc_norm.{slot}.weight": vector(self.target_hidden) for slot in range(self.planes)}
        if self.own_embedding:
            out["embed_tokens.weight"] = torch.randn(self.vocab, h, generator=g)
        for layer in range(self.layers):
            name = self.prefix if self.prefix == "midlayer" and layer == 0 else f"layers.{layer}"
            wide = 2 * h if layer == 0 and not self.eagle1 else h
            q, k = self.heads * self.head_dim, self.kv_heads * self.head_dim
            out |= {
                f"{name}.self_attn.q_proj.weight": 2 * matrix(q, wide),
                f"{name}.self_attn.k_proj.weight": 2 * matrix(k, wide),
                f"{name}.self_attn.v_proj.weight": matrix(k, wide),
                f"{name}.self_attn.o_proj.weight": matrix(h, q),
                f"{name}.mlp.gate_proj.weight": matrix(self.middle, h),
                f"{name}.mlp.up_proj.weight": matrix(self.middle, h),
                f"{name}.mlp.down_proj.weight": matrix(h, self.middle),
                f"{name}.post_attention_layernorm.weight": vector(h),
            }
            if layer or not self.eagle1:
                out[f"{name}.input_layernorm.weight"] = vector(h)
            if layer == 0 and not self.eagle1:
                out[f"{name}.hidden_norm.weight"] = vector(h)
            if self.attention_bias:
                out |= {
                    f"{name}.self_attn.{p}_proj.bias": vector(s, 0.0) for p, s in zip("qkvo", (q, k, k, h), strict=True)
                }
            if self.qk_norm:
                out |= {f"{name}.self_attn.{p}_norm.weight": vector(self.head_dim) for p in "qk"}
        if not self.eagle1 and self.draft_vocab != self.vocab:
            ids = torch.randperm(self.vocab, generator=g)[: self.draft_vocab].sort().values
            out["d2t"] = ids - torch.arange(self.draft_vocab) if self.map_kind == "offset" else ids
            out["t2d"] = torch.zeros(self.vocab, dtype=torch.bool).scatter(0, ids, True)  # noqa: FBT003
        return out

    def settings(self) -> dict[str, Any]:
        body = {
            "hidden_size": self.hidden,
            "intermediate_size": self.middle,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "num_hidden_layers": self.layers,
            "head_dim": self.head_dim,
            "vocab_size": self.vocab,
            "rms_norm_eps": 1e-5,
            "rope_theta": 10000.0,
            "max_position_embeddings": 256,
            "hidden_act": "silu",
            "model_type": "llama",
        }
        if not self.eagle1:
            body |= {
                "architectures": ["LlamaForCausalLMEagle3"],
                "draft_vocab_size": self.draft_vocab,
                "eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 2, 4], "use_aux_hidden_state": True},
            }
            if self.target_hidden != self.hidden:
                body["target_hidden_size"] = self.target_hidden
        else:
            body["architectures"] = ["LlamaForCausalLM"]
        return body | self.config

    def write(self, directory: Path) -> Path:
        directory.mkdir(parents=True, exist_ok=True)
        save_file(self.tensors(), directory / "model.safetensors")
        (directory / "config.json").write_text(json.dumps(self.settings()))
        return directory
