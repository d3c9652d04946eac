"""Conventions: the two ways in which an integer in somebody's config names a boundary, and the spellings per tool."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

__all__ = ["CONVENTIONS", "Convention", "Spelling", "from_boundary", "spell", "spellings", "to_boundary"]

Convention = Literal["layer_output", "layer_input"]
CONVENTIONS: tuple[Convention, ...] = get_args(Convention)


def to_boundary(layer_id: int, convention: Convention) -> int:
    """Translate a config's id: ``layer_output`` id k is h[k + 1], ``layer_input`` id k is h[k]."""
    return layer_id + 1 if convention == "layer_output" else layer_id


def from_boundary(boundary: int, convention: Convention) -> int:
    """Translate a boundary into a config's id; the inverse of `to_boundary`.

    h[0] is -1 as ``layer_output``, which is how SGLang's llama-style targets and DeepSpec spell the embedding.
    """
    return boundary - 1 if convention == "layer_output" else boundary


@dataclass(frozen=True, slots=True)
class Spelling:
    """How a family of tools writes a boundary."""

    tools: str
    text: str


def spellings(boundary: int, *, num_hidden_layers: int | None = None) -> tuple[Spelling, ...]:
    """Return a boundary in the words of the tools that people have in front of them."""
    out = []
    if boundary > 0:
        out.append(Spelling("output of layer", str(boundary - 1)))
    out.append(Spelling("SGLang/SpecForge/TRT-LLM id", str(boundary - 1)))
    out.append(Spelling("vLLM/speculators/llama.cpp id", str(boundary)))
    # The last entry of transformers' tuple is after the final norm, so h[L] is not in it.
    if num_hidden_layers is None or boundary < num_hidden_layers:
        out.append(Spelling("HF", f"hidden_states[{boundary}]"))
    return tuple(out)


def spell(boundary: int, *, num_hidden_layers: int | None = None) -> str:
    """Return one line such as ``h[30] = output of layer 29 = SGLang/SpecForge/TRT-LLM id 29 = ...``."""
    parts = [f"h[{boundary}]" if boundary else "h[0] (embedding)"]
    parts += [f"{item.tools} {item.text}" for item in spellings(boundary, num_hidden_layers=num_hidden_layers)]
    return " = ".join(parts)
