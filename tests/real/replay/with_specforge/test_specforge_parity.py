"""The reference drafter against SpecForge's own EAGLE-3 module, in SpecForge's own training loop, step by step."""

from __future__ import annotations

import itertools
import os
import sys
import types

import pytest
import torch
from parity import assert_steps_agree, randomise

os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")

from featurecontract.checkpoint import open_checkpoint
from featurecontract.replay import read_drafter, unroll

pytestmark = pytest.mark.filterwarnings("ignore")

VOCAB, DRAFT, HIDDEN, LENGTH, STEPS = 96, 40, 32, 24, 5


def training_loop(model):
    """SpecForge's loop; its loss is a Triton kernel behind the logits, and this machine may have no Triton."""
    if "specforge.core.loss" not in sys.modules:
        stand_in = types.ModuleType("specforge.core.loss")

        class LogSoftmaxLoss(torch.autograd.Function):
            @staticmethod
            def forward(_ctx, logits, target, mask):
                return -(target * logits.log_softmax(-1) * mask).sum() / logits[..., 0].numel()

        stand_in.LogSoftmaxLoss = LogSoftmaxLoss
        sys.modules["specforge.core.loss"] = stand_in
    from specforge.algorithms.eagle3.model import OnlineEagle3Model

    return OnlineEagle3Model(model, length=STEPS, attention_backend="sdpa")


def real_model(*, target_hidden=HIDDEN, body=None, seed=0, **flags):
    from specforge.modeling.draft.llama3_eagle import LlamaForCausalLMEagle3
    from transformers import LlamaConfig

    config = LlamaConfig(
        **{
            "architectures": ["LlamaForCausalLMEagle3"],
            "hidden_size": HIDDEN,
            "intermediate_size": 48,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 8,
            "num_hidden_layers": 1,
            "vocab_size": VOCAB,
            "rms_norm_eps": 1e-5,
            "max_position_embeddings": 128,
            "tie_word_embeddings": False,
            **(body or {}),
        }
    )
    config.draft_vocab_size, config.target_hidden_size = DRAFT, target_hidden
    config.eagle_config = {"eagle_aux_hidden_state_layer_ids": [0, 2, 4], "use_aux_hidden_state": True}
    for key, value in flags.items():
        setattr(config, key, value)
    model = LlamaForCausalLMEagle3(config, attention_backend="sdpa")
    randomise(model, seed)
    ids = torch.randperm(VOCAB, generator=torch.Generator().manual_seed(seed))[:DRAFT].sort().values
    model.d2t.copy_(ids - torch.arange(DRAFT))
    model.t2d.zero_()
    model.t2d[ids] = True
    return model.eval().float()


def compare(model, directory, *, batch=2, **overrides):
    model.save_pretrained(directory)
    width = model.config.target_hidden_size
    g = torch.Generator().manual_seed(3)
    features = torch.randn(batch, LENGTH, 3 * width, generator=g) * 3
    tokens = torch.randint(VOCAB, (batch, LENGTH), generator=g)
    # SpecForge shifts before its loop and pads with 0; the loop itself shifts by one more at each step.
    shifted = torch.cat((tokens[:, 1:], tokens.new_zeros(batch, 1)), dim=1)
    theirs = []
    handle = model.lm_head.register_forward_hook(lambda _m, _a, out: theirs.append(out.detach().flatten(0, 1)))
    with torch.no_grad():
        training_loop(model)(
            input_ids=shifted,
            attention_mask=torch.ones_like(shifted, dtype=torch.bool),
            target=torch.randn(batch, LENGTH, VOCAB, generator=g),
            loss_mask=torch.ones(batch, LENGTH, 1),
            hidden_states=features,
        )
    handle.remove()
    drafter = read_drafter(open_checkpoint(directory), target_hidden_size=width, **overrides)
    ours = [
        drafter.logits(step.output).flatten(0, 1)
        for step in unroll(drafter, drafter.project(features), tokens, steps=STEPS)
    ]
    assert_steps_agree(ours, theirs)
    return drafter


FLAGS = [
    {"fc_norm": each, "norm_output": output, "target_hidden": width}
    for each, output, width in itertools.product((False, True), (None, False, True), (HIDDEN, 48))
]


@pytest.mark.parametrize("flags", FLAGS, ids=lambda flags: "-".join(f"{k}={v}" for k, v in flags.items()))
def test_every_combination_of_flags(tmp_path, flags):
    drafter = compare(real_model(**{k: v for k, v in flags.items() if v is not None}), tmp_path)
    # Here norm_output is about the head alone: what goes back is un-normed, whatever it says.
    assert drafter.spec.recurrent == "pre_norm"
    assert drafter.spec.head_norm == (flags["norm_output"] is not False)


def rope(**parameters):
    return {"rope_parameters": {"rope_theta": 1000.0, **parameters}}


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32, "beta_fast": 32, "beta_slow": 1}
BODIES = {
    "theta": rope(rope_type="default"),
    "linear": rope(rope_type="linear", factor=4.0),
    "llama3": rope(
        rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=16
    ),
    "yarn": rope(**YARN, mscale=1.0, mscale_all_dim=0.0),
    "yarn-mscale": rope(**YARN, mscale=0.7, mscale_all_dim=0.4),
    "yarn-one-mscale": rope(**YARN, mscale=0.7, mscale_all_dim=0.0),
    "no-groups": {"num_key_value_heads": 4},
    "one-key-head": {"num_key_value_heads": 1},
    "wide-heads": {"head_dim": 16},
    "gelu": {"hidden_act": "gelu"},
}


@pytest.mark.parametrize("name", BODIES)
def test_every_kind_of_body(tmp_path, name):
    drafter = compare(real_model(body=BODIES[name]), tmp_path)
    assert drafter.spec.position_offset == 0


def test_the_comparison_sees_a_wrong_norm(tmp_path):
    with pytest.raises(AssertionError, match="step 1"):
        compare(real_model(fc_norm=True), tmp_path, pre_norm="none")
