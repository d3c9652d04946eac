"""vLLM's targets: the model_type list up to 0.21, the classes of each release, and where each one captures."""

from __future__ import annotations

import pytest
from runtime_cases import KIMI, LLAMA, QWEN3, ask, config_of, fed

TOP = config_of(top=[3, 9, 20], architectures=["Eagle3LlamaForCausalLM"])
LIST_0_12 = "['llama', 'qwen', 'minicpm', 'gpt_oss']"


def test_a_model_type_off_the_list_is_refused_up_to_0_21_with_vllms_words():
    found = ask("vllm-v1==0.12.0", config=TOP, target="MistralForCausalLM", target_config={"model_type": "mistral"})
    assert found.crash.message == (
        f"Eagle3 is only supported for {LIST_0_12} models. "
        "Got self.target_model_config.hf_text_config.model_type='mistral'"
    )
    found = ask("vllm-v1==0.21.0", config=TOP, target="MistralForCausalLM")
    assert found.crash.message.startswith("eagle3 is only supported for ['llama', 'qwen', ")
    assert "Llama models" in ask("vllm-v1==0.9.0", config=TOP, target=QWEN3).crash.message
    assert fed("vllm-v1==0.22.0", config=TOP, target="MistralForCausalLM") == (3, 9, 20)


@pytest.mark.parametrize("version", ["0.8.5", "0.12.0", "0.17.1", "0.20.2", "0.21.0"])
def test_an_unheard_of_class_is_refused_while_the_list_stands(version):
    found = ask(f"vllm-v1=={version}", config=TOP, target="UnheardOfForCausalLM")
    assert found.wiring is None
    assert "only supported for" in found.crash.message


def test_the_targets_own_model_type_wins_over_the_class():
    llava = "LlavaForConditionalGeneration"
    text = {"text_config": {"model_type": "mistral"}, "model_type": "llava"}
    assert ask("vllm-v1==0.18.0", config=TOP, target=llava, target_config=text).wiring is None
    text = {"text_config": {"model_type": "llama"}, "model_type": "llava"}
    assert fed("vllm-v1==0.18.0", config=TOP, target=llava, target_config=text) == (3, 9, 20)
    silent = {"text_config": {"num_hidden_layers": 32}, "model_type": "llava"}
    assert fed("vllm-v1==0.18.0", config=TOP, target=llava, target_config=silent) == (3, 9, 20)


@pytest.mark.parametrize(
    ("target", "last_without", "first"),
    [
        (QWEN3, "0.10.0", "0.11.1"),
        ("Qwen3MoeForCausalLM", "0.11.0", "0.11.1"),
        ("GptOssForCausalLM", "0.10.2", "0.11.1"),
        ("AfmoeForCausalLM", "0.14.1", "0.16.0"),
        (KIMI, "0.17.1", "0.18.0"),
        ("NemotronHForCausalLM", "0.21.0", "0.22.0"),
        ("MiniMaxM2ForCausalLM", "0.19.1", "0.20.0"),
        ("GlmMoeDsaForCausalLM", "0.21.0", "0.22.0"),
        ("DeepseekV3BidirectionalModel", "0.28.0", "0.29.0"),
        ("MiMoV2FlashForCausalLM", "0.24.0", "0.25.0"),
        ("Olmo2ForCausalLM", "0.25.1", "0.26.0"),
        ("GPTNeoXForCausalLM", "0.31.0", "0.32.0"),
        ("MixtralForCausalLM", "0.33.0", None),
        ("Gemma3ForCausalLM", "0.17.0", None),
        ("Glm4MoeForCausalLM", "0.33.0", None),
    ],
)
def test_classes_by_release(target, last_without, first):
    assert ask(f"vllm-v1=={last_without}", config=TOP, target=target).wiring is None
    if first:
        assert fed(f"vllm-v1=={first}", config=TOP, target=target) == (3, 9, 20)


@pytest.mark.parametrize(("target", "last_with"), [("AquilaForCausalLM", "0.24.0"), ("GritLM", "0.28.0")])
def test_classes_that_lost_it(target, last_with):
    assert fed(f"vllm-v1=={last_with}", config=TOP, target=target) == (3, 9, 20)
    assert ask("vllm-v1==0.33.0", config=TOP, target=target).wiring is None


@pytest.mark.parametrize(
    ("runtime", "target", "top", "expected"),
    [
        ("vllm-v1==0.17.0", LLAMA, [0, 9, 20], "embedding"),
        ("vllm-v1==0.17.0", "Qwen3MoeForCausalLM", [0, 9, 20], (0, 9, 20)),
        ("vllm-v1==0.18.0", LLAMA, [0, 9, 32], (0, 9, 32)),
        ("vllm-v1==0.18.0", "Qwen3_5ForConditionalGeneration", [3, 9, 32], "last state"),
        ("vllm-v1==0.20.0", "Qwen3_5ForConditionalGeneration", [0, 9, 32], (0, 9, 32)),
        ("vllm-v1==0.28.0", "DeepseekV32ForCausalLM", [3, 9, 32], (3, 9, 32)),
        ("vllm-v1==0.29.0", "DeepseekV32ForCausalLM", [3, 9, 32], "last state"),
        ("vllm-v1==0.29.0", "DeepseekV32ForCausalLM", [0, 9, 20], (0, 9, 20)),
        ("vllm-v1==0.30.0", "DeepseekV4ForConditionalGeneration", [0, 9, 20], "embedding"),
        ("vllm-v1==0.33.0", "Olmo2ForCausalLM", [0, 9, 20], "embedding"),
    ],
)
def test_both_ends(runtime, target, top, expected):
    assert fed(runtime, config=config_of(top=top), target=target) == expected


def test_dspark_on_deepseek_v4_never_captures_the_embedding():
    config = {"architectures": ["DSparkDraftModel"], "model_type": "deepseek_v4", "hidden_size": 4096}
    config |= {"num_hidden_layers": 3, "dspark_target_layer_ids": [-1, 15, 31]}
    case = {"config": config, "method": "dspark"}
    assert fed("vllm-v2==0.30.0", target="DeepseekV4ForCausalLM", **case) == "embedding"
    case["config"] = config | {"dspark_target_layer_ids": [0, 15, 31]}
    assert fed("vllm-v2==0.30.0", target="DeepseekV4ForCausalLM", **case) == (1, 16, 32)


@pytest.mark.parametrize("method", ["eagle3", "dspark"])
def test_deepseek_v41_ids_are_boundaries_from_0_30(method):
    config = config_of(dspark_target_layer_ids=[1, 3, 5]) | {"model_type": "deepseek_v41"}
    assert fed("vllm-v2==0.29.0", config=config, method=method) == (2, 4, 6)
    assert fed("vllm-v2==0.30.0", config=config, method=method) == (1, 3, 5)
    assert fed("vllm-v2==0.30.0", config=config | {"model_type": "deepseek_v4"}, method=method) == (2, 4, 6)


def test_v1_reads_the_dflash_key_as_is_in_0_20_and_0_21():
    config = config_of(dflash_config={"target_layer_ids": [1, 3, 5]}, eagle_config={"use_aux_hidden_state": True})
    assert ask("vllm-v1==0.19.1", config=config).defaulted
    for version in ("0.20.0", "0.20.1", "0.20.2", "0.21.0"):
        assert fed(f"vllm-v1=={version}", config=config) == (1, 3, 5)
    assert ask("vllm-v1==0.22.0", config=config).defaulted  # a non-empty eagle_config overwrites it there


def test_a_runner_asked_for_by_name_must_exist_in_the_version():
    for version in ("0.9", "0.12", "0.16.0"):
        found = ask(f"vllm-v2=={version}", config=TOP)
        assert (found.wiring, found.crash, found.depends) == (None, None, False)
        assert "the V2 runner has EAGLE-3 from 0.17 on" in found.reason
    assert fed("vllm-v2==0.17.0", config=TOP) == (3, 9, 20)
