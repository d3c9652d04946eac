"""A runtime that gets latent attention wrong drafts other tokens, and what it left out is named."""

from __future__ import annotations

import math

import pytest
from drafting_runtime import Runtime, prefills, prompts
from mla_one_by_one import MlaOneByOne
from safetensors.torch import save_file
from test_draft_faults import LENGTHS, contract, sharp
from tiny_mla import TinyMla

from featurecontract.checkpoint import open_checkpoint
from featurecontract.contract import Rope
from featurecontract.gate._drafts import Drafting
from featurecontract.replay import read_drafter

FACTOR = 64.0
MSCALE = 0.1 * math.log(FACTOR) + 1
YARN = {"type": "yarn", "factor": FACTOR, "original_max_position_embeddings": 8, "mscale": 1.0, "mscale_all_dim": 1.0}
TINY = TinyMla(query_rank=None, draft_vocab=40, config={"rope_theta": 300.0, "rope_scaling": YARN})


class MlaRuntime(Runtime, MlaOneByOne):
    """The row-by-row decoder with latent attention, as a runtime."""


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """How it is judged, its weights, and the speeds of its rotated pairs."""
    place = TINY.write(tmp_path_factory.mktemp("mla"))
    tensors = sharp(TINY)
    save_file(tensors, place / "model.safetensors")
    spec = read_drafter(open_checkpoint(place)).spec
    assert spec.rope.attention_factor == 1.0
    return Drafting(place, contract()), tensors, spec.rope.inverse_frequencies(TINY.rope_dim).double()


FAULTS = {
    "scaling": ({"turned": None, "factor": 1.0}, "the rope scaling left out"),
    "mscale": ({"factor": 1.0}, "YaRN's mscale left out of the scores"),
    "style": ({"turned": None, "interleaved": False}, ""),
    "recurrent": ({"post": True}, "the recurrent state post_norm"),
    "position": ({"stuck": True}, "positions that do not advance in steps 2 and on"),
}


def test_a_healthy_runtime_is_no_finding(served):
    drafting, tensors, turned = served
    runtime = MlaRuntime(tensors, TINY, theta=300.0, factor=MSCALE, turned=turned)
    drafted, findings = drafting(prefills(runtime, prompts(TINY, LENGTHS)))
    assert findings == ()
    assert (drafted.compared, drafted.equal, drafted.reason) == (48, 48, "")


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found_and_named(served, fault):
    drafting, tensors, turned = served
    flags, name = FAULTS[fault]
    runtime = MlaRuntime(tensors, TINY, **{"theta": 300.0, "factor": MSCALE, "turned": turned} | flags)
    _, (item,) = drafting(prefills(runtime, prompts(TINY, LENGTHS)))
    assert (item.slug, item.severity) == ("draft-tokens-differ", "error")
    assert (item.details["explained_by"] or "") == name


def test_the_style_of_the_contract_is_the_reference(served):
    drafting, tensors, _ = served
    said = contract(rope=Rope(theta=300.0, scaling={"type": "default"}, style="neox"))
    plain = MlaRuntime(tensors, TINY, theta=300.0, interleaved=False)
    drafted, findings = Drafting(drafting.path, said)(prefills(plain, prompts(TINY, LENGTHS)))
    assert (findings, drafted.equal) == ((), 48)
    paired = MlaRuntime(tensors, TINY, theta=300.0)
    _, (item,) = Drafting(drafting.path, said)(prefills(paired, prompts(TINY, LENGTHS)))
    assert item.details["explained_by"] == "interleaved rope"
