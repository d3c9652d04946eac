"""All rows at once is the same as one row after the other, whatever the flags."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from one_by_one import OneByOne
from tiny_drafters import Tiny

from featurecontract.checkpoint import open_checkpoint
from featurecontract.replay import read_drafter, unroll


def all_at_once(directory, features, tokens, steps, *, own_tokens=False, batch=1, **overrides):
    drafter = read_drafter(open_checkpoint(directory), dtype=torch.float64, **overrides)
    states = drafter.project(features.double()[None].expand(batch, -1, -1))
    ids = tokens[None].expand(batch, -1)
    passes = unroll(drafter, states, ids, steps=steps, own_tokens=own_tokens)
    return [drafter.logits(step.output)[-1] for step in passes]


def text(tiny, length, seed=1):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(length, tiny.planes * tiny.target_hidden, generator=g), torch.randint(
        tiny.vocab, (length,), generator=g
    )


def assert_same(found, wanted):
    compared = 0
    for step, rows in enumerate(wanted):
        for row, logits in rows.items():
            off = float((found[step][row] - logits).abs().max() / logits.abs().max())
            # Angles are float32, as everywhere; sharp attention makes more of that with every step.
            assert off <= 1e-4, f"step {step + 1}, row {row}: {off:.1e} of the largest logit"
            compared += 1
    assert compared


@settings(max_examples=25, deadline=None, derandomize=True)
@example(
    pre_norm="joint",
    post=True,
    residual_normed=False,
    fc_bias=False,
    attention_bias=False,
    qk_norm=False,
    groups=(4, 2),
    map_kind="offset",
    target_hidden=32,
    planes=1,
    own_tokens=False,
    seed=609,
)
@given(
    pre_norm=st.sampled_from(["none", "joint", "per_feature"]),
    post=st.booleans(),
    residual_normed=st.booleans(),
    fc_bias=st.booleans(),
    attention_bias=st.booleans(),
    qk_norm=st.booleans(),
    groups=st.sampled_from([(4, 4), (4, 2), (4, 1)]),
    map_kind=st.sampled_from(["offset", "absolute"]),
    target_hidden=st.sampled_from([32, 48]),
    planes=st.integers(1, 4),
    own_tokens=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_every_flag_combination(tmp_path_factory, **drawn):
    tiny = Tiny(
        **{
            k: drawn[k]
            for k in ("pre_norm", "fc_bias", "attention_bias", "qk_norm", "map_kind", "target_hidden", "planes", "seed")
        },
        heads=drawn["groups"][0],
        kv_heads=drawn["groups"][1],
    )
    directory = tiny.write(tmp_path_factory.mktemp("tiny"))
    features, tokens = text(tiny, 9, drawn["seed"])
    oracle = OneByOne(tiny.tensors(), tiny, post=drawn["post"], residual_normed=drawn["residual_normed"])
    found = all_at_once(
        directory,
        features,
        tokens,
        4,
        own_tokens=drawn["own_tokens"],
        target_hidden_size=tiny.target_hidden,
        recurrent="post_norm" if drawn["post"] else "pre_norm",
        norm_before_residual=drawn["residual_normed"],
    )
    assert_same(found, oracle.logits(features, tokens, 4, own_tokens=drawn["own_tokens"]))


@pytest.mark.parametrize("interleaved", [False, True])
def test_rope_styles_theta_and_offset(tmp_path, interleaved):
    tiny = Tiny(config={"rope_theta": 500.0})
    tiny.write(tmp_path)
    features, tokens = text(tiny, 12)
    drafter = read_drafter(open_checkpoint(tmp_path))
    rope = replace(drafter.spec.rope, interleaved=interleaved)
    oracle = OneByOne(tiny.tensors(), tiny, theta=500.0, interleaved=interleaved, offset=3)
    found = all_at_once(tmp_path, features, tokens, 3, rope=rope, position_offset=3)
    assert_same(found, oracle.logits(features, tokens, 3))
    other = all_at_once(tmp_path, features, tokens, 3, rope=replace(rope, theta=10000.0))
    assert float((other[0][9] - found[0][9]).abs().max()) > 1e-2


def test_a_batch_changes_nothing_and_padding_is_not_seen(tmp_path):
    tiny = Tiny()
    tiny.write(tmp_path)
    features, tokens = text(tiny, 10)
    alone = all_at_once(tmp_path, features, tokens, 3)
    batched = all_at_once(tmp_path, features, tokens, 3, batch=3)
    padded = all_at_once(tmp_path, torch.cat([features, torch.full((5, 96), 7.0)]), torch.cat([tokens, tokens[:5]]), 3)
    for step in range(3):
        assert torch.allclose(alone[step], batched[step])
        assert torch.allclose(alone[step][: 10 - 1 - step], padded[step][: 10 - 1 - step])


def test_long_rows_are_taken_in_blocks(tmp_path, monkeypatch):
    from featurecontract.replay import _attention

    tiny = Tiny()
    tiny.write(tmp_path)
    features, tokens = text(tiny, 40)
    whole = all_at_once(tmp_path, features, tokens, 3)
    monkeypatch.setattr(_attention, "_MAX_SCORES", 4 * 40 * 7)
    for found, wanted in zip(all_at_once(tmp_path, features, tokens, 3), whole, strict=True):
        assert torch.allclose(found, wanted)


def test_a_window_hides_what_is_further_back(tmp_path):
    tiny = Tiny()
    tiny.write(tmp_path)
    features, tokens = text(tiny, 20)
    full, windowed = (all_at_once(tmp_path, features, tokens, 2, windows=(w,)) for w in (None, 4))
    changed = features.clone()
    changed[0] += 5.0
    again = all_at_once(tmp_path, changed, tokens, 2, windows=(4,))
    for step in range(2):
        assert torch.allclose(full[step][:4], windowed[step][:4])
        assert not torch.allclose(full[step][8], windowed[step][8])
        assert torch.allclose(windowed[step][4:], again[step][4:])
        assert not torch.allclose(windowed[step][3], again[step][3])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_other_dtypes_stay_near(tmp_path, dtype):
    tiny = Tiny()
    tiny.write(tmp_path)
    features, tokens = text(tiny, 16)
    exact = all_at_once(tmp_path, features, tokens, 3)
    drafter = read_drafter(open_checkpoint(tmp_path), dtype=dtype)
    passes = unroll(drafter, drafter.project(features[None].to(dtype)), tokens[None], steps=3)
    for step in passes:
        off = (drafter.logits(step.output)[0].double() - exact[step.number - 1])[:13].abs().max() / exact[
            step.number - 1
        ].abs().max()
        assert float(off) < (1e-5 if dtype == torch.float32 else 0.1)
