"""A drafter decoded row by row, written apart from the package: the plain reading of what a runtime does.

No batching, no mask: one chain per row, each step appends one key to a list. The oracle of the all-at-once pass.
"""

from __future__ import annotations

import math

import torch


def norm(x, w, eps):
    return x / torch.sqrt((x * x).mean() + eps) * w


def turn(vector, position, theta, *, interleaved=False):
    """Rotate one head by complex multiplication."""
    half = vector.numel() // 2
    pairs = vector.reshape(half, 2) if interleaved else vector.reshape(2, half).T
    angle = position * theta ** (-torch.arange(half, dtype=torch.float64) / half)
    turned = torch.view_as_complex(pairs.double().contiguous()) * torch.polar(torch.ones_like(angle), angle)
    pairs = torch.view_as_real(turned)
    return (pairs.reshape(-1) if interleaved else pairs.T.reshape(-1)).to(vector.dtype)


class OneByOne:
    """A drafter of one layer with SpecForge's names, float64."""

    def __init__(self, tensors, tiny, *, post=False, residual_normed=False, theta=10000.0, offset=0, interleaved=False):
        self.t = {name: value.double() if value.is_floating_point() else value for name, value in tensors.items()}
        self.tiny, self.post, self.residual_normed = tiny, post, residual_normed
        self.theta, self.offset, self.interleaved = theta, offset, interleaved

    def start(self, feature):
        tiny, t = self.tiny, self.t
        x = feature.double()
        if tiny.pre_norm == "joint":
            x = norm(x, t["input_norm.weight"], 1e-5)
        if tiny.pre_norm == "per_feature":
            x = torch.cat([norm(c, t[f"fc_norm.{i}.weight"], 1e-5) for i, c in enumerate(x.split(tiny.target_hidden))])
        return t["fc.weight"] @ x + t.get("fc.bias", 0)

    def heads(self, name, x, position, *, rotate):
        w, b = self.t[f"midlayer.self_attn.{name}_proj.weight"], self.t.get(f"midlayer.self_attn.{name}_proj.bias", 0)
        found = list((w @ x + b).reshape(-1, self.tiny.head_dim))
        scale = self.t.get(f"midlayer.self_attn.{name}_norm.weight")
        if scale is not None:
            found = [norm(head, scale, 1e-5) for head in found]
        return [turn(head, position, self.theta, interleaved=self.interleaved) for head in found] if rotate else found

    def mixed(self, x, position, keys, values):
        """Keep this row's key and value, and return what each head reads."""
        keys.append(self.heads("k", x, position, rotate=True))
        values.append(self.heads("v", x, position, rotate=False))
        mixed = []
        for index, query in enumerate(self.heads("q", x, position, rotate=True)):
            group = index // (self.tiny.heads // self.tiny.kv_heads)
            scores = torch.stack([query @ key[group] for key in keys]) / math.sqrt(self.tiny.head_dim)
            mixed.append(sum(p * v[group] for p, v in zip(scores.softmax(0), values, strict=True)))
        return mixed

    def one(self, state, token, position, keys, values):
        t = self.t
        embedded = norm(t["embed_tokens.weight"][token], t["midlayer.input_layernorm.weight"], 1e-5)
        normed = norm(state, t["midlayer.hidden_norm.weight"], 1e-5)
        mixed = self.mixed(torch.cat([embedded, normed]), position, keys, values)
        out = (normed if self.residual_normed else state) + t["midlayer.self_attn.o_proj.weight"] @ torch.cat(mixed)
        out = out + t.get("midlayer.self_attn.o_proj.bias", 0)
        y = norm(out, t["midlayer.post_attention_layernorm.weight"], 1e-5)
        gate = torch.nn.functional.silu(t["midlayer.mlp.gate_proj.weight"] @ y) * (t["midlayer.mlp.up_proj.weight"] @ y)
        return out + t["midlayer.mlp.down_proj.weight"] @ gate

    def logits(self, features, tokens, steps, *, own_tokens=False):
        """Return ``[steps][row] -> logits`` for every row whose tokens reach that far."""
        rows, found = len(tokens) - 1, [{} for _ in range(steps)]
        prefix_keys, prefix_values = [], []
        for row in range(rows):
            state, token = self.start(features[row]), int(tokens[row + 1])
            output = self.one(state, token, row + self.offset, prefix_keys, prefix_values)
            keys, values = list(prefix_keys), list(prefix_values)
            for step in range(steps):
                normed = norm(output, self.t["norm.weight"], 1e-5)
                found[step][row] = self.t["lm_head.weight"] @ normed
                if step + 1 == steps or (not own_tokens and row + step + 2 >= len(tokens)):
                    break
                drafted = int(found[step][row].argmax())
                token = self.to_target(drafted) if own_tokens else int(tokens[row + step + 2])
                state = normed if self.post else output
                output = self.one(state, token, row + step + 1 + self.offset, keys, values)
        return found

    def to_target(self, drafted):
        value = int(self.t["d2t"][drafted])
        return value + drafted if self.tiny.map_kind == "offset" else value
