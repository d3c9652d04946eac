"""Tiny drafters that are no Llama-style EAGLE-3: one with latent attention (MLA) and an EAGLE-1 one, and their targets.

vLLM's reference attention for MLA on the CPU takes latents of 512 channels with a rotated part of 64, and blocks of 16.
"""

from __future__ import annotations

import json
from pathlib import Path

import tiny_models
import torch
from safetensors.torch import save_file
from tiny_models import DRAFT_VOCAB, HEAD, HEADS, INNER, VOCAB, WIDTH

MLA = {"kv_lora_rank": 512, "qk_nope_head_dim": 32, "qk_rope_head_dim": 64, "v_head_dim": 48}
QUERY_RANK = 32
TOKENS = torch.randperm(VOCAB - 2, generator=torch.Generator().manual_seed(3))[:64].add(2).tolist()
YARN = {"factor": 8.0, "original_max_position_embeddings": 32, "beta_fast": 4.0, "beta_slow": 1.0}


def make_mla_target(folder: Path) -> Path:
    """Write a target of DeepSeek-V3 type with the widths that run with MLA on."""
    before = dict(tiny_models._MLA)
    tiny_models._MLA.update(MLA)
    try:
        return tiny_models.make_target(folder, "deepseek")
    finally:
        tiny_models._MLA.clear()
        tiny_models._MLA.update(before)


class _Random:
    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)

    def matrix(self, rows: int, columns: int, scale: float = 1.0) -> torch.Tensor:
        return torch.randn(rows, columns, generator=self.generator) * scale * columns**-0.5

    def norm(self, size: int = WIDTH) -> torch.Tensor:
        return 1 + 0.3 * torch.randn(size, generator=self.generator)

    def mlp(self, name: str) -> dict[str, torch.Tensor]:
        return {
            f"{name}.mlp.gate_proj.weight": self.matrix(INNER, WIDTH, 2.0),
            f"{name}.mlp.up_proj.weight": self.matrix(INNER, WIDTH, 2.0),
            f"{name}.mlp.down_proj.weight": self.matrix(WIDTH, INNER, 2.0),
            f"{name}.post_attention_layernorm.weight": self.norm(),
        }


def make_mla_drafter(folder: Path, *, layers: int = 1, fc_norm: bool = False, **config: object) -> Path:
    """Write an EAGLE-3 drafter as the Kimi ones are; the target's embedding, an own head and a map of tokens."""
    r = _Random(1)
    # A small fc lets the attention have a say beside the target's large states.
    tensors = {"fc.weight": r.matrix(WIDTH, 3 * WIDTH, 1.0 if fc_norm else 0.02), "norm.weight": r.norm()}
    if fc_norm:
        tensors |= {f"fc_norm.{slot}.weight": r.norm() for slot in range(3)}
    query = HEADS * (MLA["qk_nope_head_dim"] + MLA["qk_rope_head_dim"])
    for layer in range(layers):
        name, width = (f"layers.{layer}", WIDTH) if layer else ("midlayer", 2 * WIDTH)
        attention = {
            "kv_a_proj_with_mqa": r.matrix(MLA["kv_lora_rank"] + MLA["qk_rope_head_dim"], width),
            "kv_a_layernorm": r.norm(MLA["kv_lora_rank"]),
            "kv_b_proj": r.matrix(HEADS * (MLA["qk_nope_head_dim"] + MLA["v_head_dim"]), MLA["kv_lora_rank"]),
            "o_proj": r.matrix(WIDTH, HEADS * MLA["v_head_dim"], 3.0),
            "q_a_proj": r.matrix(QUERY_RANK, width),
            "q_a_layernorm": r.norm(QUERY_RANK),
            "q_b_proj": r.matrix(query, QUERY_RANK, 2.0),
        }
        tensors |= {f"{name}.self_attn.{part}.weight": value for part, value in attention.items()}
        tensors |= r.mlp(name) | {f"{name}.input_layernorm.weight": r.norm()}
        # vLLM's further layers have a hidden_norm too, which they do not use.
        tensors[f"{name}.hidden_norm.weight"] = r.norm()
    chosen = torch.arange(0, VOCAB, VOCAB // DRAFT_VOCAB)
    held = torch.zeros(VOCAB, dtype=torch.bool)
    held[chosen] = True
    tensors |= {"lm_head.weight": r.matrix(DRAFT_VOCAB, WIDTH), "d2t": chosen - torch.arange(DRAFT_VOCAB), "t2d": held}
    return _write(
        folder,
        tensors,
        {
            "architectures": ["Eagle3DeepseekV2ForCausalLM"],
            "model_type": "kimi_k2",
            "num_hidden_layers": layers,
            "q_lora_rank": QUERY_RANK,
            "fc_norm": fc_norm,
            "draft_vocab_size": DRAFT_VOCAB,
            **MLA,
            "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 3, 5], "use_aux_hidden_state": True},
            **config,
        },
    )


def make_eagle1_drafter(folder: Path) -> Path:
    """Write an EAGLE-1 drafter as the published ones are: the target's embedding and head, no norm before either."""
    r, inside = _Random(1), HEADS * HEAD
    tensors = {"fc.weight": r.matrix(WIDTH, 2 * WIDTH)}
    tensors |= {f"layers.0.self_attn.{part}_proj.weight": r.matrix(inside, WIDTH, 2.0) for part in "qkv"}
    tensors["layers.0.self_attn.o_proj.weight"] = r.matrix(WIDTH, inside, 3.0)
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": 1, "head_dim": HEAD}
    return _write(folder, tensors | r.mlp("layers.0"), config)


def _write(folder: Path, tensors: dict[str, torch.Tensor], config: dict[str, object]) -> Path:
    folder.mkdir(parents=True)
    save_file({name: value.contiguous() for name, value in tensors.items()}, folder / "model.safetensors")
    body = {
        "hidden_size": WIDTH,
        "intermediate_size": INNER,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "vocab_size": VOCAB,
        "max_position_embeddings": tiny_models.POSITIONS,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "pad_token_id": 1,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
    }
    (folder / "config.json").write_text(json.dumps(body | config))
    return folder
