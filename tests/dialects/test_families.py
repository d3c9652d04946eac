"""Every dialect D1..D28 is recognised, and offers exactly the readings that its trainer's code leaves open."""

from __future__ import annotations

import pytest
from dialect_cases import CASES

from featurecontract.contract import to_boundary
from featurecontract.dialects import FAMILIES, Target, dialect_named, recognise
from featurecontract.errors import UsageError

EACH = pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])


def found(case, config=None):
    return recognise(case.config if config is None else config, Target(num_hidden_layers=case.depth, hidden_size=4096))


def test_every_family_has_a_case():
    assert {case.code for case in CASES} == {f"D{number}" for number in range(1, 29)}
    assert {family.code for family in FAMILIES} == {case.code for case in CASES}
    assert len({family.name for family in FAMILIES}) == len(FAMILIES)


@EACH
def test_recognised(case):
    recognition = found(case)
    assert (recognition.code, recognition.method) == (case.code, case.method)
    assert recognition.findings == ()
    assert recognition.recurrent_state == case.recurrent


@EACH
def test_readings(case):
    recognition = found(case)
    assert tuple(str(item.wiring) for item in recognition.candidates) == case.readings
    if case.conventions:
        assert tuple(item.convention for item in recognition.candidates) == case.conventions


@EACH
def test_a_reading_states_where_its_boundaries_come_from(case):
    candidates = found(case).candidates
    order = [item.confidence for item in candidates]
    assert order == sorted(order, reverse=True)
    assert sum(order) <= 1.0001
    for item in candidates:
        assert item.reason
        assert "\n" not in item.reason
        if item.convention is not None and item.ids_key:
            translated = [to_boundary(each, item.convention) for each in item.ids]
            assert sorted(translated) == sorted(item.wiring.boundaries)


@EACH
def test_width_of_a_reading(case):
    for item in found(case).candidates:
        assert item.wiring.width == 4096 * len(item.wiring.features)
        assert [feature.slot for feature in item.wiring.features] == list(range(len(item.wiring.features)))


@EACH
def test_a_null_everywhere_changes_nothing(case):
    """transformers writes null for what a class knows and nobody set: it is a key that is not there."""
    nulls = {
        "target_hidden_size": None,
        "fc_norm": None,
        "norm_output": None,
        "ptd_token_id": None,
        "medusa_num_heads": None,
    }
    recognition = found(case, nulls | case.config)
    assert recognition.code == case.code
    assert tuple(str(item.wiring) for item in recognition.candidates) == case.readings


def test_a_dialect_can_be_named():
    config = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": [4, 20, 32]},
    }
    target = Target(num_hidden_layers=36, hidden_size=4096)
    assert recognise(config, target, dialect="D8").dialect == "mla-eagle3"
    assert recognise(config, target, dialect="modelopt-nested").code == "D9"
    for family in FAMILIES:
        assert recognise(config, target, dialect=family.name).family is family
    with pytest.raises(UsageError, match=r"unknown dialect 'eagle4'; known: .*specforge-nested"):
        dialect_named("eagle4")


def test_streams_are_averaged_by_the_native_dspark():
    config = {"architectures": ["DeepseekV4ForCausalLM"], "dspark_target_layer_ids": [1, 9], "hc_mult": 4}
    (only,) = recognise(config, Target(num_hidden_layers=43, hidden_size=4096)).candidates
    assert {(item.reduction, item.streams, item.dim) for item in only.wiring.features} == {("mean", 4, 4096)}
