"""What keeps a drafter from loading, and what is dropped without a word while it loads."""

from __future__ import annotations

import pytest
from runtime_cases import KIMI, ask, config_of

from featurecontract.runtimes import express, rules_of
from featurecontract.runtimes._query import Query

N = [1, 15, 27]
MLA = {"architectures": ["Eagle3DeepseekV2ForCausalLM"]}


def without(config, key):
    return {name: value for name, value in config.items() if name != key}


def cause(runtime, config, **case):
    found = ask(runtime, config=config, **case)
    return found.crash.cause if found.crash else ""


@pytest.mark.parametrize(
    ("version", "config", "expected"),
    [
        ("0.5.14", without(config_of(nested=N), "draft_vocab_size"), "needs draft_vocab_size"),
        ("0.5.1", without(config_of(nested=N), "draft_vocab_size"), "needs draft_vocab_size"),
        ("0.5.14", without(config_of(nested=N, tie_word_embeddings=True), "draft_vocab_size"), ""),
        ("0.5.1", without(config_of(nested=N, tie_word_embeddings=True), "draft_vocab_size"), ""),
        ("0.5.2", config_of(nested=N, draft_vocab_size=None), ""),
        ("0.5.1.post3", config_of(nested=N, draft_vocab_size=None), "needs draft_vocab_size"),
        ("0.5.14", config_of(nested=N, target_hidden_size=None), "needs target_hidden_size"),
        ("0.5.14", config_of(nested=N, target_hidden_size=4096), ""),
        ("0.5.11", config_of(nested=N, num_hidden_layers=2), "needs num_hidden_layers 1"),
        ("0.5.12", config_of(nested=N, num_hidden_layers=2), ""),
    ],
)
def test_sglang_llama_drafter(version, config, expected):
    assert cause(f"sglang=={version}", config) == expected


def test_the_mla_drafter_has_one_layer_in_every_version_and_no_vocabulary_of_its_own():
    case = {"target": KIMI, "depth": 61}
    for version in ("0.5.12", "0.5.23"):
        config = config_of(nested=[2, 30, 58], **MLA)
        assert cause(f"sglang=={version}", config | {"num_hidden_layers": 2}, **case) == "needs num_hidden_layers 1"
        assert cause(f"sglang=={version}", without(config, "draft_vocab_size"), **case) == ""
        assert cause(f"sglang=={version}", config | {"target_hidden_size": None}, **case) == ""


def slugs(version, names, *, config=None):
    tensors = None if names is None else frozenset(names)
    return [c.slug for c in ask(f"sglang=={version}", config=config or config_of(nested=N), tensors=tensors).cautions]


def test_layers_0_is_dropped_without_a_word_before_0_5_12():
    old, new = {"layers.0.hidden_norm.weight", "fc.weight"}, {"midlayer.hidden_norm.weight", "fc.weight"}
    assert "tensor-missing" in slugs("0.5.11", old)
    assert "tensor-missing" in slugs("0.4.9", old)
    assert "tensor-missing" not in slugs("0.5.12", old)
    assert "tensor-missing" not in slugs("0.5.11", new)
    assert "tensor-missing" not in slugs("0.5.11", None)  # no file, no claim


def test_fc_has_a_bias_before_0_4_9():
    config = config_of()
    assert "tensor-missing" in slugs("0.4.8", {"fc.weight"}, config=config)
    assert "tensor-missing" not in slugs("0.4.8", {"fc.weight", "fc.bias"}, config=config)
    assert "tensor-missing" not in slugs("0.4.9", {"fc.weight"}, config=config)
    assert ask("sglang==0.4.8", config=config).wiring.bias is True


@pytest.mark.parametrize("listed", [[], None, "x", [""], [3], {}])
@pytest.mark.parametrize(
    "runtime", ["sglang==0.5.23", "vllm-v1==0.33.0", "vllm-v2==0.33.0", "llama.cpp", "lmdeploy==0.18.0", "sglang-jax"]
)
def test_a_drafter_must_name_its_class_where_the_runtime_dispatches_on_it(runtime, listed):
    assert cause(runtime, config_of(nested=N, architectures=listed)) == "drafter architecture"
    assert cause(runtime, without(config_of(nested=N), "architectures")) == "drafter architecture"


def test_dflash_drafters_must_name_their_class_too():
    config = {"model_type": "qwen3", "hidden_size": 4096, "num_hidden_layers": 5}
    for runtime in ("sglang==0.5.23", "vllm-v2==0.33.0"):
        crash = ask(runtime, config=config, method="dflash").crash
        assert (crash.cause, crash.loading) == ("drafter architecture", True)
        assert "architectures" in crash.next_step


@pytest.mark.parametrize(
    ("name", "first", "last_without"),
    [
        ("LlamaForCausalLM", "0.8.5", None),
        ("Eagle3LlamaForCausalLM", "0.8.5", None),
        ("LlamaForCausalLMEagle3", "0.10.1", "0.10.0"),
        ("Eagle3Qwen2_5vlForCausalLM", "0.11.1", "0.11.0"),
        ("Eagle3Qwen3vlForCausalLM", "0.12.0", "0.11.2"),
        ("Eagle3DeepseekV2ForCausalLM", "0.18.0", "0.17.1"),
        ("Eagle3DeepseekV3ForCausalLM", "0.18.0", "0.17.1"),
        ("DeepseekV3ForCausalLM", "0.18.0", "0.17.1"),
        ("Eagle3MiniMaxM2ForCausalLM", "0.20.0", "0.19.1"),
        ("Eagle3Qwen3ForCausalLM", "0.24.0", "0.23.0"),
        ("Qwen3ForCausalLM", "0.24.0", "0.23.0"),
        ("Eagle3Speculator", None, "0.33.0"),
        ("MiniCPMForCausalLMEagle3", None, "0.33.0"),
    ],
)
def test_vllm_drafter_classes_by_version(name, first, last_without):
    if first:
        for version in (first, "0.33.0"):
            assert cause(f"vllm-v1=={version}", config_of(architectures=[name])) == ""
    if last_without:
        assert cause(f"vllm-v1=={last_without}", config_of(architectures=[name])) == "drafter architecture"


def test_vllm_0_8_5_builds_its_one_class_whatever_the_name_is():
    assert cause("vllm-v1==0.8.5", config_of(architectures=["LlamaForCausalLMEagle3"])) == ""
    assert cause("vllm-v1==0.9.0", config_of(architectures=["LlamaForCausalLMEagle3"])) == "drafter architecture"


def test_speculators_checkpoints_get_their_class_from_the_conversion():
    config = config_of(architectures=["Eagle3Speculator"], speculators_model_type="eagle3")
    assert cause("vllm-v1==0.10.1", config) == ""
    assert cause("vllm-v1==0.10.0", config) == "drafter architecture"
    config = config_of(architectures=["PEagleDraftModel"], speculators_model_type="peagle")
    assert cause("vllm-v1==0.22.0", config, method="p_eagle") == ""
    # Without the conversion vLLM puts Eagle3 in front of the name and finds no such class.
    assert cause("vllm-v1==0.33.0", without(config, "speculators_model_type"), method="p_eagle") != ""
    assert cause("vllm-v1==0.21.0", config, method="p_eagle") != ""


def test_vllm_builds_one_drafter_layer_and_needs_a_vocabulary_in_old_versions():
    assert cause("vllm-v1==0.11.0", config_of(num_hidden_layers=2)) == "needs num_hidden_layers 1"
    assert cause("vllm-v1==0.11.1", config_of(num_hidden_layers=2)) == ""
    bare = without(config_of(), "draft_vocab_size")
    assert cause("vllm-v1==0.10.2", bare) == "needs draft_vocab_size"
    assert cause("vllm-v1==0.11.0", bare) == ""


def test_speculators_dflash_key_is_read_for_speculators_only():
    config = {"architectures": ["DFlashDraftModel"], "model_type": "qwen3", "hidden_size": 4096}
    config |= {"num_hidden_layers": 5, "aux_hidden_state_layer_ids": [2, 10, 18, 26, 34]}
    case = {"target": "Qwen3ForCausalLM", "depth": 36, "method": "dflash"}
    for runtime in ("vllm-v1==0.21.0", "vllm-v1==0.33.0", "vllm-v2==0.24.0", "vllm-v2==0.25.0", "vllm-v2==0.33.0"):
        assert ask(runtime, config=config, **case).defaulted
        found = ask(runtime, config=config | {"speculators_model_type": "dflash"}, **case)
        assert found.wiring.boundaries == (2, 10, 18, 26, 34)


@pytest.mark.parametrize("method", ["eagle3", "dflash"])
def test_the_speculators_key_is_no_advice_for_a_plain_config(method):
    rules = rules_of("vllm")
    config = {"architectures": ["DFlashDraftModel"] if method == "dflash" else ["LlamaForCausalLMEagle3"]}
    config |= {"model_type": "qwen3", "hidden_size": 4096, "num_hidden_layers": 1, "draft_vocab_size": 9}
    for ids in ([2, 16, 29], [3, 9, 20]):  # the default by luck, and another list
        query = Query(
            method=method, config=config, num_hidden_layers=32, hidden_size=4096, architectures=("Qwen3ForCausalLM",)
        )
        asked = config | {"eagle_aux_hidden_state_layer_ids": ids}
        declared = ask("vllm-v1==0.33.0", config=asked, method=method, target="Qwen3ForCausalLM").wiring
        found = express(rules, "vllm-v1", "0.33.0", query, declared)
        assert found.key == "eagle_aux_hidden_state_layer_ids"
