"""What a real vLLM drafts is what the drafter's weights draft on the captured rows; an injected fault is localised.

The drafters are random and lively: their tokens vary, and depend on the attention. Faults are served copies of the
drafter that differ in one part, or changes of the running engine; what is verified against is the good drafter.
"""

from __future__ import annotations

import json
import shutil
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_models import DRAFT_VOCAB, TOKENS, VOCAB, make_drafter

import featurecontract
from featurecontract.capture import load, merge
from featurecontract.gate._drafts import Drafting
from featurecontract.live import live_report, phases, run_live
from featurecontract.live._job import prefix_lengths
from featurecontract.probe import read_probe

FIRST = "output head, vocabulary map, embedding or rope"
LATER = "recurrent state or position"


@pytest.fixture(scope="module")
def good(targets, tmp_path_factory):
    folder = tmp_path_factory.mktemp("good") / "d"
    place = make_drafter(folder, [1, 3, 5], lively=True, own_embedding=True, embed_requires_grad=True)
    target = targets("llama")
    contract = featurecontract.record(str(target), out=place, wiring="1,3,5", token_ids=TOKENS, dtype="float32")
    assert contract.drafter.embedding == "own"
    return SimpleNamespace(place=place, target=target, contract=contract, probe=read_probe(contract, place))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_phase_drafts_what_the_weights_draft(good, tmp_path, dtype):
    results = run_live(
        "vllm", good.place, good.target, good.contract, probe=good.probe, out=tmp_path, options={"dtype": dtype}
    )
    drafting = Drafting(good.place, good.contract, target=good.target)
    found = {}
    for item in results:
        report = live_report(item, good.contract, good.probe, runtime="vllm", path=str(good.place), drafting=drafting)
        faults = [found.message for found in report.findings if found.severity != "note"]
        assert (item.phase, item.problem, report.verdict, faults) == (item.phase, "", "pass", [])
        (found[item.phase],) = report.drafted
    assert tuple(found) == phases("vllm")
    print(dtype, {name: (item.equal, item.near_ties, item.compared, item.rounds) for name, item in found.items()})
    # Two prompts each, four in a batch, two chunks of each, nine rounds of each that is decoded, twelve prefixes.
    rounds = {"prefill": 2, "chunked": 4, "batch": 4, "prefix-hit": 2, "decode": 18, "drafts": 13}
    assert {name: item.rounds for name, item in found.items()} == rounds
    for item in found.values():
        assert (item.dtype, item.point, item.reason) == (dtype, "features", "")
        assert item.compared == 3 * item.rounds
        assert item.differing == 0
        if dtype == "float32":
            assert item.equal == item.compared
    # Of 129 tokens; at a near tie bfloat16 may fall on either side.
    assert sum(item.near_ties for item in found.values()) <= 6
    assert list(found["prefix-hit"].skipped.values()) == [1]
    drafted = {
        token for item in results for call in merge(load(list(item.captures))).calls for token in call.draft_tokens
    }
    assert len(drafted) > 25
    # What forcing makes the engine verify is not what the drafter drafted.
    forced = merge(load(list(results[phases("vllm").index("decode")].captures))).calls
    assert any(set(call.draft_tokens) - set(TOKENS) for call in forced)


def copied(good, folder, change=lambda tensors: tensors, **config):
    """Return a copy of the good drafter's files in which one thing is other."""
    place = folder / "served"
    place.mkdir()
    save_file(change(load_file(good.place / "model.safetensors")), place / "model.safetensors")
    said = json.loads((good.place / "config.json").read_text()) | config
    (place / "config.json").write_text(json.dumps(said))
    for name in ("feature_contract.json", "feature_contract.probe"):
        shutil.copy(good.place / name, place / name)
    return SimpleNamespace(place=place, target=good.target, contract=good.contract, probe=good.probe)


def drafts(running, good, out):
    """Send prefixes of the probe and return what came of their draft tokens, held against the good drafter."""
    running.call("reset", "drafts")
    running.run([running.job.others[0]])
    for length in prefix_lengths(len(TOKENS)):
        running.run([TOKENS[:length]])
    running.call("save", str(out))
    drafted, findings = Drafting(good.place, good.contract, target=good.target)(merge(load(out)))
    print(drafted)
    return drafted, findings


def permuted(name):
    def change(tensors):
        order = torch.randperm(len(tensors[name]), generator=torch.Generator().manual_seed(5))
        return tensors | {name: tensors[name][order].contiguous()}

    return change


def spread_map(tensors):
    """Map each draft id to the neighbour of its token, which nobody else stands for."""
    return tensors | {"d2t": tensors["d2t"] + 1}


# What is other in the served copy -> the class, and what explains it.
COPIES = {
    "head": ({"change": permuted("lm_head.weight")}, FIRST, ""),
    "map": ({"change": permuted("d2t")}, FIRST, ""),
    "map-neighbours": ({"change": spread_map}, FIRST, ""),
    "map-zeros": ({"change": lambda t: t | {"d2t": torch.zeros_like(t["d2t"])}}, FIRST, "d2t left out"),
    "embedding": ({"change": permuted("embed_tokens.weight")}, FIRST, ""),
    "no-embedding": (
        {"change": lambda t: {name: value for name, value in t.items() if name != "embed_tokens.weight"}},
        FIRST,
        "the target's embedding",
    ),
    "theta": ({"rope_theta": 500000.0}, "rope", "rope theta 500000"),
    "norm-output": ({"norm_output": True}, LATER, "the recurrent state post_norm"),
}


@pytest.mark.parametrize("fault", COPIES)
def test_a_served_copy_that_differs_is_localised(good, engine, tmp_path, fault):
    how, step_class, explained_by = COPIES[fault]
    drafted, (item,) = drafts(engine(copied(good, tmp_path, **how)), good, tmp_path / "out")
    expect(drafted, item, step_class, explained_by)
    if fault == "map-neighbours":
        assert item.details["impossible"] == item.details["differing"] == item.details["compared"]


def expect(drafted, item, step_class, explained_by):
    assert (item.slug, item.severity) == ("draft-tokens-differ", "error")
    # Rope that differs at the second row already cannot be told by its rise.
    assert item.details["class"] in ((FIRST, "rope") if step_class == "rope" else (step_class,))
    assert item.details["step"] == (2 if step_class == LATER else 1)
    assert (item.details["explained_by"] or "") == explained_by
    assert drafted.rounds == 13
    if explained_by:
        assert item.cause == f"the runtime drafts 39 of 39 tokens with {explained_by}"


def model(worker):
    return worker.model_runner.drafter.model


def interleaved(worker):
    """Turn the drafter's heads in the other style; vLLM shares one module between equal ropes, so a copy is made."""
    from vllm.config import set_current_vllm_config

    attention = model(worker).model.layers[0].self_attn
    rope = attention.rotary_emb
    with set_current_vllm_config(worker.vllm_config):
        attention.rotary_emb = type(rope)(
            rope.head_size,
            rope.rotary_dim,
            rope.max_position_embeddings,
            rope.base,
            is_neox_style=False,
            dtype=rope.cos_sin_cache.dtype,
        )
    return lambda: setattr(attention, "rotary_emb", rope)


def normed_state(worker):
    """Send the normed state back, as if norm_output were set."""
    body = model(worker).model
    original = body.forward

    def forward(*args, **kwargs):
        normed, _ = original(*args, **kwargs)
        return normed, normed

    body.forward = forward
    return lambda: delattr(body, "forward")


def normed_residual(worker):
    layer = model(worker).model.layers[0]
    original = layer._residual_norm
    layer._residual_norm = layer._norm_before_residual
    return lambda: setattr(layer, "_residual_norm", original)


def without_map(worker):
    found = model(worker)
    original = found.draft_id_to_target_id.data.clone()
    found.draft_id_to_target_id.data.zero_()
    return lambda: found.draft_id_to_target_id.data.copy_(original)


CHANGES = {
    "style": (interleaved, "rope", "interleaved rope"),
    "recurrent": (normed_state, LATER, "the recurrent state post_norm"),
    "residual": (normed_residual, FIRST, "norm_before_residual true"),
    "map": (without_map, FIRST, "d2t left out"),
}


def test_changes_of_the_running_engine_are_localised(good, engine, tmp_path):
    running = engine(good)
    for fault, (change, step_class, explained_by) in CHANGES.items():
        drafted, findings = drafts(running, good, tmp_path / f"before-{fault}")
        assert (findings, drafted.equal) == ((), 39)
        back = []
        running.llm.collective_rpc(lambda worker, change=change, back=back: back.append(change(worker)))
        drafted, (item,) = drafts(running, good, tmp_path / fault)
        expect(drafted, item, step_class, explained_by)
        back[0]()


def test_the_drafters_vocabulary_is_as_these_tests_take_it(good):
    ids = load_file(good.place / "model.safetensors")["d2t"] + torch.arange(DRAFT_VOCAB)
    assert set((ids + 1).tolist()).isdisjoint(ids.tolist())
    assert int((ids + 1).max()) < VOCAB
