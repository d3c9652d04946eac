"""The target's own parts that replay borrows: its embedding, its head, and its answers from a last hidden state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch.nn import functional

from featurecontract.errors import InputError
from featurecontract.replay._drafter import rms_norm
from featurecontract.replay._read import read_tensor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor, nn

    from featurecontract.checkpoint import Checkpoint
    from featurecontract.probe import Layout

__all__ = ["TargetParts", "parts_of_checkpoint", "parts_of_model"]

_EMBEDDINGS = (
    "embed_tokens.weight",
    "wte.weight",
    "tok_embeddings.weight",
    "word_embeddings.weight",
    "embed_in.weight",
)
_HEADS = ("lm_head.weight", "embed_out.weight", "output.weight")
_NORMS = ("norm.weight", "final_layernorm.weight", "ln_f.weight", "final_layer_norm.weight", "norm_f.weight")
# Towers and extra heads hold tensors of the same names.
_ELSEWHERE = ("layers.", "blocks.", ".h.", "vision", "visual", "audio", "mtp", "image", "encoder", "draft")
# Their final norm scales by 1 + w (transformers' modeling_gemma*.py and modeling_qwen3_5.py).
_ONE_PLUS = ("gemma", "gemma2", "gemma3", "gemma3_text", "qwen3_5", "qwen3_5_text", "recurrent_gemma")
# What transformers' models do to the head's output, by the config's key (Gemma 2, Cohere, Granite, MiniCPM, Falcon-H1).
_AFTER_HEAD = (
    "final_logit_softcapping",
    "logit_scale",
    "logits_scaling",
    "output_multiplier",
    "lm_head_multiplier",
    "dim_model_base",
    "mup_width_scale",
)
_MAX_LOGITS = 2**24


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class TargetParts:
    """Weights of the target; ``norm`` is its final RMSNorm as applied, None where it is not one.

    Attributes:
        embedding: ``[vocabulary, H]``.
        head: ``[vocabulary, H]``.
        norm: ``[H]``.
        eps: Of the norm.
        plain: The head's output is the logits: no factor and no cap follows it.
    """

    embedding: Tensor | None = None
    head: Tensor | None = None
    norm: Tensor | None = None
    eps: float = 1e-6
    plain: bool = True

    @property
    def vocab_size(self) -> int | None:
        """Rows of the embedding."""
        return None if self.embedding is None else int(self.embedding.shape[0])

    def answers(self, last: Tensor, state: str) -> Tensor | None:
        """Return int64 ``[tokens]``, the greedy choice after each row of ``last`` ``[tokens, H]``; None if unknown.

        A soft cap or a positive factor on the logits does not change which is the largest.
        """
        head, rows = self.head, self._normed(last, state)
        if head is None or rows is None:
            return None
        block = max(1, _MAX_LOGITS // head.shape[0])
        with torch.inference_mode():
            parts = [functional.linear(part.to(head.dtype), head).argmax(-1) for part in torch.split(rows, block)]
        return torch.cat(parts).cpu() if parts else None

    def logits(self, last: Tensor, state: str, token_ids: Tensor | None) -> Tensor | None:
        """Return float32 ``[tokens, ids]``, the logits of these tokens after each row; None where nobody knows them."""
        head, rows = self.head, self._normed(last, state)
        if head is None or rows is None or not self.plain:
            return None
        if token_ids is not None:
            if len(token_ids) and int(token_ids.max()) >= len(head):
                return None
            head = head[token_ids.to(head.device)]
        with torch.inference_mode():
            return functional.linear(rows.to(head.dtype), head).float()

    def _normed(self, last: Tensor, state: str) -> Tensor | None:
        """Return what the head reads, float32; None where it cannot be made of this state."""
        head = self.head
        if head is None or state == "unknown" or last.shape[-1] != head.shape[1]:
            return None
        rows = last.to(head.device, torch.float32)
        if state != "residual":
            return rows
        return None if self.norm is None else rms_norm(rows, self.norm.float(), self.eps)


def parts_of_checkpoint(checkpoint: Checkpoint) -> TargetParts:
    """Read the parts from a target's directory; its layers are not touched.

    Raises:
        InputError: a tensor of these names stands there twice, or cannot be read.
    """
    config = checkpoint.section("text_config") or checkpoint.config
    embedding = _read(checkpoint, _EMBEDDINGS)
    head = _read(checkpoint, _HEADS)
    if head is None and config.get("tie_word_embeddings", checkpoint.config.get("tie_word_embeddings")) is not False:
        head = embedding
    eps = config.get("rms_norm_eps")
    norm = _read(checkpoint, _NORMS) if isinstance(eps, float) else None
    if norm is not None and config.get("model_type") in _ONE_PLUS:
        norm = 1.0 + norm.float()
    plain = all(config.get(key) in (None, 1, 1.0) for key in _AFTER_HEAD)
    return TargetParts(embedding, head, norm, float(eps) if isinstance(eps, float) else 1e-6, plain)


def _read(checkpoint: Checkpoint, endings: Sequence[str]) -> Tensor | None:
    for ending in endings:
        found = [
            name
            for name in checkpoint.tensors or {}
            if (name == ending or name.endswith(f".{ending}")) and not any(word in name for word in _ELSEWHERE)
        ]
        if len(found) > 1:
            raise InputError.single(
                str(checkpoint.path),
                f"{found[0]!r} and {found[1]!r} could both be the target's {ending}",
                next_step="name the directory of the language model alone",
            )
        if found:
            return read_tensor(checkpoint, found[0])
    return None


def parts_of_model(layout: Layout) -> TargetParts:
    """Return the parts of a live target; its answers come from its own logits, so no norm is needed."""
    return TargetParts(_weight(layout.embedding), _weight(layout.head))


def _weight(module: nn.Module | None) -> Tensor | None:
    found = getattr(module, "weight", None)
    return found.detach().to("cpu", torch.float32) if isinstance(found, torch.Tensor) and found.dim() == 2 else None  # noqa: PLR2004
