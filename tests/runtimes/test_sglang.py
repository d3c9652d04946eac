"""SGLang's rules, against what the wheels 0.4.6 to 0.5.23 do."""

from __future__ import annotations

import pytest
from runtime_cases import GPT_OSS, KIMI, LLAMA, QWEN3, ask, config_of, fed


@pytest.mark.parametrize(
    ("version", "target", "depth", "nested", "expected"),
    [
        # The flip of 0.5.13 on DeepSeek and Kimi (sgl-project/sglang#25454).
        ("0.5.11", KIMI, 61, [2, 30, 58], (3, 31, 59)),
        ("0.5.12", KIMI, 61, [2, 30, 58], (3, 31, 59)),
        ("0.5.12.post1", KIMI, 61, [2, 30, 58], (3, 31, 59)),
        ("0.5.13", KIMI, 61, [2, 30, 58], (2, 30, 58)),
        ("0.5.13rc1", KIMI, 61, [2, 30, 58], (2, 30, 58)),
        ("0.5.23", KIMI, 61, [2, 30, 58], (2, 30, 58)),
        ("0.5.23", KIMI, 61, [1, 29, 57], (2, 30, 58)),
        ("0.5.12", KIMI, 61, [1, 29, 57], (2, 30, 58)),
        # Case 10 of the ambiguous ones: the fix for Kimi breaks a SpecForge list whose first id is not 1.
        ("0.5.12", KIMI, 45, [4, 20, 40], (5, 21, 41)),
        ("0.5.13", KIMI, 45, [4, 20, 40], (4, 20, 40)),
        # The embedding.
        ("0.5.13", KIMI, 61, [0, 3, 31], "embedding"),
        ("0.5.14", KIMI, 61, [0, 3, 31], (0, 3, 31)),
        ("0.5.14", KIMI, 61, [-1, 2, 30], "out of range"),
        ("0.5.21", LLAMA, 32, [-1, 2, 15], "embedding"),
        ("0.5.22", LLAMA, 32, [-1, 2, 15], (0, 3, 16)),
        ("0.5.6", QWEN3, 36, [-1, 2, 15], (0, 3, 16)),
        # The last layer.
        ("0.5.23", LLAMA, 32, [1, 15, 31], "last state"),
        ("0.5.16", GPT_OSS, 36, [24, 30, 36], "out of range"),
        ("0.5.17", GPT_OSS, 36, [24, 30, 36], (24, 30, 36)),
        ("0.5.17", GPT_OSS, 36, [1, 17, 32], (2, 18, 33)),
        # Order and duplicates: visit order, each block once.
        ("0.5.23", LLAMA, 32, [28, 1, 15], (2, 16, 29)),
        ("0.5.23", LLAMA, 32, [1, 15, 15], "number of planes"),
        # No ids were read before 0.4.9.
        ("0.4.8.post1", LLAMA, 32, [5, 6, 7], (2, 16, 29)),
        ("0.4.9", LLAMA, 32, [5, 6, 7], (6, 7, 8)),
    ],
)
def test_nested_ids(version, target, depth, nested, expected):
    assert fed(f"sglang=={version}", config=config_of(nested=nested), target=target, depth=depth) == expected


@pytest.mark.parametrize("nested", [None, [], "1,2,3", {"a": 1}, [1, "2", 3]])
def test_anything_else_at_the_key_means_the_default(nested):
    config = config_of() | {"eagle_config": {"eagle_aux_hidden_state_layer_ids": nested}}
    found = ask("sglang==0.5.23", config=config)
    assert found.defaulted
    assert found.wiring.boundaries == (2, 16, 29)


def test_top_level_ids_are_not_read():
    found = ask("sglang==0.5.23", config=config_of(top=[0, 3, 16]))
    assert found.defaulted
    assert found.wiring.boundaries == (2, 16, 29)
    assert found.intended.boundaries == (1, 4, 17)  # what they would have given at the key it reads


def test_minimax_m3_vl_shifts_its_default_too():
    found = ask("sglang==0.5.18", config=config_of(), target="MiniMaxM3SparseForConditionalGeneration", depth=60)
    assert found.wiring.boundaries == (3, 31, 58)


def test_a_checkpoint_without_model_type_is_refused():
    config = config_of(nested=[1, 15, 28])
    del config["model_type"]
    crash = ask("sglang==0.5.23", config=config).crash
    assert (crash.when, crash.cause) == ("at load", "needs model_type")
    assert "model_type" in crash.message


def test_a_target_without_the_setter_is_refused():
    found = ask("sglang==0.5.23", config=config_of(), target="MixtralForCausalLM")
    assert found.wiring is None
    assert "does not implement set_eagle3_layers_to_capture" in found.crash.message


def test_graph_replay_uses_the_default_before_0_5_11():
    def slugs(version, ids):
        return [item.slug for item in ask(f"sglang=={version}", config=config_of(nested=ids)).cautions]

    assert "ids-defaulted" in slugs("0.5.10", [5, 6, 7])
    assert "ids-defaulted" not in slugs("0.5.11", [5, 6, 7])
    assert "ids-defaulted" not in slugs("0.5.10", [1, 15, 28])  # the default, spelled out


def test_gemma3_loses_its_residual_from_0_5_17():
    def slugs(version):
        case = {"config": config_of(nested=[1, 15, 28]), "target": "Gemma3ForCausalLM"}
        return [item.slug for item in ask(f"sglang=={version}", **case).cautions]

    assert slugs("0.5.16") == []
    assert slugs("0.5.17") == ["residual-missing"]


@pytest.mark.parametrize(
    ("version", "flags", "expected"),
    [
        ("0.5.16", {"norm_before_fc": True}, ("none", ("norm_before_fc",))),
        ("0.5.17", {"norm_before_fc": True}, ("joint", ())),
        ("0.5.17", {"eagle_config": {"norm_before_fc": True}}, ("joint", ())),
        ("0.5.11", {"fc_norm": True}, ("none", ("fc_norm",))),
        ("0.5.12", {"fc_norm": True}, ("per_feature", ())),
        ("0.5.23", {"norm_before_residual": True}, ("none", ("norm_before_residual",))),
    ],
)
def test_norm_flags(version, flags, expected):
    found = ask(f"sglang=={version}", config=config_of(**flags))
    assert (found.wiring.pre_norm, found.unread_flags) == expected


def test_the_mla_drafter_reads_its_norms_from_0_5_13():
    mla = {"architectures": ["Eagle3DeepseekV2ForCausalLM"], "fc_norm": True, "norm_output": True}
    old = ask("sglang==0.5.12", config=config_of(**mla), target=KIMI, depth=61)
    new = ask("sglang==0.5.13", config=config_of(**mla), target=KIMI, depth=61)
    assert (old.wiring.pre_norm, old.wiring.recurrent_state) == ("none", "pre_norm")
    assert (new.wiring.pre_norm, new.wiring.recurrent_state) == ("per_feature", "post_norm")


def test_without_aux_states_the_last_state_is_fed():
    config = config_of() | {"eagle_config": {"use_aux_hidden_state": False}}
    (feature,) = ask("sglang==0.5.23", config=config).wiring.features
    assert (feature.boundary, feature.state) == (32, "final_norm")
    assert ask("sglang==0.5.7", config=config).wiring.boundaries == (2, 16, 29)  # not read before 0.5.8


def test_width_is_three_planes_before_0_5_12():
    config = config_of(nested=[1, 9, 15, 28])
    old = ask("sglang==0.5.11", config=config, fc_in=4 * 4096)
    assert (old.crash.when, old.crash.cause) == ("at load", "number of planes")
    assert ask("sglang==0.5.12", config=config, fc_in=4 * 4096).crash is None


def test_one_plane_of_equal_width_skips_the_projection():
    assert ask("sglang==0.5.23", config=config_of(nested=[15]), fc_in=4096).skips_projection
    assert not ask("sglang==0.5.23", config=config_of(nested=[1, 15]), fc_in=8192).skips_projection


def test_the_embedding_is_the_targets_unless_the_widths_differ():
    assert ask("sglang==0.5.23", config=config_of()).embedding == "target"
    assert ask("sglang==0.5.23", config=config_of(target_hidden_size=8192)).embedding == "own"


def test_an_unnamed_target_shows_every_alternative():
    found = ask("sglang==0.5.23", config=config_of(nested=[2, 15, 28]), target=None)
    assert found.depends
    assert found.wiring is None
    assert {wiring.boundaries for wiring in found.alternatives.values()} >= {(3, 16, 29), (2, 15, 28)}


def test_dflash_ids_are_layer_outputs():
    config = {"architectures": ["DFlashDraftModel"], "model_type": "qwen3", "hidden_size": 4096}
    config |= {"num_hidden_layers": 5, "dflash_config": {"target_layer_ids": [1, 9, 17, 25, 33]}}
    case = {"target": QWEN3, "depth": 36, "method": "dflash"}
    assert fed("sglang==0.5.23", config=config, **case) == (2, 10, 18, 26, 34)
    del config["dflash_config"]
    assert fed("sglang==0.5.23", config=config, **case) == (2, 10, 18, 26, 34)  # its default for five draft layers
    assert "from 0.5.11" in ask("sglang==0.5.10", config=config, **case).reason


def test_dflash_on_muse_glimmer_depends_on_the_drafter():
    config = {"model_type": "muse", "hidden_size": 4096, "num_hidden_layers": 5}
    config |= {"dflash_config": {"target_layer_ids": [1, 15, 27]}}
    case = {"target": "MuseGlimmerForCausalLM", "method": "dflash"}

    def feeds(name, ids=(1, 15, 27)):
        listed = {"architectures": [name], "dflash_config": {"target_layer_ids": list(ids)}}
        return fed("sglang==0.5.23", config=config | listed, **case)

    assert feeds("DFlashDraftModel") == (1, 15, 27)
    assert feeds("DFlash2DraftModel") == (2, 16, 28)
    assert feeds("MuseGlimmerAssistantModel") == (2, 16, 28)
    assert feeds("DFlashDraftModel", (0, 15, 31)) == (0, 15, 31)
    assert feeds("DFlashDraftModel", (1, 15, 32)) == "last state"
    assert feeds("DFlash2DraftModel", (1, 15, 31)) == "last state"


@pytest.mark.parametrize(
    ("version", "target", "ids", "expected"),
    [
        ("0.5.18", "Qwen3_5ForCausalLM", [1, 15, 27], (1, 15, 27)),
        ("0.5.22", "Qwen3_5ForCausalLM", [1, 15, 27], (2, 16, 28)),
        ("0.5.22", "Qwen3_5ForCausalLM", [1, 15, 30], (2, 16, 31)),
        ("0.5.22", "Qwen3_5ForCausalLM", [1, 15, 31], "last state"),
        ("0.5.22", "Qwen3_5ForCausalLM", [27, 1, 15], "unsorted ids"),
        ("0.5.22", "Qwen3_5ForCausalLM", [1, 1, 15], "unsorted ids"),
        # The last layer's output is never captured where EAGLE-3's list is not either: the same list is used.
        ("0.5.23", QWEN3, [1, 15, 31], "last state"),
        ("0.5.23", LLAMA, [1, 15, 31], "last state"),
        ("0.5.23", GPT_OSS, [1, 15, 31], (2, 16, 32)),
        ("0.5.23", "InklingForConditionalGeneration", [1, 15, 31], (2, 16, 32)),
    ],
)
def test_dflash_ids_by_target(version, target, ids, expected):
    config = {"architectures": ["DFlashDraftModel"], "model_type": "qwen3", "hidden_size": 4096}
    config |= {"num_hidden_layers": 5, "dflash_config": {"target_layer_ids": ids}}
    assert fed(f"sglang=={version}", config=config, target=target, method="dflash") == expected
