"""Which class decides: the outer one that the runtime builds, not the text model inside of it."""

from __future__ import annotations

import pytest
from runtime_cases import GPT_OSS, KIMI, LLAMA, QWEN3, ask, config_of, fed

OUTER = "KimiK25ForConditionalGeneration"
M3_VL, M3 = "MiniMaxM3SparseForConditionalGeneration", "MiniMaxM3SparseForCausalLM"


@pytest.mark.parametrize(
    "target",
    [
        ("InternVLChatModel", QWEN3),
        ("LlavaForConditionalGeneration", LLAMA),
        ("Mistral3ForConditionalGeneration", "MistralForCausalLM"),
        ("PixtralForConditionalGeneration", "MistralForCausalLM"),
    ],
)
@pytest.mark.parametrize("version", ["0.5.14", "0.5.23"])
def test_a_wrapper_without_the_setter_is_refused_whatever_is_inside(version, target):
    found = ask(f"sglang=={version}", config=config_of(nested=[1, 15, 27]), target=target)
    assert found.wiring is None
    assert not found.depends
    assert found.crash.cause == "target"
    assert target[0] in found.reason


def test_a_wrapper_that_has_the_setter_later_is_refused_before():
    case = {"config": config_of(nested=[2, 30, 58]), "target": (OUTER, KIMI), "depth": 61}
    for version in ("0.5.8", "0.5.9"):
        found = ask(f"sglang=={version}", **case)
        assert (found.wiring, found.crash.cause) == (None, "target")
        assert "set_eagle3_layers_to_capture" in found.crash.message
    assert fed("sglang==0.5.10", **case) == (3, 31, 59)
    assert fed("sglang==0.5.13", **case) == (2, 30, 58)


def test_a_setter_that_was_taken_away_is_refused_after():
    case = {"config": config_of(nested=[1, 15, 27]), "target": ("Glm4vForConditionalGeneration", LLAMA)}
    assert fed("sglang==0.5.4", **case) == (2, 16, 28)
    assert ask("sglang==0.5.5", **case).wiring is None


def test_the_outer_default_holds_and_the_inner_alone_has_its_own():
    assert fed("sglang==0.5.20", config=config_of(), target=(M3_VL, M3), depth=60) == (3, 31, 58)
    assert fed("sglang==0.5.20", config=config_of(), target=M3, depth=60) == (2, 30, 57)
    assert ask("sglang==0.5.17", config=config_of(), target=(M3_VL, M3), depth=60).wiring is None


def test_a_text_config_alone_is_its_own_class():
    assert fed("sglang==0.5.14", config=config_of(nested=[1, 15, 27]), target=(QWEN3,)) == (2, 16, 28)


@pytest.mark.parametrize("runtime", ["sglang==0.5.14", "vllm-v1==0.33.0", "vllm-v1==0.12.0", "lmdeploy==0.16.0"])
def test_an_unknown_wrapper_of_a_known_model_is_not_settled(runtime):
    config = config_of(nested=[1, 15, 27], architectures=["LlamaForCausalLM"])
    if runtime.startswith("sglang"):
        config["architectures"] = ["LlamaForCausalLMEagle3"]
    found = ask(runtime, config=config, target=("UnheardOfForConditionalGeneration", LLAMA))
    assert found.depends
    assert found.wiring is None
    assert found.crash is None
    assert list(found.alternatives) == ["as LlamaForCausalLM inside"]
    assert "UnheardOfForConditionalGeneration" in found.reason


def test_alternatives_that_agree_are_an_answer():
    found = ask("tensorrt-llm", config=config_of(top=[1, 15, 27]), target=("UnheardOf", LLAMA))
    assert found.wiring is not None
    found = ask("sglang==0.5.14", config=config_of(), method="eagle", target=("UnheardOf", LLAMA))
    assert found.wiring.features[-1].state == "final_norm"


def test_a_class_of_other_versions_is_refused_even_without_a_general_entry():
    config = {"architectures": ["DFlashDraftModel"], "model_type": "qwen3", "hidden_size": 4096}
    config |= {"num_hidden_layers": 5, "dflash_config": {"target_layer_ids": [1, 9, 17]}}
    found = ask("sglang==0.5.12", config=config, method="dflash", target=("LagunaForCausalLM", LLAMA))
    assert (found.wiring, found.depends, found.crash.cause) == (None, False, "target")
    assert "LagunaForCausalLM" in found.reason


def test_llama_cpp_takes_the_class_of_the_text_config():
    case = {"config": config_of(top=[2, 16, 29])}
    assert fed("llama.cpp", target=("UnheardOfForConditionalGeneration", GPT_OSS), **case) == (2, 16, 29)
    assert ask("llama.cpp", target=(GPT_OSS, "UnheardOfForCausalLM"), **case).wiring is None
    kept = ask("llama.cpp", target=("KimiK3ForConditionalGeneration", LLAMA), **case)
    assert kept.wiring is None


def test_faults_of_an_inner_class_are_not_faults_of_the_wrapper():
    case = {"config": config_of(nested=[1, 15, 27]), "target": ("Llama4ForConditionalGeneration", GPT_OSS)}
    assert ask("sglang==0.5.14", **case).cautions == ()
