"""Whatever stands in a config, reading it ends: with readings, a finding, or an InputError that names the key."""

from __future__ import annotations

import time

import pytest
from dialect_cases import CASES
from hypothesis import given, settings
from hypothesis import strategies as st

from featurecontract.dialects import ID_KEYS, Target, recognise
from featurecontract.errors import InputError

TARGET = Target(num_hidden_layers=36, hidden_size=4096)
NOT_LISTS = {
    "text": "[1, 17, 32]",
    "number": 17,
    "flag": True,
    "object": {"0": 1},
    "float": 1.5,
    "million": list(range(10**6)),
    "just too many": [1] * 1025,
}
NOT_IDS = {
    "text": "17",
    "float": 17.0,
    "flag": True,
    "list": [17],
    "null": None,
    "object": {},
    "huge": 10**18,
    "hugely negative": -(2**63),
}


def put(key, value):
    for part in reversed(key.split(".")):
        value = {part: value}
    return value


@pytest.mark.parametrize("kind", NOT_LISTS)
@pytest.mark.parametrize("key", ID_KEYS)
def test_ids_that_are_no_list(key, kind):
    with pytest.raises(InputError) as caught:
        recognise(put(key, NOT_LISTS[kind]), TARGET, source="drafter/config.json")
    (problem,) = caught.value.problems
    assert (caught.value.source, problem.place) == ("drafter/config.json", key)
    assert problem.message == "is not a list of at most 1024 layer ids"
    assert problem.next_step
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("kind", NOT_IDS)
@pytest.mark.parametrize("key", ID_KEYS)
def test_an_id_that_is_no_integer(key, kind):
    with pytest.raises(InputError) as caught:
        recognise(put(key, [1, NOT_IDS[kind]]), TARGET)
    assert [item.place for item in caught.value.problems] == [f"{key}[1]"]


@pytest.mark.parametrize(
    ("config", "place"),
    [
        ({"architectures": ["DFlashDraftModel"], "num_hidden_layers": "5"}, "num_hidden_layers"),
        ({"architectures": ["DFlashDraftModel"], "num_hidden_layers": -5}, "num_hidden_layers"),
        ({"architectures": ["DFlashDraftModel"], "num_hidden_layers": 2**40}, "num_hidden_layers"),
        ({"dspark_target_layer_ids": [1], "hc_mult": "4"}, "hc_mult"),
        ({"dspark_target_layer_ids": [1], "hc_mult": True}, "hc_mult"),
    ],
)
def test_a_number_that_is_none(config, place):
    with pytest.raises(InputError) as caught:
        recognise(config, TARGET)
    assert caught.value.problems[0].place == place


def test_a_draft_depth_of_billions_is_no_list_of_billions():
    started = time.monotonic()
    config = {"architectures": ["DFlashDraftModel"], "num_hidden_layers": 2**31 - 1}
    recognition = recognise(config, TARGET)
    assert recognition.candidates == ()
    assert [item.slug for item in recognition.findings] == ["features-missing"]
    assert time.monotonic() - started < 5


def test_absurdly_many_streams_are_not_believed():
    config = {"dspark_target_layer_ids": [1], "hc_mult": 10**9}
    (only,) = recognise(config, TARGET).candidates
    assert only.wiring.features[0].streams == 1


@pytest.mark.parametrize("wrong", [[], "x", 3, None, True, {"a": 1}])
@pytest.mark.parametrize(
    "key",
    [
        "architectures", "model_type", "eagle_config", "dflash_config", "text_config", "transformer_layer_config",
        "model", "speculators_config", "speculators_model_type", "speculators_version", "fc_norm", "norm_output",
        "target_hidden_size", "medusa_num_heads", "ptd_token_id", "markov_rank",
    ],
)  # fmt: skip
def test_a_wrong_type_elsewhere_raises_nothing(key, wrong):
    for case in CASES:
        recognise(case.config | {key: wrong}, TARGET)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
KEYS = sorted({key for case in CASES for key in case.config} | {key.split(".")[0] for key in ID_KEYS})
NAMES = sorted({name for case in CASES for name in case.config.get("architectures", ())})
INNER = sorted({key.split(".")[-1] for key in ID_KEYS} | {"use_aux_hidden_state", "block_size", "projector_type"})
LIKELY = st.one_of(
    JSON,
    st.lists(st.integers(-3, 40), max_size=6),
    st.lists(st.sampled_from(NAMES), max_size=2),
    st.dictionaries(st.sampled_from(INNER), JSON | st.lists(st.integers(-3, 40), max_size=6), max_size=4),
)


@settings(max_examples=400, deadline=None)
@given(
    config=st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=5), LIKELY, max_size=8),
    depth=st.integers(1, 200),
)
def test_any_config_gives_readings_findings_or_one_error(config, depth):
    target = Target(num_hidden_layers=depth, hidden_size=64)
    try:
        recognition = recognise(config, target)
    except InputError as error:
        unhelpful = [item for item in error.problems if not (item.place and item.next_step)]
        if unhelpful:
            raise
        return
    for candidate in recognition.candidates:
        assert candidate.wiring.features
        assert all(item.boundary is None or 0 <= item.boundary <= depth for item in candidate.wiring.features)
        assert 0 <= candidate.confidence <= 1
    # Nothing is silent: no reading without a reason, and no empty answer without a finding.
    assert recognition.candidates or recognition.findings
    assert all(len(item.message) < 20_000 for item in recognition.findings)
