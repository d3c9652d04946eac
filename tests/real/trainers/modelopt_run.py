"""ModelOpt on the CPU: its own conversion, training forward and export, with a hook on what ``fc`` receives.

Nothing of it is replaced; its compilation is switched off by its own setting. ``python modelopt_run.py OUT`` leaves
OUT/target and OUT/modelopt.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from tiny_target import DRAFT_VOCAB, HEADS, HIDDEN, INNER, draft_tokens, make_target, planes, probe_tokens, sequences

from featurecontract.capture import capturing, tag
from featurecontract.trainers import attach_modelopt

#: Layer outputs; an empty list is its default.
IDS = (1, 3, 4)


def converted(target: Path, ids: tuple[int, ...] = IDS, *, offline: bool = False) -> Any:
    """Return the target converted for EAGLE-3 training."""
    import modelopt.torch.speculative as mtsp
    from modelopt.torch.speculative.config import eagle3_default_config
    from transformers import AutoModelForCausalLM

    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32, attn_implementation="eager")
    architecture = eagle3_default_config | {
        "num_hidden_layers": 1,
        "intermediate_size": INNER,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "head_dim": HIDDEN // HEADS,
        "draft_vocab_size": DRAFT_VOCAB,
        "max_position_embeddings": 256,
        "rope_scaling": {"rope_type": "default", "rope_theta": 10000.0},
        "eagle_aux_hidden_state_layer_ids": list(ids),
    }
    settings = {
        "eagle_decoder_type": "llama",
        "eagle_use_torch_compile": False,
        "eagle_offline": offline,
        "eagle_architecture_config": architecture,
    }
    mtsp.convert(model, [("eagle", settings)])
    model.eagle_module.d2t = draft_tokens() - torch.arange(DRAFT_VOCAB)
    return model


def offline_outputs(target: Path, tokens: torch.Tensor, ids: tuple[int, ...]) -> dict[str, torch.Tensor]:
    """Return what its dump script keeps of the target for a sequence: layer outputs, and the final state."""
    found, normed = planes(target, tokens)
    return {
        "input_ids": tokens,
        "hidden_states": normed,
        "aux_hidden_states": torch.cat([found[i + 1] for i in sorted(set(ids))], dim=1),
        "loss_mask": torch.ones_like(tokens),
    }


def train(model: Any, captured: Path, *, base_outputs: dict[str, torch.Tensor] | None = None) -> Path:
    """Take one step on each sequence, and keep what ``fc`` received for the first."""
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
    model.train()
    for number, tokens in enumerate(sequences()):
        given: dict[str, Any] = {"input_ids": tokens[None], "labels": tokens[None]}
        if base_outputs is not None:
            if number:
                break
            given["base_model_outputs"] = {
                "base_model_hidden_states": base_outputs["hidden_states"][None],
                "aux_hidden_states": base_outputs["aux_hidden_states"][None],
            }
        rows = len(tokens)
        facts = {"token_ids": tokens.tolist(), "positions": list(range(rows))}
        with capturing(model.eagle_module.fc, runtime="modelopt") as recording, tag(phase="training", **facts):
            loss = model(**given).loss
        if number == 0:
            recording.save(captured)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return captured


def export(model: Any, out: Path, **attach: Any) -> Path:
    """Export with its own function, attached."""
    from modelopt.torch.export import export_speculative_decoding

    with attach_modelopt(**({"strict": True, "token_ids": probe_tokens()} | attach)):
        export_speculative_decoding(model, export_dir=out)
    return out


def main(out: Path) -> None:
    """Leave the target and a trained drafter with its contract."""
    target = make_target(out / "target")
    model = converted(target)
    train(model, out / "work-modelopt" / "captured")
    export(model, out / "modelopt")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
