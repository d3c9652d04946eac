"""Contracts as JSON values: the smallest one, and one that states everything."""

from __future__ import annotations

import copy

SHA = "0123456789abcdef" * 4

MINIMAL = {
    "contract_version": "1.0",
    "name": "a drafter",
    "method": "eagle3",
    "target": {"num_hidden_layers": 61, "hidden_size": 8},
    "drafter": {"hidden_size": 8},
    "features": [{"slot": 0, "boundary": 0, "dim": 8}, {"slot": 1, "boundary": 31, "dim": 8}],
}

FULL = {
    **MINIMAL,
    "target": {
        "num_hidden_layers": 61,
        "hidden_size": 8,
        "name": "org/Target",
        "revision": "main",
        "architecture": "DeepseekV3ForCausalLM",
        "vocab_size": 100,
        "dtype": "bfloat16",
        "quantization": "int4",
        "basis": "rotated",
        "tokenizer_sha256": SHA,
    },
    "drafter": {
        "hidden_size": 8,
        "architecture": "LlamaForCausalLMEagle3",
        "dtype": "bfloat16",
        "embedding": "own",
        "head": "target",
        "block": {"size": 16, "mask_token_id": 99, "anchor": "first"},
        "tensors": [{"name": "fc.weight", "dtype": "BF16", "shape": [8, 16], "sha256": SHA}],
    },
    "features": [
        {
            "slot": 0,
            "source": "target",
            "boundary": 0,
            "state": "residual",
            "dim": 8,
            "row_offset": 1,
            "scale": 2.5,
            "reduction": "mean",
            "streams": 4,
        },
        {"slot": 1, "boundary": 61, "state": "final_norm", "dim": 8},
    ],
    "projections": [
        {
            "tensor": "fc.weight",
            "role": "fc",
            "slots": [0, 1],
            "in_features": 16,
            "out_features": 8,
            "bias": True,
            "pre_norm": "per_feature",
            "post_norm": True,
            "inject_into": "layers.0",
        }
    ],
    "alignment": {"token_shift": 1, "position_offset": -1},
    "recurrent_state": "post_norm",
    "norm_before_residual": True,
    "vocab": {"draft_vocab_size": 50, "d2t": "offset", "d2t_sha256": SHA, "t2d_sha256": SHA},
    "rope": {
        "theta": 10000.0,
        "scaling": {"rope_type": "yarn", "factor": 2, "nested": {"a": [1, None]}},
        "type": "yarn",
        "style": "neox",
        "max_position_embeddings": 4096,
    },
    "probe": {
        "file": "feature_contract.probe",
        "sha256": SHA,
        "rows": 2,
        "dtype": "bfloat16",
        "token_ids": [1, 2],
        "noise_floor": 0.25,
    },
    "quality": {"step_accuracies": [0.75, 0.5], "acceptance_length": 3.5, "samples": 80},
    "serving": {"runtimes": ["sglang==0.5.12"], "num_steps": 3, "top_k": 1, "num_draft_tokens": 4},
    "provenance": {
        "tool": "featurecontract",
        "tool_version": "0.1",
        "trainer": "SpecForge",
        "trainer_version": "0.2",
        "date": "2026-01-01",
        "dialect": "specforge",
        "ids": [-1, 30],
        "ids_key": "eagle_config.eagle_aux_hidden_state_layer_ids",
        "convention": "layer_output",
        "statements": [{"path": "features", "source": "inferred", "confidence": 0.5, "reason": ""}],
    },
}


def changed(base: dict, path: str, value: object) -> dict:
    """Return a copy with the value at a path such as ``features[1].boundary`` replaced, or removed for ``...``."""
    out = copy.deepcopy(base)
    *parents, last = [int(p) if p.isdigit() else p for p in path.replace("]", "").replace("[", ".").split(".")]
    place = out
    for part in parents:
        place = place[part]
    if value is ...:
        del place[last]
    else:
        place[last] = value
    return out
