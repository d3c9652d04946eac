"""Tiny drafters for SGLang: those that vLLM is tested with, and changes of their files."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

_SHARED = Path(__file__).parents[1] / "vllm" / "tiny_models.py"
_SPEC = importlib.util.spec_from_file_location("tiny_models_of_vllm", _SHARED)
tiny = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(tiny)

make_target, make_drafter = tiny.make_target, tiny.make_drafter
WIDTH, VOCAB = tiny.WIDTH, tiny.VOCAB


def with_config(folder, **changes):
    """Change top-level keys of a drafter's config; None takes one away."""
    path = folder / "config.json"
    config = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in config.items() if value is not None}))
    return folder


def with_norms(folder, kind, *, slots=3):
    """Add pre-projection norms to a drafter: ``fc_norm`` for each slot, or ``norm_before_fc`` over all of them."""
    path = folder / "model.safetensors"
    tensors = load_file(path)
    generator = torch.Generator().manual_seed(7)
    if kind == "fc_norm":
        names = {f"fc_norm.{slot}.weight": WIDTH for slot in range(slots)}
    else:
        names = {"input_norm.weight": slots * WIDTH}
    for name, width in names.items():
        tensors[name] = 1 + 0.3 * torch.randn(width, generator=generator)
    save_file(tensors, path)
    return with_config(folder, **{kind: True})


def as_speculators(folder, ids):
    """Rewrite a drafter's config as speculators 0.9.0 lays it out: ids on top, no ``model_type``, a nested config."""
    path = folder / "config.json"
    llama = json.loads(path.read_text())
    config = {
        "architectures": ["Eagle3DraftModel"],
        "auto_map": {"": "eagle3.Eagle3SpeculatorConfig"},
        "draft_vocab_size": llama["draft_vocab_size"],
        "eagle_aux_hidden_state_layer_ids": ids,
        "norm_before_residual": True,
        "norm_before_fc": False,
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 3}],
            "verifier": {"architectures": ["LlamaForCausalLM"], "name_or_path": "target"},
        },
        "speculators_model_type": "eagle3",
        "speculators_version": "0.9.0",
        "target_hidden_size": None,
        "tie_word_embeddings": False,
        "transformer_layer_config": {
            key: llama[key]
            for key in ("model_type", "hidden_size", "intermediate_size", "num_attention_heads", "vocab_size")
        },
    }
    path.write_text(json.dumps(config))
    return folder
