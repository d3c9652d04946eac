"""Expectations of the ten smaller runtimes, each worked out by hand from the code they were read in."""

from __future__ import annotations

from pathlib import Path

import pytest

from featurecontract.runtimes import NAMES, Query, choose, read_rules, resolve, rules_of, runtime_names

OTHERS = tuple(name for name in NAMES if name not in ("sglang", "vllm"))
METHODS = ("eagle3", "dflash", "eagle", "mtp", "p_eagle", "dspark", "medusa", "mlp_speculator", "hass", "pard2")
FORK = Path(__file__).parents[2] / "examples" / "fork-rules.json"

LLAMA, QWEN3, KIMI = "LlamaForCausalLM", "Qwen3ForCausalLM", "DeepseekV3ForCausalLM"
DEFAULT = (2, 16, 29)
# The drafter architecture that each runtime takes for a Llama-type EAGLE-3 drafter.
DRAFTER = {"lmdeploy": "LlamaForCausalLM"}
# xLLM takes features from Qwen3 targets only.
TARGET = {"xllm": QWEN3}


def predict(
    runtime,
    *,
    method="eagle3",
    nested=None,
    top=None,
    serving=None,
    target=None,
    depth=32,
    target_config=None,
    extra=None,
):
    config = {"architectures": [DRAFTER.get(runtime, "LlamaForCausalLMEagle3")], "model_type": "llama"}
    config |= {"hidden_size": 4096, "num_hidden_layers": 1, "draft_vocab_size": 32000}
    if nested is not None:
        config["eagle_config"] = {"eagle_aux_hidden_state_layer_ids": nested, "use_aux_hidden_state": True}
    if top is not None:
        config["eagle_aux_hidden_state_layer_ids"] = top
    config |= extra or {}
    query = Query(
        method=method,
        config=config,
        num_hidden_layers=depth,
        hidden_size=4096,
        architectures=(target or TARGET.get(runtime, LLAMA),),
        target_config=target_config or {},
        serving_ids=serving,
    )
    (choice,) = choose(runtime)
    return resolve(choice.rules, choice.runner, choice.version, query)


def dflash(runtime, ids, *, target=QWEN3, **extra):
    architecture = {"architectures": ["DFlashDraftModel"], "num_hidden_layers": 5, "num_target_layers": 32}
    config = {"dflash_config": {"target_layer_ids": ids, "block_size": 16, "mask_token_id": 5}}
    return predict(runtime, method="dflash", target=target, extra=architecture | config | extra)


@pytest.mark.parametrize("name", OTHERS)
def test_parses_and_speaks_of_every_method(name):
    rules = rules_of(name)
    assert rules.runtime == name
    assert {item.method for item in rules.methods} == set(METHODS)
    assert all(item.source for group in (rules.ids, rules.targets, rules.planes, rules.flags) for item in group)
    assert all(item.source for item in (*rules.cautions, *rules.embeddings))
    assert all(item.source for item in rules.methods if not item.reason)


@pytest.mark.parametrize("name", OTHERS)
def test_a_method_without_a_rule_gives_its_reason(name):
    found = predict(name, method="pard2")
    assert found.wiring is None
    assert "PARD-2" in found.reason


# Nested ids, top-level ids: the same three numbers, and what each runtime makes of them.
NESTED = {
    "tensorrt-llm": DEFAULT,
    "llama.cpp": DEFAULT,
    "lmdeploy": DEFAULT,
    "tokenspeed": (2, 16, 29),
    "atom": (1, 15, 28),
    "tpu-inference": DEFAULT,
    "sglang-jax": DEFAULT,
    "xllm": DEFAULT,
    "eagle": DEFAULT,
}
TOP = NESTED | {"llama.cpp": (1, 15, 28), "atom": DEFAULT}
READS_NESTED, READS_TOP = {"tokenspeed", "atom"}, {"tokenspeed", "llama.cpp"}


@pytest.mark.parametrize("name", NESTED)
def test_nested_ids(name):
    found = predict(name, nested=[1, 15, 28])
    assert found.wiring.boundaries == NESTED[name]
    assert found.defaulted is (name not in READS_NESTED)
    assert found.crash is None


@pytest.mark.parametrize("name", TOP)
def test_top_level_ids(name):
    found = predict(name, top=[1, 15, 28])
    assert found.wiring.boundaries == TOP[name]
    assert found.defaulted is (name not in READS_TOP)
    assert found.crash is None


@pytest.mark.parametrize("name", NESTED)
def test_without_ids_every_runtime_takes_the_same_three(name):
    found = predict(name)
    assert found.wiring.boundaries == DEFAULT
    assert found.defaulted
    assert found.intended is None
    assert found.crash is None


@pytest.mark.parametrize("name", sorted({"lmdeploy", "tpu-inference", "eagle"}))
def test_a_fixed_list_never_reads_ids(name):
    found = predict(name, nested=[5, 6, 7], top=[5, 6, 7])
    assert found.wiring.boundaries == DEFAULT
    assert not found.reads_ids


def test_only_llama_cpp_keeps_the_listed_order():
    assert predict("llama.cpp", top=[28, 1, 15]).wiring.boundaries == (28, 1, 15)
    assert predict("tokenspeed", top=[28, 1, 15]).wiring.boundaries == (2, 16, 29)
    assert predict("atom", nested=[28, 1, 15]).wiring.boundaries == (1, 15, 28)
    assert predict("tensorrt-llm", serving=(28, 1, 15)).wiring.boundaries == (2, 16, 29)


class TestTensorRT:
    def test_ids_come_from_the_serving_option_and_count_layer_outputs(self):
        found = predict("tensorrt-llm", top=[5, 6, 7], nested=[5, 6, 7], serving=(1, 15, 28))
        assert found.wiring.boundaries == (2, 16, 29)
        assert found.where == "serving"

    def test_ids_of_the_checkpoint_are_known_but_unread(self):
        found = predict("tensorrt-llm", nested=[1, 15, 30])
        assert found.wiring.boundaries == DEFAULT
        assert found.intended.boundaries == (2, 16, 31)

    def test_last_layer_and_final_norm_are_different_tensors(self):
        last = predict("tensorrt-llm", serving=(1, 15, 31))
        assert [(item.boundary, item.state) for item in last.wiring.features][-1] == (32, "residual")
        normed = predict("tensorrt-llm", serving=(1, 15, -1))
        assert [(item.boundary, item.state) for item in normed.wiring.features] == [
            (2, "residual"),
            (16, "residual"),
            (32, "final_norm"),
        ]
        assert normed.crash is None

    def test_flags(self):
        both = predict("tensorrt-llm", extra={"norm_before_fc": True})
        assert both.wiring.pre_norm == "none"
        assert both.unread_flags == ("norm_before_fc",)
        nested = predict("tensorrt-llm", extra={"eagle_config": {"norm_before_fc": True}})
        assert nested.wiring.pre_norm == "joint"
        each = predict("tensorrt-llm", extra={"eagle_config": {"norm_before_fc": True}, "fc_norm": True})
        assert each.wiring.pre_norm == "per_feature"

    def test_dflash_takes_the_option_before_the_checkpoint(self):
        assert dflash("tensorrt-llm", [1, 15, 28]).wiring.boundaries == (2, 16, 29)
        found = predict("tensorrt-llm", method="dflash", serving=(3, 4))
        assert found.wiring.boundaries == (4, 5)

    def test_kimi_has_no_exception(self):
        assert predict("tensorrt-llm", target=KIMI, depth=61, serving=(2, 30, 58)).wiring.boundaries == (3, 31, 59)
        assert predict("tensorrt-llm", target=KIMI, depth=61).wiring.boundaries == (2, 30, 58)


class TestLlamaCpp:
    def test_embedding_and_last_state_are_fed(self):
        found = predict("llama.cpp", top=[0, 15, 32])
        assert found.wiring.boundaries == (0, 15, 32)
        assert found.crash is None

    @pytest.mark.parametrize("ids", [[1, 15], [1, 8, 15, 28], [15]])
    def test_exactly_three(self, ids):
        found = predict("llama.cpp", top=ids)
        assert found.crash.message == "EAGLE3 requires exactly 3 entries in 'extract_layers'"

    def test_duplicates_are_kept(self):
        found = predict("llama.cpp", top=[1, 15, 15])
        assert found.wiring.boundaries == (1, 15, 15)
        assert found.crash is None

    def test_beyond_aborts(self):
        assert "exceeds target n_layer" in predict("llama.cpp", top=[1, 15, 33]).crash.message
        assert predict("llama.cpp", top=[-1, 15, 28]).crash.cause == "out of range"

    def test_kimi_does_not_keep_its_layer_inputs(self):
        found = predict("llama.cpp", top=[2, 30, 58], target=KIMI, depth=61)
        assert found.wiring is None
        assert "layer input tensor is null" in found.crash.message

    def test_without_draft_vocab_size_it_is_a_plain_llama(self):
        (choice,) = choose("llama.cpp")
        config = {"architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "hidden_size": 4096}
        query = Query(method="eagle3", config=config, num_hidden_layers=32, hidden_size=4096, architectures=(LLAMA,))
        found = resolve(choice.rules, choice.runner, choice.version, query)
        assert found.crash.cause == "needs draft_vocab_size"
        assert predict("llama.cpp", extra={"draft_vocab_size": None}).crash is None  # present is enough

    def test_dflash_adds_one_and_has_no_last_state(self):
        assert dflash("llama.cpp", [1, 15, 28]).wiring.boundaries == (2, 16, 29)
        assert dflash("llama.cpp", [-1, 15, 28]).wiring.boundaries == (0, 16, 29)
        assert "layer input tensor is null" in dflash("llama.cpp", [1, 15, 31]).crash.message
        assert dflash("llama.cpp", [1, 15, 31], target="NemotronHForCausalLM").crash is None

    def test_flags_are_read_at_the_top_level_only(self):
        top = predict("llama.cpp", extra={"norm_before_fc": True, "norm_before_residual": True})
        assert (top.wiring.pre_norm, top.wiring.norm_before_residual) == ("joint", True)
        nested = predict("llama.cpp", extra={"eagle_config": {"norm_before_fc": True}})
        assert nested.unread_flags == ("norm_before_fc",)
        assert "fc_norm" in predict("llama.cpp", extra={"fc_norm": True}).unread_flags


class TestLMDeploy:
    def test_kimi_is_fixed_too(self):
        drafter = {"architectures": ["Eagle3DeepseekV2ForCausalLM"]}
        found = predict("lmdeploy", nested=[3, 31, 59], target=KIMI, depth=61, extra=drafter)
        assert found.wiring.boundaries == (2, 30, 58)
        assert not found.reads_ids
        assert found.crash is None

    @pytest.mark.parametrize(
        ("version", "supported"), [("0.10.2", False), ("0.11.0", True), ("0.16.0", True), ("0.18.0", True)]
    )
    def test_versions_of_eagle3(self, version, supported):
        rules = rules_of("lmdeploy")
        config = {"architectures": [LLAMA], "hidden_size": 4096}
        query = Query(method="eagle3", config=config, num_hidden_layers=32, hidden_size=4096, architectures=(LLAMA,))
        assert (resolve(rules, "lmdeploy", version, query).wiring is not None) is supported

    def test_kimi_from_0_17_on(self):
        rules = rules_of("lmdeploy")
        config = {"architectures": ["Eagle3DeepseekV2ForCausalLM"], "hidden_size": 7168}
        query = Query(method="eagle3", config=config, num_hidden_layers=61, hidden_size=7168, architectures=(KIMI,))
        assert resolve(rules, "lmdeploy", "0.16.0", query).wiring is None
        assert resolve(rules, "lmdeploy", "0.17.0", query).wiring.boundaries == (2, 30, 58)

    def test_drafter_architecture(self):
        found = predict("lmdeploy", extra={"architectures": ["LlamaForCausalLMEagle3"]})
        assert found.crash.message == (
            "RuntimeError: Can not found rewrite for architectures: ['LlamaForCausalLMEagle3']"
        )

    def test_dflash(self):
        assert dflash("lmdeploy", [1, 15, 28]).wiring.boundaries == (2, 16, 29)
        assert dflash("lmdeploy", [1, 15, 31]).wiring.boundaries == (2, 16, 32)
        assert dflash("lmdeploy", [1, 15, 31]).crash is None
        assert dflash("lmdeploy", [-1, 15, 28]).crash.when == "at load"
        assert "out-of-range" in dflash("lmdeploy", [1, 15, 32]).crash.message
        assert dflash("lmdeploy", [1, 15, 28], num_target_layers=None).crash.cause == "needs num_target_layers"
        # 1 + i * 28 / 4, rounded, as layer outputs
        assert dflash("lmdeploy", None).wiring.boundaries == (2, 9, 16, 23, 30)


class TestTokenSpeed:
    def test_the_option_beats_the_checkpoint(self):
        assert predict("tokenspeed", nested=[5, 6, 7], serving=(1, 15, 28)).wiring.boundaries == (2, 16, 29)
        assert predict("tokenspeed", nested=[5, 6, 7], top=[1, 15, 28]).wiring.boundaries == (6, 7, 8)

    def test_id_l_is_the_last_state_and_the_id_before_it_is_nothing(self):
        last = predict("tokenspeed", top=[1, 15, 32])
        assert last.wiring.boundaries == (2, 16, 32)
        assert last.crash is None
        assert predict("tokenspeed", top=[1, 15, 31]).crash.cause == "out of range"
        # gpt-oss-120b: ids 24, 30, 36 of 36 layers are the outputs of 24, 30 and 35
        assert predict("tokenspeed", top=[24, 30, 36], depth=36).wiring.boundaries == (25, 31, 36)

    def test_embedding(self):
        assert predict("tokenspeed", top=[-1, 15, 28]).wiring.boundaries == (0, 16, 29)

    def test_kimi(self):
        found = predict("tokenspeed", nested=[2, 30, 58], target=KIMI, depth=61)
        assert found.wiring.boundaries == (3, 31, 59)
        assert predict("tokenspeed", nested=[2, 30, 60], target=KIMI, depth=61).crash.cause == "last state"
        assert predict("tokenspeed", nested=[2, 30, 61], target=KIMI, depth=61).crash.cause == "out of range"
        kimi_k3 = "KimiK3ForConditionalGeneration"
        assert predict("tokenspeed", nested=[2, 30, 58], target=kimi_k3, depth=61).wiring.boundaries == (2, 30, 58)


class TestAtom:
    def test_ends(self):
        assert predict("atom", nested=[0, 15, 28]).wiring.boundaries == (0, 15, 28)
        assert predict("atom", nested=[0, 15, 28]).crash is None
        assert predict("atom", nested=[1, 15, 32]).crash.cause == "last state"

    def test_kimi_is_one_block_before_tokenspeed(self):
        assert predict("atom", nested=[2, 30, 58], target=KIMI, depth=61).wiring.boundaries == (2, 30, 58)

    def test_an_eagle_config_without_the_flag_feeds_the_last_state_alone(self):
        bare = {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 15, 28]}}
        (feature,) = predict("atom", extra=bare).wiring.features
        assert (feature.boundary, feature.state) == (32, "final_norm")
        assert predict("atom", nested=[1, 15, 28]).wiring.boundaries == (1, 15, 28)


class TestTpuInference:
    def test_targets(self):
        assert predict("tpu-inference", target=QWEN3).wiring is None
        assert predict("tpu-inference", target=KIMI, depth=61).depends

    def test_dflash(self):
        assert dflash("tpu-inference", [1, 15, 28], target=LLAMA).wiring.boundaries == (2, 16, 29)
        assert dflash("tpu-inference", [28, 1, 15]).wiring.boundaries == (2, 16, 29)
        assert dflash("tpu-inference", [1, 15, 31]).crash is None
        assert dflash("tpu-inference", [-1, 15, 28]).crash.cause == "embedding"
        assert dflash("tpu-inference", None).crash.cause == "ids missing"

    def test_flags(self):
        found = predict("tpu-inference", extra={"norm_before_residual": True, "fc_norm": True})
        assert found.wiring.norm_before_residual is True
        assert found.unread_flags == ("fc_norm",)


class TestSGLangJax:
    def test_it_reads_the_config_of_the_target(self):
        config = {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [3, 4, 5]}}
        found = predict("sglang-jax", nested=[1, 15, 28], target_config=config)
        assert found.wiring.boundaries == (4, 5, 6)
        assert found.where == "target"

    @pytest.mark.parametrize(("target", "crashes"), [(LLAMA, True), (QWEN3, False)])
    def test_embedding_is_a_qwen3_thing(self, target, crashes):
        config = {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [-1, 15, 28]}}
        found = predict("sglang-jax", target=target, target_config=config)
        assert found.wiring.boundaries == (0, 16, 29)
        assert (found.crash is not None) is crashes

    def test_dflash(self):
        assert dflash("sglang-jax", [1, 15, 28]).wiring.boundaries == (2, 16, 29)
        assert dflash("sglang-jax", [1, 15, 31]).crash.cause == "last state"

    def test_kimi(self):
        assert "set_eagle3_layers_to_capture" in predict("sglang-jax", target=KIMI, depth=61).crash.message


class TestXLLM:
    def test_it_reads_the_target_and_takes_ids_as_they_are(self):
        found = predict("xllm", nested=[5, 6, 7], target_config={"layers_to_capture": [28, 1, 15]})
        assert found.wiring.boundaries == (1, 15, 28)
        assert predict("xllm", target_config={"layers_to_capture": [0, 15, 28]}).crash is None
        assert predict("xllm", target_config={"layers_to_capture": [1, 15, 32]}).crash.cause == "last state"

    def test_targets(self):
        assert "token embeddings" in predict("xllm", target=LLAMA).crash.message


def test_eagle_1_in_the_reference():
    found = predict("eagle", method="eagle")
    assert [(item.source, item.boundary, item.state) for item in found.wiring.features][1] == (
        "target",
        32,
        "final_norm",
    )
    assert found.wiring.features[0].source == "drafter_embedding"


@pytest.mark.parametrize("name", NESTED)
def test_a_projection_of_equal_width_is_left_out_by_some(name):
    drafter = {"architectures": [DRAFTER.get(name, "LlamaForCausalLMEagle3")], "hidden_size": 3 * 4096}
    query = Query(
        method="eagle3",
        config=drafter | {"model_type": "llama", "draft_vocab_size": 32000, "target_hidden_size": 4096},
        num_hidden_layers=32,
        hidden_size=4096,
        architectures=(TARGET.get(name, LLAMA),),
        fc_in=3 * 4096,
    )
    (choice,) = choose(name)
    skips = {"tensorrt-llm", "lmdeploy", "sglang-jax", "xllm", "eagle"}
    assert resolve(choice.rules, choice.runner, choice.version, query).skips_projection is (name in skips)


def test_transformers_says_why_not():
    assert predict("transformers").reason.startswith("transformers 5.24.0 has no EAGLE-3")
    assert "speculation_type" in predict("transformers", method="dflash").reason


class TestFork:
    def test_the_example_differs_from_sglang_by_key_and_offset(self):
        rules = read_rules(FORK)
        extra = {"our-sglang": rules}
        assert "our-sglang" in runtime_names(extra)
        (choice,) = choose("our-sglang==0.5.23", extra=extra)
        config = {"architectures": ["LlamaForCausalLMEagle3"], "eagle_aux_hidden_state_layer_ids": [1, 15, 28]}
        config["model_type"] = "llama"
        query = Query(method="eagle3", config=config, num_hidden_layers=32, hidden_size=4096, architectures=(LLAMA,))
        assert resolve(choice.rules, choice.runner, choice.version, query).wiring.boundaries == (1, 15, 28)
        (native,) = choose("sglang==0.5.23")
        assert resolve(native.rules, native.runner, native.version, query).wiring.boundaries == DEFAULT

    def test_version_ranges_of_the_example(self):
        rules = read_rules(FORK)
        config = {"architectures": ["LlamaForCausalLMEagle3"], "eagle_aux_hidden_state_layer_ids": [0, 15, 28]}
        query = Query(method="eagle3", config=config, num_hidden_layers=32, hidden_size=4096, architectures=(LLAMA,))
        assert resolve(rules, "our-sglang", "0.5.16", query).crash.cause == "embedding"
        assert resolve(rules, "our-sglang", "0.5.22", query).crash is None
