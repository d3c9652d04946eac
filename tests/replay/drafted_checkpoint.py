"""A drafter whose weights are there, with a contract, its target, and captures with draft tokens of a runtime."""

from __future__ import annotations

import json
from dataclasses import replace

from drafting_runtime import Runtime
from safetensors.torch import save_file
from tiny_drafters import Tiny
from tiny_engine import capture_tiny, record_tiny
from tiny_runs import WIDTH, weights

import featurecontract
from featurecontract.capture import load, save

VOCAB = 300
TINY = Tiny(
    hidden=WIDTH,
    target_hidden=WIDTH,
    vocab=VOCAB,
    draft_vocab=100,
    own_embedding=False,
    heads=4,
    kv_heads=2,
    head_dim=WIDTH // 4,
    config={"eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 3, 6], "use_aux_hidden_state": True}},
)
LENGTHS = (3, 6, 9, 14, 20, 27, 35, 44, 54, 64)


def make(root):
    """Write ``ckpt`` with a contract, the tiny target beside it, and ``fed``: features that its engine really fed."""
    ckpt, target = root / "ckpt", root / "target"
    ckpt.mkdir()
    target.mkdir()
    record_tiny(ckpt)
    TINY.write(ckpt)
    lent = {"model.embed_tokens.weight": weights().embedding.contiguous(), "model.norm.weight": weights().norm}
    save_file(lent, target / "model.safetensors")
    found = featurecontract.load(ckpt).target
    config = {"architectures": [found.architecture], "model_type": "llama", "hidden_size": WIDTH}
    config |= {"num_hidden_layers": found.num_hidden_layers, "vocab_size": VOCAB, "rms_norm_eps": 1e-6}
    (target / "config.json").write_text(json.dumps(config))
    capture_tiny(ckpt, root / "fed")
    return root


def drafted(made, out, *, change=dict, **flags):
    """Save a capture whose draft tokens a runtime made of prefixes of what was fed."""
    tensors = TINY.tensors() | {"embed_tokens.weight": weights().embedding}
    runtime = Runtime(tensors | change(), TINY, **flags)
    (capture,) = load(made / "fed")
    (call,) = capture.calls
    ids = [*call.token_ids[1:], 7]
    calls = [
        replace(
            call,
            values=call.values[:rows],
            token_ids=call.token_ids[:rows],
            positions=tuple(range(rows)),
            requests=(f"r{rows}",) * rows,
            drafter_token_ids=tuple(ids[:rows]),
            draft_tokens=tuple(runtime.round(call.values[:rows], ids[:rows], 2)),
        )
        for rows in LENGTHS
    ]
    save(replace(capture, calls=tuple(calls), runtime="vllm==0.32.0"), out)
    return str(out)
