"""The reference drafter against speculators' own EAGLE-3 module: same weights, same inputs, step by step."""

from __future__ import annotations

import itertools

import pytest
import torch
from parity import assert_steps_agree, randomise

from featurecontract.checkpoint import open_checkpoint
from featurecontract.replay import read_drafter, unroll

pytestmark = pytest.mark.filterwarnings("ignore")

VOCAB, DRAFT, HIDDEN, LENGTH, STEPS = 96, 40, 32, 24, 4


def real_model(*, model_type="llama", layers=1, body=None, reduced=True, seed=0, **flags):
    from speculators import SpeculatorsConfig, VerifierConfig
    from speculators.models.eagle3 import Eagle3DraftModel, Eagle3SpeculatorConfig
    from speculators.proposals.greedy import GreedyTokenProposalConfig
    from transformers import LlamaConfig, Qwen3Config

    settings = {
        "hidden_size": HIDDEN,
        "intermediate_size": 48,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "num_hidden_layers": layers,
        "vocab_size": VOCAB,
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 128,
        **(body or {}),
    }
    kind = LlamaConfig if model_type == "llama" else Qwen3Config
    config = Eagle3SpeculatorConfig(
        transformer_layer_config=kind(**settings),
        draft_vocab_size=DRAFT if reduced else VOCAB,
        eagle_aux_hidden_state_layer_ids=[0, 2, 4],
        speculators_config=SpeculatorsConfig(
            algorithm="eagle3",
            proposal_methods=[GreedyTokenProposalConfig(speculative_tokens=STEPS)],
            default_proposal_method="greedy",
            verifier=VerifierConfig(name_or_path=None, architectures=["LlamaForCausalLM"]),
        ),
        **flags,
    )
    config.transformer_layer_config._attn_implementation = "eager"
    model = Eagle3DraftModel(config)
    randomise(model, seed, gain=2.0 if layers == 1 else 1.4)
    if reduced:
        ids = torch.randperm(VOCAB, generator=torch.Generator().manual_seed(seed))[:DRAFT].sort().values
        t2d = torch.zeros(VOCAB, dtype=torch.bool)
        t2d[ids] = True
        model.load_vocab_mappings(t2d, ids - torch.arange(DRAFT))
    return model.eval().float()


def compare(model, directory, **overrides):
    model.save_pretrained(directory)
    g = torch.Generator().manual_seed(3)
    features = torch.randn(LENGTH, 3 * HIDDEN, generator=g) * 3
    tokens = torch.randint(VOCAB, (LENGTH,), generator=g)
    theirs = []
    handle = model.lm_head.register_forward_hook(lambda _m, _a, out: theirs.append(out[0].detach()))
    with torch.no_grad():
        model(
            hidden_states=features[None, :-1],
            input_ids=tokens[None, 1:],
            document_ids=torch.zeros(1, LENGTH - 1, dtype=torch.long),
            ttt_steps=STEPS,
        )
    handle.remove()
    drafter = read_drafter(open_checkpoint(directory), target_hidden_size=HIDDEN, **overrides)
    ours = [
        drafter.logits(step.output)[0]
        for step in unroll(drafter, drafter.project(features[None, :-1]), tokens[None], steps=STEPS)
    ]
    assert_steps_agree(ours, theirs)
    return drafter


FLAGS = [
    {"model_type": kind, "norm_before_residual": residual, "norm_output": output, **pre}
    for kind, residual, output, pre in itertools.product(
        ("llama", "qwen3"), (False, True), (False, True), ({}, {"norm_before_fc": True}, {"fc_norm": True})
    )
]


@pytest.mark.parametrize("flags", FLAGS, ids=lambda flags: "-".join(f"{k}={v}" for k, v in flags.items()))
def test_every_combination_of_flags(tmp_path, flags):
    compare(real_model(**flags), tmp_path)


def rope(**parameters):
    return {"rope_parameters": {"rope_theta": 1000.0, **parameters}}


LLAMA3 = rope(
    rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=16
)
BODIES = {
    "theta": rope(rope_type="default"),
    "linear": rope(rope_type="linear", factor=4.0),
    "llama3": LLAMA3,
    "yarn": rope(rope_type="yarn", factor=4.0, original_max_position_embeddings=32),
    "yarn-mscale": rope(
        rope_type="yarn", factor=4.0, original_max_position_embeddings=32, mscale=0.7, mscale_all_dim=0.4, beta_fast=16
    ),
    "yarn-factor": rope(rope_type="yarn", factor=4.0, original_max_position_embeddings=32, attention_factor=1.3),
    "yarn-untruncated": rope(rope_type="yarn", factor=4.0, original_max_position_embeddings=32, truncate=False),
    "attention-bias": {"attention_bias": True},
    "no-groups": {"num_key_value_heads": 4},
    "one-key-head": {"num_key_value_heads": 1},
    "wide-heads": {"head_dim": 16},
    "mlp-bias": {"mlp_bias": True},
    "gelu": {"hidden_act": "gelu"},
}


@pytest.mark.parametrize("name", BODIES)
def test_every_kind_of_body(tmp_path, name):
    drafter = compare(real_model(body=BODIES[name], norm_before_fc=True), tmp_path)
    assert drafter.spec.position_offset == 1
    assert drafter.spec.pre_norm == "joint"


@pytest.mark.parametrize("layers", [2, 3])
@pytest.mark.parametrize("reduced", [False, True])
def test_more_layers_and_the_full_vocabulary(tmp_path, layers, reduced):
    drafter = compare(real_model(layers=layers, reduced=reduced, norm_output=True), tmp_path)
    assert drafter.spec.num_layers == layers
    assert (drafter.to_target is None) == (not reduced)


def test_sliding_window(tmp_path):
    body = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 5, "use_sliding_window": True}
    drafter = compare(real_model(model_type="qwen3", layers=2, body=body), tmp_path)
    assert drafter.spec.windows == (5, None)


@pytest.mark.parametrize("wrong", [{"norm_before_residual": False}, {"recurrent": "pre_norm"}, {"pre_norm": "none"}])
def test_the_comparison_sees_a_wrong_flag(tmp_path, wrong):
    with pytest.raises(AssertionError, match="step 2" if "recurrent" in wrong else "step 1"):
        compare(real_model(norm_before_residual=True, norm_output=True, norm_before_fc=True), tmp_path, **wrong)
