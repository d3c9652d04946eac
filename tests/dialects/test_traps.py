"""The traps of published configs: what is absent, what contradicts itself, what cannot be, what two formats share."""

from __future__ import annotations

import pytest
from dialect_cases import LLAMA3, MODELOPT, NESTED, block, eagle, speculators

from featurecontract.dialects import ID_KEYS, DraftConfig, Target, recognise, spaced_layer_ids

TARGET = Target(num_hidden_layers=36, hidden_size=4096)
L36 = "h[2], h[18], h[33]"
TOP = "eagle_aux_hidden_state_layer_ids"


def readings(config, target=TARGET):
    return [str(item.wiring) for item in recognise(config, target).candidates]


def slugs(config, target=TARGET):
    return [item.slug for item in recognise(config, target).findings]


def put(key, value):
    """Return a config with a value at a dotted key."""
    for part in reversed(key.split(".")):
        value = {part: value}
    return value


@pytest.mark.parametrize("key", ID_KEYS)
def test_absent_null_empty_and_a_list_are_four_statements(key):
    stated = {"absent": {}, "null": put(key, None), "empty": put(key, []), "list": put(key, [1, 2])}
    assert {state: DraftConfig(config).ids_at[key].state for state, config in stated.items()} == {
        state: state for state in stated
    }
    assert DraftConfig(stated["list"]).ids_at[key].ids == (1, 2)


@pytest.mark.parametrize("key", ID_KEYS)
def test_no_place_of_ids_is_overlooked(key):
    """A list at any known key gives a reading of that very list, whoever wrote the rest of the config."""
    for architecture in ("LlamaForCausalLMEagle3", "DFlashDraftModel", "SomethingElse"):
        config = {"architectures": [architecture]} | put(key, [4, 20])
        recognition = recognise(config, TARGET)
        read = {item.ids_key for item in recognition.candidates if item.ids == (4, 20)}
        assert read == {key} or [item.slug for item in recognition.findings] == ["ids-ambiguous"], architecture


@pytest.mark.parametrize("empty", [None, []])
@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (lambda ids: eagle() | {"eagle_config": {NESTED: ids}}, [L36]),
        (lambda ids: speculators(eagle_aux_hidden_state_layer_ids=ids), [L36]),
        (lambda ids: block(ids, num_hidden_layers=2), ["h[2], h[34]"]),
        # This format requires its ids; nothing stands in for them.
        (lambda ids: speculators("dflash", aux_hidden_state_layer_ids=ids), []),
    ],
)
def test_null_and_empty_mean_the_trainer_s_default(config, expected, empty):
    assert readings(config(empty)) == expected
    assert slugs(config(empty)) == ([] if expected else ["features-missing"])


def test_a_list_that_the_dialect_does_not_read_is_said():
    config = {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "layers_to_capture": [4, 20, 32],
    }
    (finding,) = recognise(config, TARGET).findings
    assert (finding.slug, finding.actual) == ("ids-ambiguous", [4, 20, 32])
    assert "layers_to_capture is [4, 20, 32], which speculators-0.4 does not read" in finding.message


@pytest.mark.parametrize(
    ("config", "first", "second"),
    [
        (eagle([1, 17, 32], **{TOP: [2, 18, 34]}), f"eagle_config.{TOP}", TOP),
        (eagle([1, 17, 32], text_config={TOP: [1, 17, 31]}), f"eagle_config.{TOP}", f"text_config.{TOP}"),
        (block([1, 9], target_layer_ids=[2, 10]), "dflash_config.target_layer_ids", "target_layer_ids"),
        (
            {"architectures": LLAMA3, "target_layer_ids": [1, 17, 32], TOP: [3, 19, 34]},
            "target_layer_ids",
            TOP,
        ),
    ],
)
def test_two_lists_that_contradict_each_other(config, first, second):
    (finding,) = recognise(config, TARGET).findings
    assert (finding.slug, finding.severity) == ("ids-conflict", "error")
    assert first in finding.message
    assert second in finding.message
    assert finding.next_step


@pytest.mark.parametrize(
    "config",
    [
        eagle([1, 17, 32], **{TOP: [1, 17, 32]}),
        # verl-SpeCo writes the trainer's list and, one higher, the serving one.
        {"architectures": LLAMA3, "target_layer_ids": [1, 17, 32], TOP: [2, 18, 33]},
        {"architectures": LLAMA3, "target_layer_ids": [1, 17, 32], TOP: [1, 17, 32]},
        block([1, 9], target_layer_ids=[1, 9]),
        eagle([1, 17, 32], **{TOP: None}),
        eagle([1, 17, 32], **{TOP: []}),
    ],
)
def test_two_lists_that_agree(config):
    assert slugs(config) == []


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        ([24, 30, 36], ["h[24], h[30], h[36]"]),
        ([24, 30, 35], ["h[25], h[31], h[36]", "h[24], h[30], h[35]"]),
        ([-1, 2, 30], ["embedding, h[3], h[31]"]),
        ([0, 2, 30], ["embedding, h[2], h[30]", "h[1], h[3], h[31]"]),
        # As inputs the list asks for -1, as outputs for h[37]: no reading is left.
        ([-1, 36], []),
        ([37], []),
        ([-2], []),
    ],
)
def test_depth_decides_between_the_conventions(ids, expected):
    config = {"architectures": LLAMA3, "eagle_config": {NESTED: ids} | MODELOPT}
    assert readings(config) == expected
    assert slugs(config) == ([] if expected else ["ids-out-of-range"])


@pytest.mark.parametrize(
    ("config", "bad"),
    [
        (eagle([1, 17, 99]), 99),
        (eagle([1, -7, 99]), -7),
        (block([3, 11, 19, 27, 35, 43]), 43),
        # h[37] does not exist: only the last id is wrong, and 36 is it.
        (block([1, 9, 36]), 36),
        (speculators("dflash", aux_hidden_state_layer_ids=[2, 10, -1]), -1),
        (speculators(architectures=["Eagle3DraftModel"], eagle_aux_hidden_state_layer_ids=[2, -1]), -1),
        ({"architectures": LLAMA3, "aux_hidden_layers": [2, -40]}, -40),
    ],
)
def test_an_impossible_id_is_named(config, bad):
    (finding,) = recognise(config, TARGET).findings
    assert finding.slug == "ids-out-of-range"
    assert f" lists {bad};" in finding.message


def test_a_target_too_shallow_for_the_default():
    (finding,) = recognise({"architectures": LLAMA3}, Target(num_hidden_layers=4, hidden_size=64)).findings
    assert finding.slug == "features-missing"
    assert "its default does not fit 4 layers" in finding.message


def test_unknown_dialect_is_said_and_gives_no_reading():
    recognition = recognise({"architectures": ["BertModel"], "model_type": "bert"}, TARGET)
    assert (recognition.code, recognition.dialect, recognition.method) == ("", "", "other")
    assert recognition.candidates == ()
    assert [item.slug for item in recognition.findings] == ["features-missing"]
    assert "architectures ['BertModel'], model_type 'bert'" in recognition.findings[0].message


def test_minus_one_has_three_meanings():
    deepspec = {"architectures": ["Qwen3Eagle3Model"], "target_layer_ids": [-1, 9]}
    quark = {"architectures": LLAMA3, "aux_hidden_layers": [2, -1]}
    assert readings(deepspec) == ["embedding, h[10]"]
    assert readings(eagle([-1, 9])) == ["embedding, h[10]"]
    assert readings(quark) == ["h[2], norm(h[36])"]
    assert readings(speculators("dflash", aux_hidden_state_layer_ids=[-1, 9])) == []


@pytest.mark.parametrize(
    ("depth", "ids", "expected"),
    [
        (32, [1, 28, 15], "h[2], h[16], h[29]"),
        (36, [32, 1, 17], "h[2], h[18], h[33]"),
        (48, [1, 44, 23], "h[2], h[24], h[45]"),
        (80, [1, 76, 39], "h[2], h[40], h[77]"),
        (94, [1, 90, 46], "h[2], h[47], h[91]"),
    ],
)
def test_hooks_fire_in_layer_order_whatever_modelopt_lists(depth, ids, expected):
    config = {"architectures": LLAMA3, "eagle_config": {NESTED: ids} | MODELOPT}
    first, second = recognise(config, Target(num_hidden_layers=depth, hidden_size=64)).candidates
    assert str(first.wiring) == expected
    assert first.ids == second.ids == tuple(ids)
    assert first.confidence >= 0.9


def test_other_trainers_mean_the_order_that_they_list():
    assert readings(eagle([32, 1, 17]))[0] == "h[33], h[2], h[18]"


@pytest.mark.parametrize(
    ("version", "count"),
    [("0.2.0", 1), ("0.3.0", 2), ("0.4.9.dev1", 2), ("0.5.0", 1), ("0.10.0", 1), ("", 1), (None, 1), (4, 1), ("x", 1)],
)
def test_only_speculators_0_3_and_0_4_recorded_one_block_late(version, count):
    assert len(readings(speculators(speculators_version=version))) == count
    assert L36 in readings(speculators(speculators_version=version))


def test_one_architecture_string_two_conventions():
    zlab = {"architectures": ["DFlashDraftModel"], "dflash_config": {"target_layer_ids": [1, 9, 17, 25, 33]}}
    redhat = {"architectures": ["DFlashDraftModel"], "aux_hidden_state_layer_ids": [2, 10, 18, 26, 34]}
    assert readings(zlab) == readings(redhat) == ["h[2], h[10], h[18], h[26], h[34]"]
    assert [recognise(item, TARGET).code for item in (zlab, redhat)] == ["D17", "D22"]


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (eagle([1, 17, 32], norm_output=True), "unknown"),
        (eagle([1, 17, 32], norm_output=False), "pre_norm"),
        (eagle([1, 17, 32], fc_norm=True), "pre_norm"),
        (speculators(architectures=["Eagle3DraftModel"], norm_output=True), "post_norm"),
        (speculators(architectures=["Eagle3DraftModel"], norm_output=False), "pre_norm"),
        ({"architectures": LLAMA3, "norm_output": True}, "unknown"),
        ({"model_type": "llama_peagle", "norm_output": True}, "unknown"),
    ],
)
def test_norm_output_alone_never_says_what_is_fed_back(config, expected):
    assert recognise(config, TARGET).recurrent_state == expected


def test_number_of_taps_is_not_the_number_of_draft_layers():
    for layers in (1, 2, 5, 6, 8, 36, 40, 10**9):
        assert readings(block([1, 9, 17], num_hidden_layers=layers)) == ["h[2], h[10], h[18]"]
        assert readings(eagle([1, 17, 32], num_hidden_layers=layers))[0] == L36


def test_num_target_layers_is_no_depth_and_no_count():
    for number in (5, 36, 41, None):
        config = {"architectures": ["DFlashDraftModel"], "target_layer_ids": [1, 9], "num_target_layers": number}
        assert readings(config) == ["h[2], h[10]"]


def test_body_of_a_nested_config_wins_over_the_outer_one():
    config = DraftConfig({"hidden_size": 1, "transformer_layer_config": {"hidden_size": 4096}, "vocab_size": 9})
    assert (config.integer("hidden_size"), config.integer("vocab_size"), config.integer("draft_vocab_size")) == (
        4096,
        9,
        None,
    )
    wrapped = DraftConfig({"model_type": "eagle", "model": {"hidden_size": 2}, "text_config": {"hidden_size": 3}})
    assert wrapped.integer("hidden_size") == 2


def test_parallel_drafting_that_is_off_is_no_p_eagle():
    config = {"architectures": LLAMA3, "draft_vocab_size": 32000, "parallel_drafting": False}
    assert recognise(config, TARGET).code == "D6"
    assert recognise(config | {"parallel_drafting": True}, TARGET).code == "D27"


def test_repeated_ids_are_said():
    (finding,) = recognise(eagle([1, 17, 17]), TARGET).findings
    assert finding.slug == "ids-duplicate"
    assert "lists 17 2 times" in finding.message


@pytest.mark.parametrize(
    ("count", "depth", "expected"),
    [
        (1, 36, (18,)),
        (5, 36, (1, 9, 17, 25, 33)),
        (5, 64, (1, 16, 31, 46, 61)),
        (8, 48, (1, 7, 14, 20, 26, 32, 39, 45)),
        (10, 64, (1, 8, 14, 21, 28, 34, 41, 48, 54, 61)),
        (5, 40, (1, 10, 19, 28, 37)),
    ],
)
def test_spacing_is_that_of_the_published_dflash_drafters(count, depth, expected):
    assert spaced_layer_ids(count, depth) == expected
