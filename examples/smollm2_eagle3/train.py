"""Train an EAGLE-3 drafter on recorded hidden states with the real speculators library, on the CPU.

    python train.py STATES TARGET OUT [--epochs 4] [--draft-vocab 8192]

STATES holds speculators' own files (hs_0.safetensors, ...: the planes of the wiring, then h[L]), TARGET the target's
directory. Runs in an environment that has speculators==0.9.0 and featurecontract, which leaves the contract and the
probe beside the checkpoint: that is the one line with attach_speculators.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from pathlib import Path

import torch
from safetensors.torch import load_file
from speculators.losses import resolve_loss_config
from speculators.models.eagle3 import Eagle3DraftModel
from transformers import AutoConfig

from featurecontract.trainers import attach_speculators

STEPS = 3
ROWS_PER_BATCH = 512
IDS = (0, 3, 16)  # boundaries, as speculators counts: the embedding, h[3], h[16]


def main() -> None:
    """Train, and save the checkpoint as speculators does."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("states", type=Path)
    parser.add_argument("target")
    parser.add_argument("out", type=Path)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--draft-vocab", type=int, default=8192)
    parser.add_argument("--lr", type=float, default=1e-3)
    options = parser.parse_args()
    torch.manual_seed(0)
    files = sorted(options.states.glob("hs_*.safetensors"), key=lambda path: int(path.stem.split("_")[1]))
    sequences = [shifted(load_file(path)) for path in files]
    model = new_model(options.target, sequences, options.draft_vocab)
    fit(model, sequences, epochs=options.epochs, lr=options.lr)
    with attach_speculators(target=options.target, strict=True):
        model.save_pretrained(options.out)


def shifted(content: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Pair the features of token t with token t + 1, as speculators.models.eagle3.data.shift_batch does."""
    planes, tokens = content["hidden_states"], content["token_ids"]
    return {
        "features": planes[:-1, :-1].flatten(1).clone(),
        "last": planes[1:, -1].clone(),
        "tokens": tokens[1:],
        "positions": torch.arange(1, len(tokens)),
    }


def new_model(target: str, sequences: list[dict[str, torch.Tensor]], draft_vocab: int) -> Eagle3DraftModel:
    """Build the drafter: one layer of the target's shape, the most frequent tokens as its vocabulary."""
    body = AutoConfig.from_pretrained(target)
    body.num_hidden_layers = 1
    body.tie_word_embeddings = False
    counts = torch.bincount(torch.cat([item["tokens"] for item in sequences]), minlength=body.vocab_size)
    kept = counts.argsort(descending=True, stable=True)[:draft_vocab].sort().values
    t2d = torch.zeros(body.vocab_size, dtype=torch.bool)
    t2d[kept] = True
    return Eagle3DraftModel.from_training_args(
        body,
        t2d=t2d,
        d2t=kept - torch.arange(len(kept)),
        draft_vocab_size=draft_vocab,
        norm_before_residual=False,
        target_layer_ids=list(IDS),
        ttt_steps=STEPS,
        verifier_name_or_path=target,
        draft_attn_impl="eager",
    ).float()


def fit(model: Eagle3DraftModel, sequences: list[dict[str, torch.Tensor]], *, epochs: int, lr: float) -> None:
    """Train on whole sequences, about five hundred rows at a time; matrices are multiplied in bfloat16."""
    trained = [value for value in model.parameters() if value.requires_grad]
    say(f"{sum(value.numel() for value in trained) / 1e6:.1f} M parameters trained")
    batches = packed(sequences)
    optimizer = torch.optim.AdamW(trained, lr=lr, betas=(0.9, 0.95), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, lr, total_steps=epochs * len(batches), pct_start=0.05)
    loss_config = resolve_loss_config("kl_div", "eager")
    start = time.perf_counter()
    for epoch in range(epochs):
        random.Random(epoch).shuffle(batches)  # noqa: S311 - an order, no secret
        total = accuracy = 0.0
        for batch in batches:
            with torch.autocast("cpu", torch.bfloat16):
                _, loss, metrics = model(**batch, ttt_steps=STEPS, ttt_step_loss_decay=0.8, loss_config=loss_config)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(trained, 1.0)
            optimizer.step()
            schedule.step()
            total += float(loss.detach())
            accuracy += float(metrics["full_acc_0_sum"]) / max(1.0, float(metrics["full_acc_0_total"]))
        say(
            f"epoch {epoch + 1} of {epochs}: loss {total / len(batches):.3f}, step-1 accuracy "
            f"{accuracy / len(batches):.3f}, {time.perf_counter() - start:.0f} s"
        )


def say(line: str) -> None:
    """Tell the progress."""
    sys.stderr.write(f"{line}\n")


def packed(sequences: list[dict[str, torch.Tensor]]) -> list[dict[str, torch.Tensor]]:
    """Put sequences side by side until a batch has its rows; document_ids keep them apart."""
    out, group, rows = [], [], 0
    for item in [*sequences, None]:
        if group and (item is None or rows + len(item["tokens"]) > ROWS_PER_BATCH):
            out.append(joined(group))
            group, rows = [], 0
        if item is not None:
            group.append(item)
            rows += len(item["tokens"])
    return out


def joined(group: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    documents = [torch.full_like(item["tokens"], number) for number, item in enumerate(group)]
    return {
        "hidden_states": torch.cat([item["features"] for item in group])[None],
        "input_ids": torch.cat([item["tokens"] for item in group])[None],
        "position_ids": torch.cat([item["positions"] for item in group])[None],
        "document_ids": torch.cat(documents)[None],
        "loss_mask": torch.ones(1, sum(map(len, documents)), dtype=torch.bool),
        "verifier_last_hidden_states": torch.cat([item["last"] for item in group])[None],
    }


if __name__ == "__main__":
    main()
