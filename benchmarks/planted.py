"""A drafter whose wiring is known because its text was written by it: for a search where no trained drafter is at hand.

Its weights are random. The planes are a random walk from boundary to boundary, as a residual stream is one; each token
is, seven times in ten, what the drafter drafts from the planted wiring, else any. So the planted wiring makes the text
likely, and its neighbours somewhat. It shows that the search works and what it costs at this size, not what a trained
drafter remembers.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

__all__ = ["Planted", "plant"]

HIDDEN, HEADS, HEAD_DIM, MIDDLE = 64, 4, 16, 128
VOCAB, DRAFT, DEPTH = 512, 256, 30
SEQUENCES, LENGTH, FOLLOWED, STEP = 64, 96, 0.7, 0.6
TRUTH = (0, 3, 16)


@dataclass(frozen=True)
class Planted:
    """Directories of a drafter, its target's config, and states of every boundary."""

    checkpoint: Path
    target: Path
    states: Path
    truth: str


def plant(directory: Path, *, seed: int = 0) -> Planted:
    """Write the drafter, its target's config and the states."""
    import torch
    from safetensors.torch import save_file

    from featurecontract.checkpoint import open_checkpoint
    from featurecontract.replay import read_drafter, unroll

    generator = torch.Generator().manual_seed(seed)
    out = Planted(directory / "drafter", directory / "target", directory / "states", ",".join(map(str, TRUTH)))
    for path in (out.checkpoint, out.target, out.states):
        path.mkdir(parents=True)
    save_file(_weights(generator), out.checkpoint / "model.safetensors")
    shape = {"hidden_size": HIDDEN, "vocab_size": VOCAB, "rms_norm_eps": 1e-5, "model_type": "llama"}
    own = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "draft_vocab_size": DRAFT,
        "num_hidden_layers": 1,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "head_dim": HEAD_DIM,
        "intermediate_size": MIDDLE,
        "rope_theta": 10000.0,
        "max_position_embeddings": 2 * LENGTH,
        "hidden_act": "silu",
    }
    (out.checkpoint / "config.json").write_text(json.dumps(shape | own))
    above = {"architectures": ["LlamaForCausalLM"], "num_hidden_layers": DEPTH}
    (out.target / "config.json").write_text(json.dumps(shape | above))
    drafter = read_drafter(open_checkpoint(out.checkpoint))
    walk = torch.randn(SEQUENCES, LENGTH, DEPTH + 1, HIDDEN, generator=generator)
    walk[:, :, 1:] *= STEP
    planes = walk.cumsum(2)
    tokens = torch.randint(VOCAB, (SEQUENCES, LENGTH), generator=generator)
    states = drafter.project(planes[:, :, list(TRUTH)].flatten(2))
    with torch.inference_mode():
        for row in range(LENGTH - 2):
            (first,) = unroll(drafter, states[:, : row + 1], tokens[:, : row + 2], steps=1)
            drafted = drafter.tokens(drafter.logits(first.output[:, -1]))
            follow = torch.rand(SEQUENCES, generator=generator) < FOLLOWED
            tokens[:, row + 2] = torch.where(follow, drafted, tokens[:, row + 2])
    for number in range(SEQUENCES):
        content = {"hidden_states": planes[number].contiguous(), "token_ids": tokens[number].clone()}
        save_file(content, out.states / f"hs_{number}.safetensors")
    return out


def _weights(generator: object) -> dict[str, Tensor]:
    import torch

    def matrix(rows: int, columns: int, scale: float = 1.5) -> Tensor:
        return torch.randn(rows, columns, generator=generator) * (scale / columns**0.5)  # type: ignore[call-overload,no-any-return]

    attended = HEADS * HEAD_DIM
    kept = torch.arange(DRAFT) * (VOCAB // DRAFT)
    return {
        "fc.weight": matrix(HIDDEN, len(TRUTH) * HIDDEN),
        "embed_tokens.weight": matrix(VOCAB, HIDDEN, HIDDEN**0.5),
        "lm_head.weight": matrix(DRAFT, HIDDEN, 3.0),
        "norm.weight": torch.ones(HIDDEN),
        "midlayer.hidden_norm.weight": torch.ones(HIDDEN),
        "midlayer.input_layernorm.weight": torch.ones(HIDDEN),
        "midlayer.post_attention_layernorm.weight": torch.ones(HIDDEN),
        "midlayer.self_attn.q_proj.weight": matrix(attended, 2 * HIDDEN),
        "midlayer.self_attn.k_proj.weight": matrix(attended, 2 * HIDDEN),
        "midlayer.self_attn.v_proj.weight": matrix(attended, 2 * HIDDEN),
        "midlayer.self_attn.o_proj.weight": matrix(HIDDEN, attended),
        "midlayer.mlp.gate_proj.weight": matrix(MIDDLE, HIDDEN),
        "midlayer.mlp.up_proj.weight": matrix(MIDDLE, HIDDEN),
        "midlayer.mlp.down_proj.weight": matrix(HIDDEN, MIDDLE),
        "d2t": kept - torch.arange(DRAFT),
        "t2d": torch.zeros(VOCAB, dtype=torch.bool).scatter(0, kept, True),  # noqa: FBT003
    }
