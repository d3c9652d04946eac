"""SpecForge on the CPU: its model, training step, offline reader, checkpoints and exporters, with a hook on ``fc``.

Its loss is a Triton kernel behind the logits; where Triton is not installed the formula that the same module states for
it stands in, and nothing else is replaced. ``python specforge_run.py OUT`` leaves OUT/target and OUT/specforge-*.
"""

from __future__ import annotations

import json
import os
import sys
import types
from pathlib import Path
from typing import Any

os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")

import torch
from tiny_target import (
    DRAFT_VOCAB,
    HEADS,
    HIDDEN,
    INNER,
    VOCAB,
    draft_tokens,
    make_target,
    planes,
    probe_tokens,
    sequences,
)

from featurecontract.capture import capturing, tag
from featurecontract.trainers import attach_specforge

#: Layer outputs: what its default would be for eight layers, and an override of a run.
DEFAULT_IDS, RUN_IDS = (1, 3, 4), (0, 2, 5)


def without_triton() -> None:
    """Give its loss module a form that needs no Triton, unless Triton is there."""
    try:
        import specforge.core.loss  # noqa: F401 - only whether it can be imported
    except ImportError:
        stand_in = types.ModuleType("specforge.core.loss")

        class LogSoftmaxLoss(torch.autograd.Function):
            """Mean over rows of minus the sum of target times log-softmax, where the mask holds."""

            @staticmethod
            def forward(ctx: Any, logits: Any, target: Any, mask: Any) -> Any:
                ctx.save_for_backward(logits, target, mask)
                return -(target * logits.log_softmax(-1) * mask).sum() / logits[..., 0].numel()

            @staticmethod
            def backward(ctx: Any, grad: Any) -> Any:
                logits, target, mask = ctx.saved_tensors
                total = (target * mask).sum(-1, keepdim=True)
                return grad * (logits.softmax(-1) * total - target * mask) / logits[..., 0].numel(), None, None

        stand_in.LogSoftmaxLoss = LogSoftmaxLoss
        sys.modules["specforge.core.loss"] = stand_in


def draft_config(folder: Path, *, ids: tuple[int, ...] | None = None) -> Path:
    """Write the draft config that a user writes; without ids, as most shipped ones are."""
    folder.mkdir(parents=True, exist_ok=True)
    config: dict[str, Any] = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "head_dim": HIDDEN // HEADS,
        "num_hidden_layers": 1,
        "hidden_act": "silu",
        "max_position_embeddings": 256,
        "vocab_size": VOCAB,
        "draft_vocab_size": DRAFT_VOCAB,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "pad_token_id": 1,
    }
    if ids is not None:
        config["eagle_config"] = {"eagle_aux_hidden_state_layer_ids": list(ids), "use_aux_hidden_state": True}
    path = folder / "draft_config.json"
    path.write_text(json.dumps(config))
    return path


def prepare(target: Path, data: Path, ids: tuple[int, ...]) -> Path:
    """Write what ``prepare_hidden_states.py`` writes: SGLang captures the outputs of these layers, in their order."""
    rows = data / "rows_0-5000"
    rows.mkdir(parents=True)
    for number, tokens in enumerate(sequences()):
        found, normed = planes(target, tokens)
        content = {
            "input_ids": tokens,
            "loss_mask": torch.ones_like(tokens),
            "hidden_state": normed[None],
            "aux_hidden_state": torch.cat([found[i + 1] for i in sorted(ids)], dim=1)[None],
        }
        torch.save(content, rows / f"data_{number}.ckpt")
    return data


def train(target: Path, data: Path, config: Path, run: Path, captured: Path) -> Path:
    """Take its own step on each file, keep what ``fc`` received for the first, and save with its own manager."""
    without_triton()
    from specforge.algorithms.eagle3.data import build_offline_normalizer
    from specforge.algorithms.eagle3.model import OnlineEagle3Model
    from specforge.modeling.auto import AutoDraftModel, AutoDraftModelConfig
    from specforge.modeling.target.target_head import TargetHead
    from specforge.runtime.contracts import TrainBatch
    from specforge.training.checkpoint import CheckpointManager
    from specforge.training.strategies.base import Eagle3TrainStrategy
    from transformers import AutoModelForCausalLM

    torch.manual_seed(2)
    model = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32)
    # Its loader of the head wants an index file and bfloat16.
    head = TargetHead(str(target))
    head.fc.weight.data.copy_(model.lm_head.weight.data)
    head.freeze_weights()
    draft = AutoDraftModel.from_config(AutoDraftModelConfig.from_file(str(config)), torch_dtype=torch.float32)
    draft.embed_tokens.weight.data.copy_(model.model.embed_tokens.weight.data)
    kept = torch.zeros(VOCAB, dtype=torch.bool)
    kept[draft_tokens()] = True
    draft.t2d.copy_(kept)
    draft.d2t.copy_(draft_tokens() - torch.arange(DRAFT_VOCAB))
    strategy = Eagle3TrainStrategy(OnlineEagle3Model(draft, length=3, attention_backend="sdpa"), target_head=head)
    optimizer = torch.optim.AdamW([p for p in draft.parameters() if p.requires_grad], lr=1e-3)
    normalise = build_offline_normalizer(256)
    for number, path in enumerate(sorted(data.rglob("data_*.ckpt"))):
        raw = torch.load(path)
        batch = TrainBatch(
            sample_ids=[path.stem], tensors=normalise(raw), strategy="eagle3", metadata={"target_repr": "hidden_state"}
        )
        tokens = raw["input_ids"].tolist()
        facts = {"token_ids": tokens, "positions": list(range(len(tokens)))}
        with capturing(draft.fc, runtime="specforge") as recording, tag(phase="training", **facts):
            loss = strategy.forward_loss(batch).loss
        if number == 0:
            recording.save(captured)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    state = {
        "strategy": "eagle3",
        "global_step": 3,
        "draft_state_dict": {name: value for name, value in draft.state_dict().items() if "embed" not in name},
    }
    return Path(CheckpointManager(str(run), run_id="tiny").save(state, 3))


def export(checkpoint: Path, config: Path, out: Path, *, to: str = "sglang", target: Path, **attach: Any) -> Path:
    """Export with its own function, attached."""
    import specforge.export.to_hf
    import specforge.export.to_sglang

    with attach_specforge(**({"strict": True, "token_ids": probe_tokens(), "target": str(target)} | attach)):
        if to == "sglang":
            specforge.export.to_sglang.export_to_sglang(str(checkpoint), str(config), str(out))
        else:
            specforge.export.to_hf.export_to_hf(str(checkpoint), str(config), str(out), embedding_source=str(target))
    return out


def main(out: Path) -> None:
    """Leave the target and two trained drafters: with the default ids, and with an override of the run."""
    target = make_target(out / "target")
    work = out / "work-specforge"
    config = draft_config(work)
    for name, ids in (("specforge-default", DEFAULT_IDS), ("specforge-override", RUN_IDS)):
        data = prepare(target, work / name / "data", ids)
        checkpoint = train(target, data, config, work / name / "run", work / name / "captured")
        export(checkpoint, config, out / name, target=target, ids=ids)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
