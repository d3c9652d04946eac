"""Every layout of transformers: the taps against `output_hidden_states`, and the sums inside of a layer."""

from __future__ import annotations

import pytest
import torch
from transformers_layouts import LAYERS, NAMES, VOCAB, build

from featurecontract import record
from featurecontract.contract import Wiring
from featurecontract.probe import all_planes, find_layout, read_probe, record_probe, tap

transformers = pytest.importorskip("transformers", reason="the layouts of transformers are not checked without it")
pytestmark = pytest.mark.filterwarnings("ignore")  # other people's deprecations

PARALLEL = ("phi", "cohere", "gpt-neox")
IDS = torch.randperm(VOCAB - 4, generator=torch.Generator().manual_seed(1))[:64] + 4


@pytest.fixture(scope="module", params=NAMES)
def target(request):
    return request.param, build(transformers, request.param)


def test_boundaries_are_what_transformers_reports(target):
    _, model = target
    seen = tap(model, find_layout(model), IDS[None])
    with torch.no_grad():
        model.eval()
        states = model(input_ids=IDS[None], output_hidden_states=True, use_cache=False).hidden_states
    assert len(seen.boundaries) == LAYERS + 1 == len(states)
    for boundary, state in zip(seen.boundaries[:-1], states[:-1], strict=True):
        torch.testing.assert_close(boundary, state[0], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(seen.normed, states[-1][0], rtol=1e-5, atol=1e-5)
    assert seen.between == []


def test_mid_block_and_mlp_output_add_up_to_the_next_boundary(target):
    _, model = target
    seen = tap(model, find_layout(model), IDS[None])
    assert sorted(seen.mid) == list(range(LAYERS))
    assert sorted(seen.mlp) == list(range(1, LAYERS + 1))
    for layer in range(LAYERS):
        total = seen.mid[layer] + seen.mlp[layer + 1]
        torch.testing.assert_close(total, seen.boundaries[layer + 1], rtol=1e-5, atol=1e-5)


def test_mid_block_is_the_residual_after_attention(target):
    """Attention mixes rows and the MLP does not: changing row 5 of the tokens must change mid - h behind row 5 only."""
    _, model = target
    seen = tap(model, find_layout(model), IDS[None])
    other = IDS.clone()
    other[5] = 4 if int(IDS[5]) != 4 else 5
    again = tap(model, find_layout(model), other[None])
    mlp = (seen.mlp[1] - again.mlp[1]).abs().amax(dim=1)
    attention = ((seen.mid[0] - seen.boundaries[0]) - (again.mid[0] - again.boundaries[0])).abs().amax(dim=1)
    assert float(attention[:5].max()) < 1e-4
    assert float(attention[6:].max()) > 1e-4
    assert float(mlp[:5].max()) < 1e-4


@pytest.mark.parametrize("target", PARALLEL, indirect=True)
def test_a_parallel_mlp_does_not_mix_rows(target):
    """Elsewhere the MLP reads what attention has mixed; here a swap of the two summands would show."""
    _, model = target
    seen = tap(model, find_layout(model), IDS[None])
    other = IDS.clone()
    other[5] = 4 if int(IDS[5]) != 4 else 5
    again = tap(model, find_layout(model), other[None])
    changed = (seen.mlp[1] - again.mlp[1]).abs().amax(dim=1) > 1e-4
    assert changed.nonzero().flatten().tolist() == [5]


def test_a_probe_is_recorded(target):
    name, model = target
    recording = record_probe(model, find_layout(model), Wiring.from_boundaries((0, 2, 4)), IDS.tolist())
    data = recording.data
    assert set(data.bank.planes) == set(all_planes(LAYERS))
    assert 0.9 < data.floor <= 1.0
    assert (data.final_norm is None) == (name in (*PARALLEL, "gpt2"))  # those have a LayerNorm
    assert not [note for note in data.notes if "not checked" in note]
    assert all(parameter.dtype == torch.float32 for parameter in model.parameters())
    if name == "gemma3":
        assert torch.equal(data.final_norm.weight, 1 + model.model.norm.weight.detach())


@pytest.mark.parametrize("name", NAMES)
def test_a_target_in_bfloat16(name):
    low = build(transformers, name).to(torch.bfloat16)
    data = record_probe(low, find_layout(low), Wiring.from_boundaries((0, 4)), IDS.tolist()).data
    assert set(data.bank.planes) == set(all_planes(LAYERS))
    assert any("batch of two" in note for note in data.notes)


def test_a_model_directory(tmp_path):
    model = build(transformers, "llama")
    model.save_pretrained(tmp_path / "tiny-llama")
    (tmp_path / "drafter").mkdir()
    contract = record(str(tmp_path / "tiny-llama"), wiring="0,1,3", out=tmp_path / "drafter", device="cpu")
    assert contract.target.architecture == "LlamaForCausalLM"
    assert contract.target.name == "tiny-llama"
    assert contract.probe.dtype == "float32"
    data = read_probe(contract, tmp_path / "drafter")
    seen = tap(model, find_layout(model), data.token_ids[None])
    torch.testing.assert_close(data.golden[:, 64:], seen.boundaries[3], rtol=1e-3, atol=1e-3)


def test_a_wrapper_directory(tmp_path):
    build(transformers, "llava").save_pretrained(tmp_path / "tiny-llava")
    (tmp_path / "drafter").mkdir()
    contract = record(str(tmp_path / "tiny-llava"), wiring="2,4", out=tmp_path / "drafter", device="cpu")
    assert contract.target.architecture == "LlavaForConditionalGeneration"
    assert contract.target.num_hidden_layers == LAYERS
