"""vLLM's rules for both of its runners, against what the releases 0.8.5 to 0.33.0 do."""

from __future__ import annotations

import pytest
from runtime_cases import KIMI, LLAMA, QWEN3, ask, config_of, fed

from featurecontract.contract import Wiring
from featurecontract.runtimes import Query, choose, express


def test_vllm_stands_for_both_runners():
    assert [item.key for item in choose("vllm==0.32")] == ["vllm-v1==0.32", "vllm-v2==0.32"]
    assert [item.key for item in choose("vllm==0.12.0")] == ["vllm-v1==0.12.0"]  # V2 had no EAGLE-3 before 0.17
    assert [item.key for item in choose("vllm-v2==0.33.0")] == ["vllm-v2==0.33.0"]


@pytest.mark.parametrize(
    ("runtime", "ids", "expected"),
    [
        ("vllm-v1==0.11.0", {"top": [1, 9, 20]}, (2, 16, 29)),
        ("vllm-v1==0.11.1", {"top": [1, 9, 20]}, (1, 9, 20)),
        ("vllm-v1==0.21.0", {"nested": [1, 9, 20]}, (2, 16, 29)),
        ("vllm-v1==0.22.0", {"nested": [1, 9, 20]}, (1, 9, 20)),
        ("vllm-v1==0.33.0", {"nested": [1, 9, 20], "top": [3, 4, 5]}, (3, 4, 5)),
        ("vllm-v1==0.33.0", {"nested": [1, 9, 20], "top": []}, (1, 9, 20)),
        ("vllm-v2==0.33.0", {"nested": [1, 9, 20]}, (2, 16, 29)),
        ("vllm-v2==0.33.0", {"top": [1, 9, 20]}, (1, 9, 20)),
        ("vllm-v1==0.33.0", {"top": [20, 1, 9]}, (1, 9, 20)),
        ("vllm-v1==0.33.0", {"top": [0, 1, 3]}, (0, 1, 3)),
        ("vllm-v1==0.17.0", {"top": [0, 1, 3]}, "embedding"),
        ("vllm-v1==0.33.0", {"top": [2, 5, 32]}, (2, 5, 32)),
        ("vllm-v1==0.17.0", {"top": [2, 5, 32]}, "last state"),
        ("vllm-v1==0.33.0", {"top": [1, 3, 33]}, "out of range"),
        ("vllm-v1==0.33.0", {"top": [1, 3, -1]}, "out of range"),
        ("vllm-v1==0.33.0", {"top": [1, 3, 3]}, "number of planes"),
        # Two or four planes at the top level: fc is built for three unless num_aux_hidden_states says otherwise.
        ("vllm-v1==0.33.0", {"top": [1, 3]}, "number of planes"),
        ("vllm-v1==0.33.0", {"top": [1, 3], "num_aux_hidden_states": 2}, (1, 3)),
        ("vllm-v1==0.33.0", {"nested": [1, 3, 5, 7]}, (1, 3, 5, 7)),
    ],
)
def test_llama_target(runtime, ids, expected):
    assert fed(runtime, config=config_of(**ids)) == expected


@pytest.mark.parametrize(
    ("runtime", "top", "expected"),
    [
        ("vllm-v1==0.32.0", [2, 30, 58], (2, 30, 58)),
        ("vllm-v1==0.32.0", [0, 3, 31], "embedding"),
        ("vllm-v2==0.32.0", [0, 3, 31], "embedding"),
        ("vllm-v1==0.24.0", [2, 30, 61], "last state"),
        ("vllm-v1==0.25.0", [2, 30, 61], (2, 30, 61)),
        ("vllm-v1==0.32.0", [58, 2, 30], (2, 30, 58)),
    ],
)
def test_deepseek_target(runtime, top, expected):
    assert fed(runtime, config=config_of(top=top), target=KIMI, depth=61) == expected


def test_deepseek_is_not_a_target_before_0_18():
    found = ask("vllm-v1==0.16.0", config=config_of(top=[2, 30, 58]), target=KIMI, depth=61)
    assert found.wiring is None
    assert found.crash.message.startswith(
        "Eagle3 is only supported for ['llama', 'qwen', 'minicpm', 'gpt_oss', 'hunyuan"
    )


def test_nested_ids_on_v2_are_the_default_by_luck_or_not():
    lucky = ask("vllm-v2==0.33.0", config=config_of(nested=[2, 16, 29]))
    assert lucky.defaulted
    assert lucky.intended.boundaries == lucky.wiring.boundaries
    unlucky = ask("vllm-v2==0.33.0", config=config_of(nested=[1, 9, 20]))
    assert unlucky.intended.boundaries == (1, 9, 20)
    assert unlucky.wiring.boundaries == (2, 16, 29)


def test_dflash_was_one_block_early_in_0_20_and_0_21():
    config = {"architectures": ["DFlashDraftModel"], "model_type": "qwen3", "hidden_size": 4096}
    config |= {"num_hidden_layers": 5, "dflash_config": {"target_layer_ids": [1, 9, 17, 25, 33]}}
    case = {"config": config, "target": QWEN3, "depth": 36, "method": "dflash"}
    assert fed("vllm-v1==0.21.0", **case) == (1, 9, 17, 25, 33)
    assert fed("vllm-v1==0.22.0", **case) == (2, 10, 18, 26, 34)
    assert fed("vllm-v2==0.24.0", **case) == (2, 10, 18, 26, 34)
    # Executed on the extracted resolver: a non-empty eagle_config without ids kills the DFlash ids on V1.
    trapped = case | {"config": config | {"eagle_config": {"use_aux_hidden_state": True}}}
    assert fed("vllm-v1==0.33.0", **trapped) == (2, 18, 33)
    assert fed("vllm-v2==0.33.0", **trapped) == (2, 10, 18, 26, 34)


def test_speculators_dflash_ids_are_boundaries():
    config = {"architectures": ["DFlashDraftModel"], "speculators_model_type": "dflash", "hidden_size": 4096}
    config |= {"aux_hidden_state_layer_ids": [2, 10, 18, 26, 34]}
    for runtime in ("vllm-v1==0.20.0", "vllm-v1==0.33.0", "vllm-v2==0.33.0"):
        assert fed(runtime, config=config, target=QWEN3, depth=36, method="dflash") == (2, 10, 18, 26, 34)


@pytest.mark.parametrize(
    ("runtime", "extra", "expected"),
    [
        ("vllm-v1==0.17.0", {"norm_before_fc": True}, ("none", ("norm_before_fc",))),
        ("vllm-v1==0.18.0", {"norm_before_fc": True}, ("joint", ())),
        (
            "vllm-v1==0.18.0",
            {"norm_before_fc": True, "speculators_model_type": "eagle3"},
            ("none", ("norm_before_fc",)),
        ),
        ("vllm-v1==0.19.0", {"norm_before_fc": True, "speculators_model_type": "eagle3"}, ("joint", ())),
        ("vllm-v1==0.21.0", {"eagle_config": {"norm_before_fc": True}}, ("none", ("norm_before_fc",))),
        ("vllm-v1==0.22.0", {"eagle_config": {"norm_before_fc": True}}, ("joint", ())),
        ("vllm-v1==0.24.0", {"fc_norm": True, "speculators_model_type": "eagle3"}, ("none", ("fc_norm",))),
        ("vllm-v1==0.25.0", {"fc_norm": True, "speculators_model_type": "eagle3"}, ("per_feature", ())),
        ("vllm-v1==0.33.0", {"bias": True}, ("none", ("bias",))),
    ],
)
def test_norm_flags(runtime, extra, expected):
    found = ask(runtime, config=config_of(**extra))
    assert (found.wiring.pre_norm, found.unread_flags) == expected


def test_norm_before_residual_defaults_to_true_for_speculators_only():
    assert ask("vllm-v1==0.33.0", config=config_of()).wiring.norm_before_residual is False
    speculators = config_of(speculators_model_type="eagle3")
    assert ask("vllm-v1==0.33.0", config=speculators).wiring.norm_before_residual is True


def test_a_trained_embedding_is_discarded_before_0_11_1():
    assert ask("vllm-v1==0.11.0", config=config_of()).embedding == "target"
    assert ask("vllm-v1==0.11.1", config=config_of()).embedding == "own"


def test_v2_ignores_use_aux_hidden_state_until_0_33():
    config = config_of() | {"eagle_config": {"use_aux_hidden_state": False}}
    assert ask("vllm-v1==0.32.0", config=config).wiring.features[0].state == "final_norm"
    assert ask("vllm-v2==0.32.0", config=config).wiring is None
    assert ask("vllm-v2==0.33.0", config=config).wiring.features[0].state == "final_norm"


def test_methods_by_runner():
    config = config_of(top=[1, 9, 20])
    assert "V2 runner" in ask("vllm-v1==0.33.0", config=config, method="dspark", target=LLAMA).reason
    assert "removed Medusa" in ask("vllm-v1==0.33.0", config=config, method="medusa").reason
    assert ask("vllm-v1==0.32.0", config=config, method="medusa").wiring.features[0].state == "final_norm"


@pytest.mark.parametrize(("body", "expected"), [("qwen3", (1, 9, 20, 28)), ("llama", "number of planes")])
def test_a_speculators_body_decides_how_top_level_ids_are_counted(body, expected):
    speculators = config_of(
        top=[1, 9, 20, 28], speculators_model_type="eagle3", transformer_layer_config={"model_type": body}
    )
    assert fed("vllm-v1==0.24.0", config=speculators) == expected


def test_whose_head_a_method_runs_with():
    assert ask("vllm-v1==0.11.0", config=config_of()).head == "own"
    assert ask("vllm-v1==0.11.0", config=config_of(), method="medusa").head == ""


def test_a_width_that_kills_is_seen_behind_a_death_at_load():
    """Otherwise a loading death would make an edit look right that the runtime cannot run with."""
    config = config_of(top=[1, 3, 5, 7]) | {"architectures": ["NobodyHasThis"]}
    found = ask("vllm-v1==0.33.0", config=config)
    assert found.feed_crash is not None
    assert found.feed_crash.cause == "number of planes"


def test_a_stale_list_elsewhere_is_counted_in_advice():
    """The user writes one key; a list that stays beside it can still decide how wide ``fc`` is built."""
    query = Query(
        method="dflash",
        config={"architectures": ["DFlashDraftModel"], "dflash_config": {"layer_ids": [0, 0]}},
        num_hidden_layers=32,
        hidden_size=64,
        architectures=(LLAMA,),
        fc_out=64,
    )
    declared = Wiring.from_boundaries((2,), dim=64)
    (choice,) = choose("vllm-v1==0.25.0")
    advice = express(choice.rules, choice.runner, choice.version, query, declared)
    assert advice is not None
    assert (advice.key, advice.ids) == ("dflash_config.target_layer_ids", (1,))
