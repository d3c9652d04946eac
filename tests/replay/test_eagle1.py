"""EAGLE-1 and 2: fc reads cat(embedding, state) at every step, a plain layer follows, and the target's head ends it."""

from __future__ import annotations

import torch
from one_by_one import norm, turn
from tiny_drafters import Tiny

from featurecontract.checkpoint import open_checkpoint
from featurecontract.replay import read_drafter, unroll

STEPS, LENGTH = 3, 9


def by_hand(t, tiny, embedding, head, *, state, token, position, keys, values):
    """One row, one step, in the words of EAGLE's modeling code; returns the output and its logits."""
    x = t["fc.weight"] @ torch.cat([embedding[token], state]) + t["fc.bias"]
    q, k, v = (list((t[f"layers.0.self_attn.{p}_proj.weight"] @ x).reshape(-1, tiny.head_dim)) for p in "qkv")
    keys.append([turn(item, position, 10000.0) for item in k])
    values.append(v)
    mixed = []
    for index, query in enumerate(turn(item, position, 10000.0) for item in q):
        group = index // (tiny.heads // tiny.kv_heads)
        weights = (torch.stack([key[group] for key in keys]) @ query / tiny.head_dim**0.5).softmax(0)
        mixed.append(weights @ torch.stack([value[group] for value in values]))
    x = x + t["layers.0.self_attn.o_proj.weight"] @ torch.cat(mixed)
    y = norm(x, t["layers.0.post_attention_layernorm.weight"], 1e-5)
    gate = torch.nn.functional.silu(t["layers.0.mlp.gate_proj.weight"] @ y)
    out = x + t["layers.0.mlp.down_proj.weight"] @ (gate * (t["layers.0.mlp.up_proj.weight"] @ y))
    return out, head @ out


def test_it_is_what_a_loop_makes_of_it(tmp_path):
    tiny = Tiny(eagle1=True, prefix="layers", own_embedding=False, fc_bias=True, draft_vocab=64)
    tiny.write(tmp_path)
    g = torch.Generator().manual_seed(2)
    embedding, head = torch.randn(64, 32, generator=g), torch.randn(64, 32, generator=g)
    states, tokens = torch.randn(LENGTH, 32, generator=g), torch.randint(64, (LENGTH,), generator=g)
    drafter = read_drafter(
        open_checkpoint(tmp_path), target_hidden_size=32, embedding=embedding, head=head, dtype=torch.float64
    )
    assert drafter.spec.kind == "eagle"
    assert (drafter.spec.slots, drafter.spec.head_norm, drafter.spec.recurrent) == (1, False, "pre_norm")
    passes = unroll(drafter, drafter.project(states.double()[None]), tokens[None], steps=STEPS)
    found = [drafter.logits(step.output)[0] for step in passes]
    t = {name: value.double() for name, value in tiny.tensors().items()}
    keys, values, compared = [], [], 0
    for row in range(LENGTH - 1):
        state, chain_keys, chain_values = states[row].double(), keys, values
        for step in range(STEPS):
            if row + 1 + step >= LENGTH:
                break
            token = int(tokens[row + 1 + step])
            state, logits = by_hand(
                t,
                tiny,
                embedding.double(),
                head.double(),
                state=state,
                token=token,
                position=row + step,
                keys=chain_keys,
                values=chain_values,
            )
            assert torch.allclose(found[step][row], logits, rtol=1e-4, atol=1e-4), (row, step)
            compared += 1
            if step == 0:
                chain_keys, chain_values = list(keys), list(values)
    assert compared == 3 * (LENGTH - 1) - 3
