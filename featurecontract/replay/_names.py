"""Tensor names: EAGLE's and SpecForge's ``midlayer.*`` and speculators' ``layers.0.*`` become one spelling."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from featurecontract.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["ATTENTION_PARTS", "MLP_PARTS", "layer_count", "plain_names"]

_PREFIXES = ("draft_model.", "model.")
_EMBEDDINGS = ("embed_tokens.weight",)
_HEADS = ("lm_head.weight",)
# Trained beside the drafter and never run by it, or the target's own parts that an exporter left in.
_PASSED_OVER = ("d2t", "t2d", "verifier_norm.weight", "verifier_lm_head.weight", "logsoftmax")
ATTENTION_PARTS = tuple(f"{part}_proj.weight" for part in "qkvo")
MLP_PARTS = tuple(f"mlp.{part}_proj.weight" for part in ("gate", "up", "down"))
_LAYER = re.compile(r"layers\.(\d{1,4})\.")


def plain_names(names: Iterable[str], *, source: str) -> dict[str, str]:
    """Return our name of every tensor that a drafter's forward pass may read, by the file's name.

    Raises:
        InputError: two tensors would have one name.
    """
    out: dict[str, str] = {}
    seen: dict[str, str] = {}
    for name in sorted(names):
        plain = _plain(name)
        if plain in _PASSED_OVER or plain.endswith("inv_freq"):
            continue
        if plain in seen:
            raise InputError.single(
                source,
                f"{seen[plain]!r} and {name!r} are the same part of a drafter",
                next_step="keep one of them",
            )
        seen[plain] = name
        out[name] = plain
    return out


def _plain(name: str) -> str:
    for prefix in _PREFIXES:
        name = name.removeprefix(prefix)
    if name.startswith("midlayer."):
        name = "layers.0." + name.removeprefix("midlayer.")
    # SGLang's own name of the stacked projection, in a file that it wrote.
    name = name.replace(".fused_qkv_a_proj_with_mqa.", ".fused_qkv_a_proj.")
    if name in _EMBEDDINGS:
        return "embed.weight"
    return "head.weight" if name in _HEADS else name


def layer_count(names: Iterable[str]) -> int:
    """Return how many decoder layers a state dict holds: layers 0 up to the first that is missing."""
    found = {int(match[1]) for name in names if (match := _LAYER.match(name))}
    count = 0
    while count in found:
        count += 1
    return count
