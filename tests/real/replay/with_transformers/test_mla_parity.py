"""Latent attention of the reference drafter against transformers' own DeepSeek-V3 modules, with the same weights.

The drafter around them is put together here: its first layer reads cat(norm(embedding), norm(state)), its second one is
transformers' whole decoder layer. Each step is run on all rows of all steps so far, under a mask that is laid out.
"""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from parity import assert_steps_agree, randomise
from safetensors.torch import save_file

from featurecontract.checkpoint import open_checkpoint
from featurecontract.replay import read_drafter, unroll

pytestmark = pytest.mark.filterwarnings("ignore")

VOCAB, HIDDEN, HEADS, LENGTH, STEPS = 96, 32, 4, 24, 4
WIDTHS = {"kv_lora_rank": 20, "qk_nope_head_dim": 10, "qk_rope_head_dim": 8, "v_head_dim": 14}


def settings(**other):
    return {
        "intermediate_size": 48,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "num_hidden_layers": 2,
        "first_k_dense_replace": 2,
        "vocab_size": VOCAB,
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 128,
        "q_lora_rank": 16,
        **WIDTHS,
        **other,
    }


class Drafter(torch.nn.Module):
    """An EAGLE-3 drafter of transformers' parts, in the names of the published checkpoints."""

    def __init__(self, body):
        from transformers import DeepseekV3Config
        from transformers.models.deepseek_v3 import modeling_deepseek_v3 as hf

        super().__init__()
        narrow = DeepseekV3Config(hidden_size=HIDDEN, attn_implementation="eager", **body)
        wide = DeepseekV3Config(hidden_size=2 * HIDDEN, attn_implementation="eager", **body)
        self.embed_tokens = torch.nn.Embedding(VOCAB, HIDDEN)
        self.fc = torch.nn.Linear(3 * HIDDEN, HIDDEN, bias=False)
        self.rotary = hf.DeepseekV3RotaryEmbedding(narrow)
        first = torch.nn.Module()
        first.self_attn = hf.DeepseekV3Attention(wide, 0)
        first.self_attn.o_proj = torch.nn.Linear(HEADS * WIDTHS["v_head_dim"], HIDDEN, bias=wide.attention_bias)
        first.mlp = hf.DeepseekV3MLP(narrow)
        for name in ("input_layernorm", "hidden_norm", "post_attention_layernorm"):
            setattr(first, name, hf.DeepseekV3RMSNorm(HIDDEN, eps=narrow.rms_norm_eps))
        self.layers = torch.nn.ModuleList([first, hf.DeepseekV3DecoderLayer(narrow, 1)])
        self.norm = hf.DeepseekV3RMSNorm(HIDDEN, eps=narrow.rms_norm_eps)
        self.lm_head = torch.nn.Linear(HIDDEN, VOCAB, bias=False)

    def forward(self, states, tokens, positions, mask):
        first, second = self.layers
        embedded = first.input_layernorm(self.embed_tokens(tokens))
        both = torch.cat((embedded, first.hidden_norm(states)), dim=-1)
        turned = self.rotary(both, positions)
        rows = states + first.self_attn(both, turned, mask)[0]
        rows = rows + first.mlp(first.post_attention_layernorm(rows))
        out = second(rows, attention_mask=mask, position_embeddings=turned)
        return out[0] if isinstance(out, tuple) else out

    def drafts(self, features, tokens):
        batch, rows = tokens.shape
        padded = torch.cat((tokens, tokens.new_zeros(batch, STEPS + 1)), dim=1)
        at = torch.arange(rows)
        states, ids, positions, out = [self.fc(features)], [padded[:, 1 : 1 + rows]], [at], []
        for step in range(STEPS):
            # Row t of a step sees step 1 up to its own row, and of later steps its own row.
            before, same = at[:, None] >= at[None], at[:, None] == at[None]
            none = torch.zeros_like(same)
            seen = torch.cat([torch.cat([before] + [same] * k + [none] * (step - k), dim=1) for k in range(step + 1)])
            mask = torch.zeros(1, 1, *seen.shape).masked_fill(~seen, torch.finfo(torch.float32).min)
            found = self(
                torch.cat(states, dim=1), torch.cat(ids, dim=1), torch.cat(positions)[None].expand(batch, -1), mask
            )[:, -rows:]
            out.append(self.lm_head(self.norm(found)).flatten(0, 1))
            states.append(found)
            ids.append(padded[:, step + 2 : step + 2 + rows])
            positions.append(at + step + 1)
        return out


def compare(directory, *, batch=2, change=None, **other):
    body = settings(**other)
    model = Drafter(body).eval()
    randomise(model, 0)
    directory.mkdir(exist_ok=True)
    config = body | {
        "architectures": ["Eagle3DeepseekV2ForCausalLM"],
        "model_type": "kimi_k2",
        "hidden_size": HIDDEN,
        "hidden_act": body.get("hidden_act", "silu"),
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 3, 5], "use_aux_hidden_state": True},
    }
    (directory / "config.json").write_text(json.dumps(config))
    save_file({k: v.detach().contiguous() for k, v in model.state_dict().items()}, directory / "model.safetensors")
    g = torch.Generator().manual_seed(3)
    features = torch.randn(batch, LENGTH, 3 * HIDDEN, generator=g) * 3
    tokens = torch.randint(VOCAB, (batch, LENGTH), generator=g)
    with torch.no_grad():
        theirs = model.drafts(features, tokens)
    overrides = change(read_drafter(open_checkpoint(directory)).spec) if change else {}
    drafter = read_drafter(open_checkpoint(directory), **overrides)
    ours = [
        drafter.logits(step.output).flatten(0, 1)
        for step in unroll(drafter, drafter.project(features), tokens, steps=STEPS)
    ]
    assert_steps_agree(ours, theirs)


def rope(**parameters):
    return {"rope_parameters": {"rope_theta": 1000.0, **parameters}}


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32, "beta_fast": 4.0, "beta_slow": 1.0}
BODIES = {
    "plain": {},
    "no-query-latent": {"q_lora_rank": None},
    "theta": rope(rope_type="default"),
    "halves": {"rope_interleave": False},
    "halves-no-query-latent": {"rope_interleave": False, "q_lora_rank": None},
    "bias": {"attention_bias": True},
    "yarn": rope(**YARN),
    "yarn-mscale": rope(**YARN, mscale=1.0, mscale_all_dim=1.0),
    "yarn-two-mscales": {"q_lora_rank": None, **rope(**YARN, mscale=0.7, mscale_all_dim=0.4)},
    "yarn-halves": {"rope_interleave": False, **rope(**YARN, mscale=1.0, mscale_all_dim=1.0)},
    "yarn-kimi": rope(**(YARN | {"factor": 64.0, "beta_fast": 1.0}), mscale=1.0, mscale_all_dim=1.0),
    "gelu": {"hidden_act": "gelu"},
}


@pytest.mark.parametrize("name", BODIES)
def test_every_kind_of_body(tmp_path, name):
    body = dict(BODIES[name])
    compare(tmp_path, **body)


def test_another_eps_reaches_the_norms_that_transformers_gives_it_to(tmp_path):
    # transformers leaves the norms of both latents at 1e-6.
    compare(tmp_path, rms_norm_eps=1e-2, change=lambda spec: {"mla": replace(spec.mla, eps=1e-6)})
    with pytest.raises(AssertionError, match="step 1"):
        compare(tmp_path, rms_norm_eps=1e-2)


@pytest.mark.parametrize(
    "change",
    [
        lambda spec: {"rope": replace(spec.rope, interleaved=False)},
        lambda spec: {"rope": replace(spec.rope, attention_factor=1.1)},
        lambda spec: {"rope": replace(spec.rope, theta=500.0)},
        lambda spec: {"mla": replace(spec.mla, scale=spec.head_dim**-0.5)},
    ],
    ids=["style", "mscale", "theta", "scale"],
)
def test_the_comparison_sees_what_is_wrong(tmp_path, change):
    with pytest.raises(AssertionError, match="step 1"):
        compare(tmp_path, change=change, **BODIES["yarn-mscale"])
