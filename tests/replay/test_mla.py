"""Latent attention: all rows at once is what a row-by-row decoder with absorbed matrices makes of it."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mla_one_by_one import MlaOneByOne
from safetensors.torch import save_file
from test_unroll import all_at_once, assert_same, text
from tiny_mla import TinyMla

from featurecontract.checkpoint import open_checkpoint
from featurecontract.errors import InputError
from featurecontract.replay import read_drafter
from featurecontract.replay._structure import read_spec

YARN = {"type": "yarn", "factor": 8.0, "original_max_position_embeddings": 16, "beta_fast": 4.0, "beta_slow": 1.0}


@settings(max_examples=20, deadline=None, derandomize=True)
@given(
    query_rank=st.sampled_from([None, 20]),
    fused=st.booleans(),
    attention_bias=st.booleans(),
    pre_norm=st.sampled_from(["none", "per_feature"]),
    post=st.booleans(),
    residual_normed=st.booleans(),
    planes=st.integers(1, 4),
    heads=st.sampled_from([1, 3, 4]),
    own_tokens=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_every_flag_combination(tmp_path_factory, **drawn):
    kinds = ("query_rank", "attention_bias", "pre_norm", "planes", "heads", "seed")
    tiny = TinyMla(**{key: drawn[key] for key in kinds}, fused=drawn["fused"] and drawn["query_rank"] is not None)
    directory = tiny.write(tmp_path_factory.mktemp("tiny"))
    features, tokens = text(tiny, 9, drawn["seed"])
    oracle = MlaOneByOne(tiny.tensors(), tiny, post=drawn["post"], residual_normed=drawn["residual_normed"])
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
def test_rope_styles_and_theta(tmp_path, interleaved):
    tiny = TinyMla(config={"rope_theta": 500.0, "rope_interleave": interleaved})
    tiny.write(tmp_path)
    features, tokens = text(tiny, 12)
    oracle = MlaOneByOne(tiny.tensors(), tiny, theta=500.0, interleaved=interleaved, offset=3)
    found = all_at_once(tmp_path, features, tokens, 3, position_offset=3)
    assert_same(found, oracle.logits(features, tokens, 3))
    rope = read_drafter(open_checkpoint(tmp_path)).spec.rope
    other = all_at_once(tmp_path, features, tokens, 3, rope=replace(rope, interleaved=not interleaved))
    assert float((other[0][9] - found[0][9]).abs().max()) > 1e-2


def mscale(factor, weight):
    return 0.1 * weight * math.log(factor) + 1


@pytest.mark.parametrize(
    ("stated", "on_rope", "on_scores"),
    [
        ({"mscale": 1.0, "mscale_all_dim": 1.0}, 1.0, mscale(8, 1.0)),
        ({"mscale": 0.707, "mscale_all_dim": 0.3}, mscale(8, 0.707) / mscale(8, 0.3), mscale(8, 0.3)),
        ({"mscale": 0.5}, mscale(8, 0.5), 1.0),
        ({"mscale_all_dim": 0.5}, mscale(8, 1) / mscale(8, 0.5), mscale(8, 0.5)),
        ({}, mscale(8, 1), 1.0),
    ],
)
def test_yarn_scales_the_rotated_part_and_the_scores(tmp_path, stated, on_rope, on_scores):
    tiny = TinyMla(config={"rope_scaling": YARN | stated})
    tiny.write(tmp_path)
    drafter = read_drafter(open_checkpoint(tmp_path))
    assert drafter.spec.rope.attention_factor == pytest.approx(on_rope)
    assert drafter.spec.mla.scale == pytest.approx((tiny.plain_dim + tiny.rope_dim) ** -0.5 * on_scores**2)
    # The ramp by hand: pairs that turn more than beta_fast times in 16 positions keep their speed.
    plain = 10000.0 ** -(torch.arange(4, dtype=torch.float64) / 4)
    low, high = (8 * math.log(16 / (turns * 2 * math.pi)) / (2 * math.log(10000.0)) for turns in (4.0, 1.0))
    low, high = max(math.floor(low), 0), math.ceil(high)
    ramp = ((torch.arange(4, dtype=torch.float64) - low) / (high - low)).clamp(0, 1)
    turned = plain / 8 * ramp + plain * (1 - ramp)

    class Stretched(MlaOneByOne):
        def rotated(self, vector, position):
            return super().rotated(vector, position) * on_rope

    features, tokens = text(tiny, 20)
    oracle = Stretched(tiny.tensors(), tiny, factor=on_scores, turned=turned)
    assert_same(all_at_once(tmp_path, features, tokens, 3), oracle.logits(features, tokens, 3))


def test_what_the_published_configs_say_is_read(tmp_path):
    tiny = TinyMla(pre_norm="per_feature", config={"norm_output": True, "fc_norm": True, "head_dim": 128})
    tiny.write(tmp_path)
    spec = read_drafter(open_checkpoint(tmp_path)).spec
    assert (spec.recurrent, spec.head_norm, spec.pre_norm) == ("post_norm", True, "per_feature")
    tiny.config["norm_output"] = False
    tiny.write(tmp_path / "other")
    other = read_drafter(open_checkpoint(tmp_path / "other")).spec
    # False here is not SpecForge's, whose head then reads rows that are not normed.
    assert (other.recurrent, other.head_norm) == ("pre_norm", True)
    assert (spec.num_heads, spec.head_dim, spec.rope.interleaved) == (4, 18, True)
    assert (spec.mla.query_rank, spec.mla.latent_rank, spec.mla.plain_dim, spec.mla.rope_dim, spec.mla.value_dim) == (
        (20, 12, 10, 8, 14)
    )
    assert any("rms_norm_eps 1e-05" in note for note in spec.notes)


KIMI = {
    "architectures": ["Eagle3DeepseekV2ForCausalLM"],
    "model_type": "kimi_k2",
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "num_hidden_layers": 1,
    "num_attention_heads": 64,
    "num_key_value_heads": 64,
    "head_dim": 128,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-05,
    "vocab_size": 163840,
    "draft_vocab_size": 163840,
    "max_position_embeddings": 262144,
    "sliding_window": None,
    "first_k_dense_replace": 1,
    "rope_theta": 50000.0,
    "rope_scaling": {
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "factor": 64.0,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 4096,
        "type": "yarn",
    },
    "eagle_config": {"eagle_aux_hidden_state_layer_ids": [2, 30, 58], "use_aux_hidden_state": True},
}
KIMI_SHAPES = {
    "head.weight": (163840, 7168),
    "fc.weight": (7168, 21504),
    "layers.0.self_attn.q_a_proj.weight": (1536, 14336),
    "layers.0.self_attn.q_a_layernorm.weight": (1536,),
    "layers.0.self_attn.q_b_proj.weight": (64 * 192, 1536),
    "layers.0.self_attn.kv_a_proj_with_mqa.weight": (576, 14336),
    "layers.0.self_attn.kv_a_layernorm.weight": (512,),
    "layers.0.self_attn.kv_b_proj.weight": (64 * 256, 512),
    "layers.0.self_attn.o_proj.weight": (7168, 64 * 128),
}


def test_the_sizes_of_a_published_drafter(tmp_path):
    """By its config and shapes alone: its weights are 3 GB."""
    (tmp_path / "config.json").write_text(json.dumps(KIMI))
    spec = read_spec(open_checkpoint(tmp_path), KIMI_SHAPES)
    assert (spec.slots, spec.num_heads, spec.head_dim, spec.recurrent) == (3, 64, 192, "pre_norm")
    assert spec.mla.scale == pytest.approx(192**-0.5 * (0.1 * math.log(64) + 1) ** 2)
    assert (spec.rope.theta, spec.rope.factor, spec.rope.attention_factor, spec.rope.interleaved) == (
        50000,
        64,
        1,
        True,
    )


def test_two_layers_and_sglang_s_name_of_the_stacked_projection(tmp_path):
    split, fused = TinyMla(layers=2, prefix="layers.0"), TinyMla(layers=2, prefix="layers.0", fused=True)
    split.write(tmp_path / "split")
    (tmp_path / "fused").mkdir()
    renamed = {k.replace("fused_qkv_a_proj.", "fused_qkv_a_proj_with_mqa."): v for k, v in fused.tensors().items()}
    save_file(renamed, tmp_path / "fused/model.safetensors")
    (tmp_path / "fused/config.json").write_text(json.dumps(fused.settings()))
    features, tokens = text(split, 8)
    both = [all_at_once(tmp_path / name, features, tokens, 2) for name in ("split", "fused")]
    for step in range(2):
        assert torch.allclose(both[0][step], both[1][step])


# --- what is refused ---------------------------------------------------------------------------------------------

ATTENTION = "midlayer.self_attn."


def refusal(directory, tiny, *, drop=(), change=None, config=None):
    tensors = {name: value for name, value in tiny.tensors().items() if name.removeprefix(ATTENTION) not in drop}
    tensors |= {ATTENTION + name: value for name, value in (change or {}).items()}
    directory.mkdir(exist_ok=True)
    save_file(tensors, directory / "model.safetensors")
    (directory / "config.json").write_text(json.dumps(tiny.settings() | (config or {})))
    with pytest.raises(InputError) as caught:
        read_drafter(open_checkpoint(directory), target_hidden_size=tiny.target_hidden)
    line = str(caught.value)
    assert "\n" not in line
    return caught.value.problems[0].place, line


@pytest.mark.parametrize(
    "part", ["kv_b_proj", "kv_a_layernorm", "kv_a_proj_with_mqa", "q_a_proj", "q_a_layernorm", "q_b_proj", "o_proj"]
)
def test_a_missing_part_is_named(tmp_path, part):
    place, line = refusal(tmp_path, TinyMla(), drop=(f"{part}.weight",))
    # Without q_b_proj and q_proj it cannot be told whether queries come from a latent: q_a_layernorm says so.
    assert place == f"layers.0.self_attn.{part}.weight"
    assert "is missing from the checkpoint" in line


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("q_lora_rank", 16),
        ("q_lora_rank", None),
        ("kv_lora_rank", 512),
        ("qk_nope_head_dim", 12),
        ("qk_rope_head_dim", 4),
        ("v_head_dim", 10),
    ],
)
def test_a_config_with_other_widths_is_named(tmp_path, key, value):
    place, line = refusal(tmp_path, TinyMla(), config={key: value})
    assert place == key
    assert f"says {'null' if value is None else value}, the weights have" in line


def test_a_rank_that_the_weights_do_not_have(tmp_path):
    place, line = refusal(tmp_path, TinyMla(query_rank=None), config={"q_lora_rank": 20})
    assert place == "q_lora_rank"
    assert "says 20, the weights have none" in line


@pytest.mark.parametrize(
    ("change", "config", "place", "said"),
    [
        ({}, {"num_attention_heads": 5}, "o_proj", "5 heads do not divide"),
        ({}, {"num_attention_heads": 2}, "q_b_proj", "is not 2 heads of 20 and 8 channels"),
        ({"kv_b_proj.weight": (90, 12)}, {}, "kv_b_proj", "4 heads do not divide"),
        ({"kv_b_proj.weight": (56, 12)}, {}, "kv_b_proj", "no room for keys"),
        ({"kv_a_proj_with_mqa.weight": (12, 64)}, {}, "kv_a_proj_with_mqa", "cannot be rotated"),
        ({"kv_a_proj_with_mqa.weight": (19, 64)}, {}, "kv_a_proj_with_mqa", "cannot be rotated"),
        ({"q_b_proj.weight": (70, 20)}, {}, "q_b_proj", "is not 4 heads"),
        ({"kv_a_layernorm.weight": (0,)}, {}, "kv_a_layernorm", "no such part"),
        ({"o_proj.weight": (56,)}, {}, "o_proj", "no such part"),
        ({"kv_a_proj_with_mqa.weight": (20, 32)}, {}, "kv_a_proj_with_mqa", "needs [20, 64]"),
        ({"kv_b_proj.weight": (96, 13)}, {}, "kv_b_proj", "needs [96, 12]"),
        ({"q_b_proj.weight": (72, 21)}, {}, "q_b_proj", "needs [72, 20]"),
        ({"kv_a_proj_with_mqa.bias": (3,)}, {}, "kv_a_proj_with_mqa", "needs [20]"),
        ({"fused_qkv_a_proj.weight": (40, 64)}, {}, "fused_qkv_a_proj", "stands beside"),
    ],
)
def test_weights_that_contradict_themselves(tmp_path, change, config, place, said):
    tensors = {name: torch.ones(shape) for name, shape in change.items()}
    at, line = refusal(tmp_path, TinyMla(), change=tensors, config=config)
    assert f".{place}." in at
    assert said in line


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"num_attention_heads": None}, "states no num_attention_heads"),
        ({"kv_lora_rank": "512"}, "is not a positive integer"),
        ({"rope_scaling": {"type": "llama3", "factor": 8.0}}, "vLLM takes it for yarn"),
        ({"rope_scaling": YARN | {"attention_factor": 1.0}}, "attention_factor is not replayed"),
        ({"rope_scaling": YARN | {"mscale_all_dim": "1"}}, "no usable mscale_all_dim"),
        ({"rope_scaling": YARN | {"mscale": True}}, "no usable mscale"),
    ],
)
def test_a_config_that_cannot_be_read(tmp_path, config, said):
    assert said in refusal(tmp_path, TinyMla(), config=config)[1]


def test_quantised_weights_stay_refused(tmp_path):
    weight = TinyMla().tensors()[ATTENTION + "kv_b_proj.weight"]
    place, line = refusal(
        tmp_path,
        TinyMla(),
        change={"kv_b_proj.weight": weight.to(torch.float8_e4m3fn), "kv_b_proj.weight_scale_inv": torch.ones(1, 1)},
    )
    assert place.endswith("kv_b_proj.weight")
    assert "F8_E4M3" in line


def test_an_mla_architecture_with_plain_attention_is_refused(tmp_path):
    from tiny_drafters import Tiny

    place, line = refusal(tmp_path, Tiny(config={"architectures": ["Eagle3DeepseekV3ForCausalLM"]}))
    assert place == "architectures"
    assert "plain q_proj and k_proj" in line


def test_an_eagle_1_drafter_with_latent_attention_is_refused(tmp_path):
    tiny = TinyMla(eagle1=True, prefix="layers.0", config={"architectures": ["LlamaForCausalLM"]})
    tiny.write(tmp_path)
    matrix = torch.zeros(64, 32)
    with pytest.raises(InputError, match="EAGLE-1 or 2 drafter with latent attention"):
        read_drafter(open_checkpoint(tmp_path), target_hidden_size=32, embedding=matrix, head=matrix)
