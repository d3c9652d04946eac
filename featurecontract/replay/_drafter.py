"""The reference drafter: EAGLE-3 and EAGLE-1/2 in plain torch, run from a state dict."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn import functional

from featurecontract.errors import InputError
from featurecontract.replay._attention import ChainCache, chain_attention
from featurecontract.replay._mla import latent_heads
from featurecontract.replay._rope import RopeTables

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor

    from featurecontract.replay._spec import DrafterSpec

__all__ = ["ACTIVATIONS", "Drafter", "State", "rms_norm"]

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": functional.silu,
    "swish": functional.silu,
    "relu": functional.relu,
    "gelu": functional.gelu,
    "gelu_new": lambda x: functional.gelu(x, approximate="tanh"),
    "gelu_pytorch_tanh": lambda x: functional.gelu(x, approximate="tanh"),
}


def rms_norm(rows: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Normalise ``[..., width]`` in at least float32 and scale by ``weight``, as Llama's norm does."""
    wide = rows if rows.dtype == torch.float64 else rows.float()
    return weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)).to(rows.dtype)


class State:
    """What one unroll carries from step to step: a cache for each layer, and how many steps were taken."""

    def __init__(self, layers: int) -> None:
        """Begin before step 1."""
        self.caches = [ChainCache() for _ in range(layers)]
        self.steps = 0


class Drafter:
    """A drafter's weights with the forward passes that replay needs.

    Args:
        spec: Its structure.
        weights: By the names of ``plain_names``: ``fc.weight``, ``layers.0.self_attn.q_proj.weight``, ...,
            ``embed.weight`` ``[target vocabulary, hidden]``, ``head.weight`` ``[draft vocabulary, hidden]``; on one
            device, of one dtype.
        to_target: int64 ``[draft vocabulary]``, the target's token of each of the drafter's; None where they are one.
    """

    def __init__(self, spec: DrafterSpec, weights: Mapping[str, Tensor], to_target: Tensor | None = None) -> None:
        """Keep the weights; nothing is copied."""
        self.spec = spec
        self.weights = dict(weights)
        self.device = self.weights["head.weight"].device
        self.dtype = self.weights["head.weight"].dtype
        self.to_target = None if to_target is None else to_target.to(self.device)
        self.rope = RopeTables(spec.rope, spec.mla.rope_dim if spec.mla else spec.head_dim, self.device)

    def embed(self, token_ids: Tensor) -> Tensor:
        """Return ``[..., hidden]`` for int64 tokens of the target's vocabulary."""
        weight = self.weights["embed.weight"]
        top = int(token_ids.max()) if token_ids.numel() else -1
        if top >= len(weight):
            raise InputError.single(
                "the drafter's embedding",
                f"has {len(weight)} rows, and token {top} is fed",
                next_step="give the drafter's own target, and states or captures of its vocabulary",
            )
        return functional.embedding(token_ids, weight)

    def project(self, features: Tensor) -> Tensor:
        """Return the state before step 1, ``[..., hidden]``, for features ``[..., feature_width]``."""
        if self.spec.kind == "eagle" or "fc.weight" not in self.weights:
            return features
        return self.project_normed(self.pre_normed(features))

    def project_normed(self, features: Tensor) -> Tensor:
        """Return the same as ``project`` for what ``fc`` itself receives, behind any norm."""
        if self.spec.kind == "eagle" or "fc.weight" not in self.weights:
            return features
        return functional.linear(features, self.weights["fc.weight"], self.weights.get("fc.bias"))

    def pre_normed(self, features: Tensor) -> Tensor:
        """Return what ``fc`` itself receives."""
        if self.spec.pre_norm == "joint":
            return rms_norm(features, self.weights["input_norm.weight"], self.spec.eps)
        if self.spec.pre_norm == "per_feature":
            chunks = torch.split(features, self.spec.target_hidden_size, dim=-1)
            normed = [
                rms_norm(chunk, self.weights[f"fc_norm.{slot}.weight"], self.spec.eps)
                for slot, chunk in enumerate(chunks)
            ]
            return torch.cat(normed, dim=-1)
        return features

    def step(self, states: Tensor, token_ids: Tensor, positions: Tensor, carry: State) -> Tensor:
        """Take one draft step for every row at once and return the last layer's output, before any norm.

        Args:
            states: ``[batch, rows, hidden]``: ``project``'s, or what ``recurrent`` made of the step before.
            token_ids: int64 ``[batch, rows]``, what each row's token is at this step.
            positions: int64 ``[batch or 1, rows]``, of this step.
            carry: Of this unroll.
        """
        embedded = self.embed(token_ids).to(self.dtype)
        cos, sin = self.rope.at(positions, self.dtype)
        tables = cos[:, None], sin[:, None]
        if self.spec.kind == "eagle":
            both = torch.cat((embedded, states), dim=-1)
            rows = functional.linear(both, self.weights["fc.weight"], self.weights.get("fc.bias"))
            first = 0
        else:
            rows = self._first_layer(embedded, states, tables, carry)
            first = 1
        for layer in range(first, self.spec.num_layers):
            rows = self._layer(layer, rows, tables, carry)
        carry.steps += 1
        return rows

    def recurrent(self, output: Tensor) -> Tensor:
        """Return the state that enters the next step."""
        return self._final_norm(output) if self.spec.recurrent == "post_norm" else output

    def head_input(self, output: Tensor) -> Tensor:
        """Return what the output head reads."""
        return self._final_norm(output) if self.spec.head_norm else output

    def logits(self, output: Tensor) -> Tensor:
        """Return ``[..., draft_vocab_size]``."""
        return functional.linear(self.head_input(output), self.weights["head.weight"])

    def tokens(self, logits: Tensor) -> Tensor:
        """Return the drafted tokens, in the target's vocabulary."""
        return self.target_ids(logits.argmax(dim=-1))

    def target_ids(self, draft_ids: Tensor) -> Tensor:
        """Translate the drafter's tokens into the target's."""
        return draft_ids if self.to_target is None else self.to_target[draft_ids]

    def _final_norm(self, rows: Tensor) -> Tensor:
        return rms_norm(rows, self.weights["norm.weight"], self.spec.eps)

    def _first_layer(self, embedded: Tensor, states: Tensor, tables: tuple[Tensor, Tensor], carry: State) -> Tensor:
        normed = self._norm("layers.0.hidden_norm", states)
        residual = normed if self.spec.norm_before_residual else states
        both = torch.cat((self._norm("layers.0.input_layernorm", embedded), normed), dim=-1)
        return self._mlp(0, residual + self._attend(0, both, tables, carry))

    def _layer(self, layer: int, rows: Tensor, tables: tuple[Tensor, Tensor], carry: State) -> Tensor:
        return self._mlp(
            layer, rows + self._attend(layer, self._norm(f"layers.{layer}.input_layernorm", rows), tables, carry)
        )

    def _mlp(self, layer: int, rows: Tensor) -> Tensor:
        name = f"layers.{layer}"
        normed = self._norm(f"{name}.post_attention_layernorm", rows)
        gate = ACTIVATIONS[self.spec.activation](self._linear(f"{name}.mlp.gate_proj", normed))
        return rows + self._linear(f"{name}.mlp.down_proj", gate * self._linear(f"{name}.mlp.up_proj", normed))

    def _attend(self, layer: int, rows: Tensor, tables: tuple[Tensor, Tensor], carry: State) -> Tensor:
        name, mla = f"layers.{layer}.self_attn", self.spec.mla
        if mla is None:
            query, key, value = self._plain_heads(name, rows, tables)
        else:
            query, key, value = latent_heads(
                mla,
                self.weights,
                name,
                rows,
                heads=self.spec.num_heads,
                linear=self._linear,
                norm=self._norm,
                rotate=lambda part: self.rope.rotate(part, *tables),
            )
        carry.caches[layer].add(key, value)
        attended = chain_attention(
            query, carry.caches[layer], window=self.spec.windows[layer], scale=mla.scale if mla else None
        )
        return self._linear(f"{name}.o_proj", attended.transpose(1, 2).flatten(2))

    def _plain_heads(self, name: str, rows: Tensor, tables: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        query, key, value = (
            self._linear(f"{name}.{part}_proj", rows).reshape(*rows.shape[:2], -1, self.spec.head_dim).transpose(1, 2)
            for part in "qkv"
        )
        query, key = self._norm(f"{name}.q_norm", query), self._norm(f"{name}.k_norm", key)
        return self.rope.rotate(query, *tables), self.rope.rotate(key, *tables), value

    def _norm(self, name: str, rows: Tensor, eps: float | None = None) -> Tensor:
        """Apply a norm of this name where there is one; which ones must be there was checked when they were read."""
        weight = self.weights.get(f"{name}.weight")
        return rows if weight is None else rms_norm(rows, weight, self.spec.eps if eps is None else eps)

    def _linear(self, name: str, rows: Tensor) -> Tensor:
        return functional.linear(rows, self.weights[f"{name}.weight"], self.weights.get(f"{name}.bias"))
