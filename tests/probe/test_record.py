"""Recording a target that no finder knows: planes, golden rows, contract; and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_target import HIDDEN, IDS, LAYERS, PATHS, VOCAB, target

import featurecontract
from featurecontract import Feature, record
from featurecontract.contract import PROBE_FILE, Wiring, load
from featurecontract.errors import InputError, UsageError
from featurecontract.probe import (
    Plane,
    all_planes,
    check_tokens,
    choose_tokens,
    find_layout,
    read_probe,
    read_tokens,
    record_probe,
    tap,
)


def planes_of(model):
    """Return every boundary by plain arithmetic, without a hook."""
    with torch.no_grad():
        states = [model.words(torch.tensor([IDS])) * model.scale]
        for stage in model.trunk.stages:
            states.append(stage(states[-1]))
    return [state[0] for state in states]


def refused(slug, *args, **kwargs):
    with pytest.raises(InputError) as caught:
        record(*args, **kwargs)
    assert caught.value.slug == slug
    return str(caught.value)


def test_the_contract_and_its_probe(recorded):
    place, contract = recorded
    assert load(place) == contract
    assert contract.wiring.boundaries == (0, 2, 4)
    assert contract.wiring.width == 3 * HIDDEN
    assert (contract.target.num_hidden_layers, contract.target.hidden_size) == (LAYERS, HIDDEN)
    assert contract.target.vocab_size == VOCAB
    assert contract.probe.token_ids == IDS
    assert 0.99 < contract.probe.noise_floor < 1.0
    sources = {item.path: item.source for item in contract.provenance.statements}
    assert sources["features"] == sources["probe"] == "recorded"


def test_golden_rows_and_fingerprints_are_the_planes(recorded):
    place, contract = recorded
    data = read_probe(contract, place)
    truth = planes_of(target())
    for slot, boundary in enumerate((0, 2, 4)):
        golden = data.golden[:, slot * HIDDEN : (slot + 1) * HIDDEN]
        torch.testing.assert_close(golden, truth[boundary], rtol=1e-3, atol=1e-3)
        unit = torch.nn.functional.normalize(truth[boundary], dim=1)
        torch.testing.assert_close(data.gram[slot], unit @ unit.T)
    assert set(data.bank.planes) == set(all_planes(LAYERS))
    for plane, values in zip(data.bank.planes, data.bank.values, strict=True):
        if plane.kind == "boundary":
            torch.testing.assert_close(values, truth[plane.boundary][:, data.bank.channels], rtol=1e-3, atol=1e-3)
    held = dict(zip(data.bank.planes, data.bank.values, strict=True))
    for layer in range(LAYERS):
        total = held[Plane("mid_block", layer)] + held[Plane("mlp_output", layer + 1)]
        torch.testing.assert_close(total, held[Plane("boundary", layer + 1)], rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("plus_one", [False, True])
def test_the_final_norm_is_stored_as_applied(plus_one):
    model = target(plus_one=plus_one)
    data = record_probe(model, find_layout(model, **PATHS), Wiring.from_boundaries((0,)), IDS).data
    stored = model.trunk.closing.weight.detach()
    assert torch.equal(data.final_norm.weight, 1 + stored if plus_one else stored)
    assert data.final_norm.eps == pytest.approx(1e-6)


def test_the_target_is_left_as_it_was():
    model = target().train()
    model.trunk.closing.eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    record_probe(model, find_layout(model, **PATHS), Wiring.from_boundaries((0,)), IDS)
    assert model.training
    assert not model.trunk.closing.training
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_parallel_single_and_opaque_layers():
    model = target(("sequential", "parallel", "single", "opaque", "sequential"))
    recording = record_probe(model, find_layout(model, **PATHS), Wiring.from_boundaries((0,)), IDS)
    seen = tap(model, find_layout(model, **PATHS), torch.tensor([IDS]))
    assert sorted(seen.mid) == [0, 1, 4]  # a layer of one sublayer has no mid-block, an opaque one no proof
    assert sorted(seen.mlp) == [1, 2, 3, 5]
    stage, truth = model.trunk.stages[1], planes_of(model)
    with torch.no_grad():
        attention = stage.mixer(stage.one(truth[1][None]))[0]
    torch.testing.assert_close(seen.mid[1], truth[1] + attention)
    assert "mid-block planes not found by their sum, left out: 2, 3" in recording.data.notes
    assert "MLP output planes not found by their sum, left out: 4" in recording.data.notes


def test_two_experts_side_by_side_are_no_attention_and_mlp():
    model = target(("experts",) * LAYERS)
    seen = tap(model, find_layout(model, **PATHS), torch.tensor([IDS]))
    assert seen.mid == seen.mlp == {}
    assert len(seen.boundaries) == LAYERS + 1


def test_a_scaled_embedding_is_noted_and_h0_is_what_enters_layer_0():
    model = target(scale=5.0)
    data = record_probe(model, find_layout(model, **PATHS), Wiring.from_boundaries((0,)), IDS).data
    torch.testing.assert_close(data.golden, planes_of(model)[0], rtol=1e-3, atol=1e-3)
    assert "h[0] is the embedding's output times 5" in data.notes


def test_slots_of_every_kind():
    model = target()
    features = (
        Feature(slot=0, source="drafter_embedding", row_offset=1, dim=HIDDEN),
        Feature(slot=1, boundary=3, scale=0.5, dim=HIDDEN),
        Feature(slot=2, boundary=LAYERS, state="final_norm", dim=HIDDEN),
    )
    data = record_probe(model, find_layout(model, **PATHS), Wiring(features=features), IDS).data
    truth = planes_of(model)
    assert data.unrecorded == (0,)
    assert not data.golden[:, :HIDDEN].any()
    torch.testing.assert_close(data.golden[:, HIDDEN : 2 * HIDDEN], truth[3] / 2, rtol=1e-3, atol=1e-3)
    with torch.no_grad():
        normed = model.trunk.closing(truth[LAYERS])
    torch.testing.assert_close(data.golden[:, 2 * HIDDEN :], normed, rtol=1e-3, atol=1e-3)


# --- what is refused ----------------------------------------------------------------------------------------------


def test_a_layer_that_does_nothing(tmp_path):
    kinds = ("sequential", "nothing", "sequential", "sequential", "sequential")
    message = refused("probe-degenerate", target(kinds), out=tmp_path, wiring="0,2", token_ids=IDS, **PATHS)
    assert "h[2]: is bit for bit h[1]" in message
    assert list(tmp_path.iterdir()) == []


def poison(model, layer, change):
    """Change what a layer gives out."""
    model.trunk.stages[layer].register_forward_hook(lambda _m, _a, output: change(output))
    return model


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda x: x * float("nan"), "h[3]: has NaN or infinite values"),
        (lambda x: x * 0, "h[3]: is zero"),
        (lambda x: x[:, :1].expand_as(x) + 0, "h[3]: is constant: every row is the same"),
        (lambda x: x[:, :, :1].expand_as(x) + 0, "h[3]: is constant: every channel is the same"),
    ],
)
def test_planes_on_which_nothing_can_be_told_apart(tmp_path, change, said):
    model = poison(target(), 2, change)
    assert said in refused("probe-degenerate", model, out=tmp_path, wiring="0,2", token_ids=IDS, **PATHS)
    assert list(tmp_path.iterdir()) == []


def test_taps_that_do_not_lead_to_the_logits(tmp_path):
    class Shortened(type(target())):
        def forward(self, ids):  # the answer comes from a later state than the one that is tapped
            hidden = self.trunk(self.words(ids))
            return self.answer(hidden + 0.3 * torch.sin(hidden * 9))

    torch.manual_seed(3)
    message = refused("probe-degenerate", Shortened(), out=tmp_path, wiring="0,2", token_ids=IDS, **PATHS)
    assert "head(norm(h[5])) is not the target's own logits" in message
    assert "trunk.closing" in message


def test_wrong_module_paths(tmp_path):
    model = target()
    wrong = PATHS | {"norm": "trunk.stages.1.two"}
    message = refused("probe-degenerate", model, out=tmp_path, wiring="0,2", token_ids=IDS, **wrong)
    assert "--norm" in message
    with pytest.raises(UsageError, match=r"--layers: the target has no module 'model\.layers'; it has words, trunk"):
        record(model, out=tmp_path, wiring="0,2", token_ids=IDS, layers="model.layers")
    with pytest.raises(UsageError, match=r"the final norm behind trunk\.stages cannot be told"):
        record(model, out=tmp_path, wiring="0,2", token_ids=IDS, layers="trunk.stages")


@pytest.mark.parametrize(
    ("ids", "said"),
    [
        ([*range(47), *[3] * 17], "47 different tokens in 64 rows"),
        ([*range(52), *([1, 2] * 6)], ""),
        ([*range(48), *([1, 2] * 8)], "the last 16 tokens repeat every 2"),
        ([*range(63), 10**6], "token 1000000 is not in the target's vocabulary of 200"),
        ([7] * 64, "1 different tokens"),
    ],
)
def test_tokens(ids, said):
    if not said:
        check_tokens(ids, vocab_size=VOCAB)
        return
    with pytest.raises(InputError) as caught:
        check_tokens(ids, vocab_size=VOCAB)
    assert caught.value.slug == "probe-degenerate"
    assert said in str(caught.value)


def test_a_target_that_raises(tmp_path):
    model = target()
    model.answer = torch.nn.Linear(3, 3)
    message = refused("checkpoint-unreadable", model, out=tmp_path, wiring="0,2", token_ids=IDS, **PATHS)
    assert "the forward pass failed: RuntimeError" in message


# --- contracts ----------------------------------------------------------------------------------------------------


def test_a_contract_that_is_there_gets_the_probe(recorded):
    place, contract = recorded
    (place / PROBE_FILE).unlink()
    featurecontract.save(replace(contract, probe=None, name="kept"), place)
    again = record(target(), out=place, token_ids=IDS, **PATHS)
    assert again.name == "kept"
    assert again.probe == contract.probe  # byte for byte the same file


def test_other_features_than_the_contract_declares(recorded):
    place, contract = recorded
    before = {path.name: path.read_bytes() for path in place.iterdir()}
    message = refused("layer-mismatch", target(), out=place, wiring="0,2,3", token_ids=IDS, **PATHS)
    assert "the contract declares [embedding, h[2], h[4]], --wiring says [embedding, h[2], h[3]]" in message
    assert before == {path.name: path.read_bytes() for path in place.iterdir()}
    forced = record(target(), out=place, wiring="0,2,3", token_ids=IDS, force=True, **PATHS)
    assert forced.wiring.boundaries == (0, 2, 3)
    assert load(place) == forced != contract


def test_another_target_than_the_contract_means(recorded):
    place, contract = recorded
    featurecontract.save(replace(contract, target=replace(contract.target, num_hidden_layers=9)), place)
    assert "the contract says 9" in refused("target-mismatch", target(), out=place, token_ids=IDS, **PATHS)


def test_a_drafter_with_files_is_composed_as_init_does(tmp_path):
    config = {"architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "hidden_size": HIDDEN}
    (tmp_path / "config.json").write_text(json.dumps(config | {"draft_vocab_size": 32}))
    save_file({"fc.weight": torch.zeros(HIDDEN, 3 * HIDDEN)}, tmp_path / "model.safetensors")
    contract = record(target(), out=tmp_path, wiring="0,2,4", token_ids=IDS, **PATHS)
    assert contract.drafter.architecture == "LlamaForCausalLMEagle3"
    assert contract.vocab.draft_vocab_size == 32
    assert contract.projections[0].in_features == 3 * HIDDEN
    assert contract.provenance.tool == "featurecontract record"
    message = refused("width", target(), out=tmp_path, wiring="0,2", token_ids=IDS, force=True, **PATHS)
    assert "3 planes" in message


def test_usage(tmp_path):
    model = target()
    with pytest.raises(UsageError, match="record needs --wiring"):
        record(model, out=tmp_path, token_ids=IDS, **PATHS)
    with pytest.raises(UsageError, match="48 to 256 rows"):
        record(model, out=tmp_path, wiring="0,2", token_ids=IDS, rows=32, **PATHS)
    with pytest.raises(UsageError, match="second-dtype"):
        record(model, out=tmp_path, wiring="0,2", token_ids=IDS, second_dtype="int8", **PATHS)
    with pytest.raises(UsageError, match="h\\[9\\] does not exist"):
        record(model, out=tmp_path, wiring="0,9", token_ids=IDS, **PATHS)
    assert "is no directory" in refused("checkpoint-unreadable", model, out=tmp_path / "no", wiring="0", **PATHS)


# --- tokens -------------------------------------------------------------------------------------------------------


def test_tokens_without_a_tokenizer_are_spread_over_the_vocabulary(tmp_path):
    ids, origin = choose_tokens(64, vocab_size=VOCAB, seed=5)
    assert origin == "a spread over the vocabulary"
    assert len(set(ids)) == 64
    assert min(ids) < 10
    assert max(ids) > VOCAB - 10
    assert ids == choose_tokens(64, vocab_size=VOCAB, seed=5)[0] != choose_tokens(64, vocab_size=VOCAB, seed=6)[0]
    contract = record(target(), out=tmp_path, wiring="0,2", **PATHS)
    assert len(contract.probe.token_ids) == 64


def test_a_tokenizer_reads_the_packages_text():
    def pairs(text):
        return {"input_ids": [1, *(ord(a) * 1000 + ord(b) for a, b in zip(text[::2], text[1::2], strict=False))]}

    ids, origin = choose_tokens(64, tokenizer=pairs)
    assert origin == "the package's text"
    assert ids[:2] == (1, ord("T") * 1000 + ord("h"))
    constant = choose_tokens(64, tokenizer=lambda text: {"input_ids": [0] * len(text)}, vocab_size=VOCAB)
    assert constant[1] == "a spread over the vocabulary"


@pytest.mark.parametrize("text", ["[1, 2, 3]", "1 2 3", "1,2,3\n", "1\n2\n3"])
def test_a_tokens_file(tmp_path, text):
    (tmp_path / "ids").write_text(text)
    assert read_tokens(tmp_path / "ids") == (1, 2, 3)


@pytest.mark.parametrize("text", ["1 -2", "one", '{"ids": [1]}', "1.5", "99999999999", "٣"])
def test_a_file_that_holds_no_tokens(tmp_path, text):
    (tmp_path / "ids").write_text(text, "utf-8")
    with pytest.raises(InputError, match="is no token id"):
        read_tokens(tmp_path / "ids")


def test_too_few_tokens(tmp_path):
    assert "60 ids, the probe has 64 rows" in refused(
        "probe-degenerate", target(), out=tmp_path, wiring="0", token_ids=IDS[:60], **PATHS
    )


def test_nothing_needed_stands_in_metadata(recorded):
    place, contract = recorded
    file = place / PROBE_FILE
    save_file(load_file(file), file, metadata={"saved": "again"})
    import hashlib

    renewed = replace(contract, probe=replace(contract.probe, sha256=hashlib.sha256(file.read_bytes()).hexdigest()))
    again = read_probe(renewed, place)
    assert set(again.bank.planes) == set(all_planes(LAYERS))
