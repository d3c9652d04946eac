"""Drafters that are no Llama-style EAGLE-3, in a real engine: what vLLM drafts is what the reference drafter drafts.

The reference drafter reads what vLLM fed, every accepted row so far, and feeds itself its own tokens, as serving does.
Tokens must be the same, and logits to 1e-4 of the largest.
"""

from __future__ import annotations

import gc
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from other_drafters import TOKENS, YARN, make_eagle1_drafter, make_mla_drafter, make_mla_target
from safetensors import safe_open

from featurecontract.capture._method import named, replace_method
from featurecontract.checkpoint import open_checkpoint
from featurecontract.replay import read_drafter, unroll

DRAFTS, GENERATED = 3, 12
BOUND = 1e-4


class Rounds:
    """What one worker's drafter was given and what it made of it, one record for each call of ``propose``."""

    def __init__(self, worker):
        self.runner = worker.model_runner
        self.drafter = self.runner.drafter
        self.records, self.logits = [], None
        self.names = named(self.drafter.propose)
        # Last in, so around the drafter itself: what the capture and the forcing of tokens do lies outside or inside of
        # it and changes nothing of what is seen here.
        replace_method(self.drafter, "propose", self.propose)
        replace_method(self.drafter.model, "compute_logits", self.compute_logits)

    def propose(self, call, args, kwargs):
        given = self.names(args, kwargs)
        rejected = given.get("num_rejected_tokens_gpu")
        rows = given["target_token_ids"].shape[0]
        self.logits = []
        drafted = call()
        self.records.append(
            SimpleNamespace(
                features=given["target_hidden_states"].clone(),
                positions=given["target_positions"].tolist(),
                token_ids=given["target_token_ids"].tolist(),
                next_token=int(given["next_token_ids"][0]),
                kept=rows - (int(rejected[0]) if rejected is not None else 0),
                drafted=drafted[0].tolist(),
                logits=[row[0].clone() for row in self.logits],
            )
        )
        self.logits = None
        return drafted

    def compute_logits(self, call, _args, _kwargs):
        found = call()
        if self.logits is not None:
            self.logits.append(found)
        return found


def tensor(folder, name):
    with safe_open(folder / "model.safetensors", framework="pt") as file:
        return file.get_tensor(name).float()


def reference(place, target, **overrides):
    return read_drafter(
        open_checkpoint(place),
        target_hidden_size=64,
        embedding=tensor(target, "model.embed_tokens.weight"),
        head=tensor(target, "lm_head.weight"),
        **overrides,
    )


def replayed(drafter, rounds):
    """Yield what the reference drafter makes of each round: its tokens and its logits, step by step."""
    states, tokens = {}, {}
    for number, item in enumerate(rounds):
        kept = range(item.kept)
        states |= {item.positions[row]: item.features[row] for row in kept}
        tokens |= {item.positions[row]: item.token_ids[row] for row in kept}
        last = item.positions[item.kept - 1]
        assert number == 0 or item.positions[0] <= last <= len(states) - 1
        features = torch.stack([states[at] for at in range(last + 1)])[None]
        ids = torch.tensor([[*(tokens[at] for at in range(last + 1)), item.next_token]])
        passes = unroll(drafter, drafter.project(features), ids, steps=DRAFTS, own_tokens=True)
        logits = [drafter.logits(step.output)[0, -1] for step in passes]
        yield [int(drafter.tokens(row)) for row in logits], logits


def differences(drafter, rounds):
    """Return, step by step, how many tokens differ and how far logits are apart at most, of the largest one."""
    wrong, off = [0] * DRAFTS, [0.0] * DRAFTS
    for item, (drafted, logits) in zip(rounds, replayed(drafter, rounds), strict=True):
        assert len(item.logits) == DRAFTS
        for step, (ours, spread) in enumerate(zip(logits, item.logits, strict=True)):
            # vLLM spreads the drafter's vocabulary over the target's.
            theirs = spread[drafter.target_ids(torch.arange(len(ours)))]
            off[step] = max(off[step], float((ours - theirs).abs().max() / theirs.abs().max()))
            wrong[step] += drafted[step] != int(spread.argmax())
    return wrong, off


def assert_drafts_agree(drafter, rounds):
    wrong, off = differences(drafter, rounds)
    assert wrong == [0] * DRAFTS
    assert max(off) <= BOUND, off
    # Rounds that draft the same whatever they read would prove nothing.
    assert len({int(row.argmax()) for item in rounds for row in item.logits}) > len(rounds)


# --- latent attention --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def mla_target(tmp_path_factory):
    return make_mla_target(tmp_path_factory.mktemp("mla") / "target")


# Every q_lora_rank is a number: vLLM 0.32.0 stacks kv_a_proj_with_mqa into a part that it has only then, and dies.
MLA_DRAFTERS = {
    "kimi-2.5": {
        "rope_theta": 500.0,
        "rope_scaling": YARN | {"type": "yarn", "mscale": 1.0, "mscale_all_dim": 1.0},
    },
    "kimi-2.6-two-layers": {
        "layers": 2,
        "fc_norm": True,
        "norm_output": True,
        "norm_before_residual": True,
        "rope_scaling": YARN | {"type": "yarn", "mscale": 0.7},
    },
}


@pytest.mark.parametrize("name", MLA_DRAFTERS)
def test_latent_attention_drafts_what_vllm_drafts(mla_target, tmp_path, engine, name):
    import featurecontract
    from featurecontract.capture import load
    from featurecontract.gate import verify_captures
    from featurecontract.probe import read_probe

    place = make_mla_drafter(tmp_path / "drafter", **MLA_DRAFTERS[name])
    contract = featurecontract.record(str(mla_target), out=place, wiring="1,3,5", token_ids=TOKENS, dtype="float32")
    case = SimpleNamespace(place=place, target=mla_target, contract=contract, probe=read_probe(contract, place))
    running = engine(case, block_size=16, max_model_len=160)
    assert running.facts["drafter"] == "Eagle3DeepseekV2ForCausalLM"
    rounds = running.llm.collective_rpc(Rounds)[0]
    running.run([running.job.token_ids], tokens=GENERATED)
    running.call("save", str(tmp_path / "natural"))
    running.call("reset", "decode")
    # Some drafts of random weights are accepted only when the sampler is told to.
    accepted = (3, 0, 2, 1)
    start = len(TOKENS) - 1 - len(accepted) - sum(accepted)
    running.call("force", TOKENS, start, list(accepted))
    running.run([TOKENS[:start]], tokens=len(TOKENS) - start)
    running.call("force", [], 0, [])
    running.call("save", str(tmp_path / "forced"))
    drafter = reference(place, mla_target)
    assert drafter.spec.mla is not None
    starts = [number for number, item in enumerate(rounds.records) if item.positions[0] == 0]
    natural, forced = rounds.records[: starts[1]], rounds.records[starts[1] :]
    assert len(natural) >= GENERATED // (DRAFTS + 1)
    assert sorted({item.kept for item in forced[1:]}) == [1, 2, 3, 4]
    assert_drafts_agree(drafter, natural)
    assert_drafts_agree(drafter, forced)
    # With MLA on, a DeepSeek-type target feeds what transformers' own makes, in every row of the probe.
    report = verify_captures(contract, case.probe, load(tmp_path / "forced"), path=str(place))
    assert report.verdict == "pass", [str(item.message) for item in report.findings]
    # The capture says the same of the rounds as what was seen beside it.
    calls = [call for call in load(tmp_path / "natural")[0].calls if call.point == "features"]
    assert [list(call.draft_tokens) for call in calls] == [item.drafted for item in natural]
    assert [sum(call.accepted) for call in calls] == [item.kept for item in natural]
    assert all(torch.equal(call.values.float(), item.features) for call, item in zip(calls, natural, strict=True))
    faults(drafter, natural, name)


def faults(drafter, rounds, name):
    """The comparison sees a wrong part, at the first step or at the second, where it is what goes back."""
    spec = drafter.spec
    wrong = {
        "style": ({"rope": replace(spec.rope, interleaved=False)}, 0),
        "eps": ({"mla": replace(spec.mla, eps=0.1)}, 0),
        "recurrent": ({"recurrent": "pre_norm" if spec.recurrent == "post_norm" else "post_norm"}, 1),
    }
    if name == "kimi-2.5":
        wrong["scale"] = ({"mla": replace(spec.mla, scale=spec.head_dim**-0.5)}, 0)
    for fields, first in wrong.values():
        other = type(drafter)(replace(spec, **fields), drafter.weights, drafter.to_target)
        _, off = differences(other, rounds)
        assert [value > BOUND for value in off] == [step >= first for step in range(DRAFTS)], (fields, off)


# --- EAGLE-1 and 2 -----------------------------------------------------------------------------------------------


def test_eagle_1_drafts_what_vllm_drafts(targets, tmp_path):
    from vllm import LLM, SamplingParams
    from vllm.distributed.parallel_state import cleanup_dist_env_and_memory

    place = make_eagle1_drafter(tmp_path / "drafter")
    llm = LLM(
        model=str(targets("llama")),
        speculative_config={"method": "eagle", "model": str(place), "num_speculative_tokens": DRAFTS},
        seed=0,
        dtype="float32",
        block_size=32,
        max_model_len=160,
        max_num_seqs=4,
        enforce_eager=True,
        enable_prefix_caching=False,
    )
    try:
        rounds = llm.collective_rpc(Rounds)[0]
        assert type(rounds.drafter.model).__name__ == "EagleLlamaForCausalLM"
        sampling = SamplingParams(temperature=0.0, max_tokens=GENERATED, ignore_eos=True, detokenize=False)
        llm.generate([{"prompt_token_ids": TOKENS}], sampling, use_tqdm=False)
    finally:
        llm.llm_engine.engine_core.shutdown()
        del llm
        gc.collect()
        cleanup_dist_env_and_memory()
    drafter = reference(place, targets("llama"))
    assert drafter.spec.kind == "eagle"
    assert_drafts_agree(drafter, rounds.records)
    for rope in (replace(drafter.spec.rope, theta=500.0), replace(drafter.spec.rope, interleaved=True)):
        other = type(drafter)(replace(drafter.spec, rope=rope), drafter.weights, drafter.to_target)
        assert min(differences(other, rounds.records)[1]) > BOUND
