"""A second real target: a small Qwen3 trained for a few minutes on docstrings of Python's standard library.

Nothing is downloaded: the text is on every machine that runs Python, the tokenizer is trained on it too.
"""

from __future__ import annotations

import ast
import sys
import sysconfig
import time
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.noisy_target import NoisyTarget

__all__ = ["trained"]

LAYERS, WIDTH, HEADS, VOCAB, LENGTH, BATCH = 12, 192, 4, 2048, 64, 16
STEPS = 320
# Packages that every build of Python has, and whose docstrings are prose with code in it.
FOLDERS = (
    "",
    "asyncio",
    "collections",
    "concurrent/futures",
    "email",
    "http",
    "importlib",
    "json",
    "logging",
    "unittest",
)


def text() -> list[str]:
    """Return the docstrings of some of the standard library, in the order of their files."""
    root = Path(sysconfig.get_paths()["stdlib"])
    found: list[str] = []
    for folder in FOLDERS:
        for path in sorted((root / folder).glob("*.py")):
            tree = ast.parse(path.read_text("utf-8", errors="replace"))
            kinds = ast.Module | ast.ClassDef | ast.FunctionDef
            said = [ast.get_docstring(node) for node in ast.walk(tree) if isinstance(node, kinds)]
            found += [item for item in said if item]
    return found


def trained(*, steps: int = STEPS, seed: int = 0) -> tuple[NoisyTarget, dict[str, Any]]:
    """Train the model and return it with what was measured: losses in nats per token, seconds."""
    import torch

    # Neither is there where the project's types are checked.
    tokenizers, transformers = import_module("tokenizers"), import_module("transformers")

    start = time.perf_counter()
    texts = text()
    raw = tokenizers.Tokenizer(tokenizers.models.BPE())
    raw.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    raw.train_from_iterator(
        texts, tokenizers.trainers.BpeTrainer(vocab_size=VOCAB, initial_alphabet=alphabet, show_progress=False)
    )
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=raw)
    stream = torch.tensor([token for item in raw.encode_batch(texts) for token in item.ids])
    held, stream = stream[: 8 * LENGTH].view(8, LENGTH), stream[8 * LENGTH :]
    torch.manual_seed(seed)
    model = transformers.Qwen3ForCausalLM(
        transformers.Qwen3Config(
            vocab_size=VOCAB,
            hidden_size=WIDTH,
            intermediate_size=WIDTH * 8 // 3,
            num_hidden_layers=LAYERS,
            num_attention_heads=HEADS,
            num_key_value_heads=HEADS // 2,
            head_dim=WIDTH // HEADS,
            max_position_embeddings=1024,
            tie_word_embeddings=True,
            # One over the root of the width: with the usual 0.02 a short training leaves every block near zero.
            initializer_range=0.06,
        )
    )
    parameters = sum(item.numel() for item in model.parameters())
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, betas=(0.9, 0.95), weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=steps, pct_start=0.1)
    generator = torch.Generator().manual_seed(seed)
    first = loss_of(model, held)
    model.train()
    for step in range(steps):
        at = torch.randint(len(stream) - LENGTH, (BATCH,), generator=generator)
        batch = torch.stack([stream[i : i + LENGTH] for i in at])
        loss = model(batch, labels=batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if step % 30 == 0:
            print(f"training: step {step} of {steps}, loss {loss.item():.2f}", file=sys.stderr, flush=True)
    facts = {
        "layers": LAYERS,
        "width": WIDTH,
        "parameters": parameters,
        "text_tokens": len(stream),
        "steps": steps,
        "loss_before": round(first, 2),
        "loss_after": round(loss_of(model, held), 2),
        "training_seconds": round(time.perf_counter() - start),
    }
    model.requires_grad_(requires_grad=False)
    return NoisyTarget(model, tokenizer, name="docstrings-qwen3"), facts


def loss_of(model: Any, batch: Any) -> float:
    """Return the loss on text that is not trained on."""
    import torch

    with torch.no_grad():
        return float(model.eval()(batch, labels=batch).loss)
