"""A tiny Llama of random weights on disk, token sequences, and its planes: what every trainer here is run on.

Initial weights are large and norms are not flat, so neighbouring boundaries lie far apart; heads are as wide as the
smallest that CPU attention kernels of serving engines take.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from pathlib import Path

HIDDEN, LAYERS, VOCAB, DRAFT_VOCAB, INNER, HEADS = 64, 8, 512, 256, 128, 2
LENGTH, COUNT = 72, 3


def make_target(folder: Path) -> Path:
    """Write the target and a byte-level tokenizer into a folder, once."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    if (folder / "config.json").exists():
        return folder
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=HIDDEN,
        intermediate_size=INNER,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS,
        head_dim=HIDDEN // HEADS,
        max_position_embeddings=256,
        initializer_range=0.3,
        rms_norm_eps=1e-6,
        tie_word_embeddings=False,
        bos_token_id=0,
        eos_token_id=1,
    )
    model = LlamaForCausalLM(config).float()
    with torch.no_grad():
        for name, value in model.named_parameters():
            if "norm" in name:
                value.copy_(0.5 + torch.rand(value.shape))
    model.save_pretrained(folder)
    vocab = {"<s>": 0, "</s>": 1}
    for letter in sorted(pre_tokenizers.ByteLevel.alphabet()):
        vocab[letter] = len(vocab)
    while len(vocab) < VOCAB:
        vocab[f"<filler_{len(vocab)}>"] = len(vocab)
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    names = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "</s>"}
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)
    fast.save_pretrained(folder)
    return folder


def sequences() -> list[torch.Tensor]:
    """Return int64 ``[LENGTH]`` sequences; the first is the probe's, too."""
    generator = torch.Generator().manual_seed(11)
    return [torch.randperm(VOCAB, generator=generator)[:LENGTH] for _ in range(COUNT)]


def draft_tokens() -> torch.Tensor:
    """Return the target ids of the reduced vocabulary, ascending, int64 ``[DRAFT_VOCAB]``."""
    return torch.randperm(VOCAB, generator=torch.Generator().manual_seed(3))[:DRAFT_VOCAB].sort().values


def probe_tokens() -> list[int]:
    """Return the probe's tokens: the beginning of the first sequence."""
    return sequences()[0][:64].tolist()


def planes(target: Path, ids: torch.Tensor) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Return h[0]..h[L] and norm(h[L]), ``[tokens, HIDDEN]`` each, by hooks on the modules."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32, attn_implementation="eager").eval()
    found: list[torch.Tensor] = []
    normed: list[torch.Tensor] = []
    for layer in model.model.layers:
        layer.register_forward_pre_hook(
            lambda _m, args, kwargs: found.append((args[0] if args else kwargs["hidden_states"])[0]), with_kwargs=True
        )
    model.model.norm.register_forward_hook(lambda _m, args, out: (found.append(args[0][0]), normed.append(out[0]))[0])
    with torch.no_grad():
        model(ids[None])
    assert len(found) == LAYERS + 1
    return [item.clone() for item in found], normed[0].clone()
