"""Every rule file: what `express` proposes is fed when it is written, and no config makes `resolve` raise."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import featurecontract.runtimes
from featurecontract.contract import Wiring
from featurecontract.dialects import ID_KEYS
from featurecontract.runtimes import NAMES, Query, Resolution, choose, express, express_from, resolve, rules_of

FILES = sorted(path.stem for path in (Path(featurecontract.runtimes.__file__).parent / "data").glob("*.json"))


def test_every_rule_file_has_a_name():
    assert sorted(NAMES) == FILES


def placed(config, path, value):
    """Return the config with a value at a dotted path."""
    head, _, rest = path.partition(".")
    inner = config.get(head)
    return {**config, head: placed(inner if isinstance(inner, dict) else {}, rest, value) if rest else value}


def without_ids(config, prefix=""):
    out = {}
    for key, value in config.items():
        path = f"{prefix}{key}"
        if path not in ID_KEYS:
            out[key] = without_ids(value, f"{path}.") if isinstance(value, dict) else value
    return out


def methods_of(name):
    return sorted({item.method for item in rules_of(name).methods})


def architectures_of(name):
    listed = {arch for item in rules_of(name).targets for arch in item.architectures}
    return [(), ("UnheardOfForCausalLM",), *((arch,) for arch in sorted(listed))]


@st.composite
def questions(draw, name):
    """A runner and version of a runtime, and a plausible drafter on a plausible target."""
    rules = rules_of(name)
    version = draw(st.sampled_from(rules.releases))
    choice = draw(st.sampled_from(choose(f"{name}=={version}")))
    drafters = sorted({arch for item in rules.methods for arch in item.architectures}) or ["LlamaForCausalLMEagle3"]
    config = {"architectures": [draw(st.sampled_from(drafters))], "model_type": "llama", "hidden_size": 64}
    if draw(st.booleans()):
        # What stands in the file now: the advice has to win over it.
        config = placed(config, draw(st.sampled_from(ID_KEYS)), draw(st.lists(st.integers(0, 9), max_size=3)))
    query = Query(
        method=draw(st.sampled_from(methods_of(name))),
        config=config,
        num_hidden_layers=draw(st.integers(1, 96)),
        hidden_size=64,
        architectures=draw(st.sampled_from(architectures_of(name))),
        fc_in=draw(st.sampled_from([None, 64, 128, 192, 256])),
        fc_out=64,
    )
    return choice, query


def spelled_query(query, spelled):
    """Write an edit as the advice says: the ids at the key, or every list of ids left out."""
    if spelled.ids is None:
        return replace(query, config=without_ids(query.config))
    if spelled.where == "serving":
        return replace(query, serving_ids=spelled.ids)
    side = "config" if spelled.where == "drafter" else "target_config"
    return replace(query, **{side: placed(getattr(query, side), spelled.key, list(spelled.ids))})


@pytest.mark.parametrize("name", FILES)
@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_what_is_expressed_resolves_forward_to_the_declared_wiring(name, data):
    choice, query = data.draw(questions(name))
    depth = query.num_hidden_layers
    boundaries = data.draw(st.lists(st.integers(0, depth), min_size=1, max_size=4, unique=True))
    if data.draw(st.booleans()):
        boundaries = sorted(boundaries)
    declared = Wiring.from_boundaries(tuple(boundaries), dim=64)
    found = express(choice.rules, choice.runner, choice.version, query, declared)
    if found is not None:
        assert found.version == choice.version
        feeds = resolve(choice.rules, choice.runner, choice.version, spelled_query(query, found))
        assert feeds.feed_crash is None
        assert feeds.wiring is not None
        assert feeds.wiring.boundaries == declared.boundaries
    later = express_from(choice.rules, choice.runner, choice.version, query, declared)
    if later is not None:
        feeds = resolve(choice.rules, choice.runner, later.version, spelled_query(query, later))
        assert feeds.feed_crash is None
        assert feeds.wiring.boundaries == declared.boundaries


def test_some_wirings_are_expressed():
    """The property above would hold if nothing ever were."""
    query = Query(
        method="eagle3",
        config={"architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama"},
        num_hidden_layers=61,
        hidden_size=64,
        architectures=("LlamaForCausalLM",),
    )
    (choice,) = choose("sglang==0.5.12")
    found = express(choice.rules, choice.runner, choice.version, query, Wiring.from_boundaries((3, 31, 59), dim=64))
    assert found is not None
    assert found.ids == (2, 30, 58)


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)
READ = (
    *ID_KEYS,
    "architectures",
    "model_type",
    "num_hidden_layers",
    "hidden_size",
    "target_hidden_size",
    "norm_before_fc",
    "eagle_config.norm_before_fc",
    "fc_norm",
    "norm_output",
    "norm_before_residual",
    "num_aux_hidden_states",
    "bias",
    "eagle_config",
    "dflash_config",
)
ids = st.lists(st.integers(-5, 100) | st.integers(-(2**63), 2**63), max_size=6)


@st.composite
def any_config(draw):
    config = draw(st.dictionaries(st.text(max_size=4), json_values, max_size=2))
    for path in draw(st.lists(st.sampled_from(READ), max_size=5)):
        config = placed(config, path, draw(ids | json_values))
    return config


@pytest.mark.parametrize("name", FILES)
@settings(deadline=None, max_examples=100)
@given(data=st.data())
def test_resolve_answers_for_any_config(name, data):
    rules = rules_of(name)
    version = data.draw(
        st.sampled_from(rules.releases)
        | st.sampled_from(["0", "0.0.1.dev3+g1234", "99!1", "1000000.0rc1", "b1", "b999999999"])
    )
    runner = data.draw(st.sampled_from([name, *(item.name for item in rules.runners)]))
    query = Query(
        method=data.draw(st.sampled_from(methods_of(name)) | st.text(max_size=5)),
        config=data.draw(any_config()),
        num_hidden_layers=data.draw(st.integers(1, 10_000)),
        hidden_size=data.draw(st.integers(1, 2**20)),
        architectures=data.draw(st.sampled_from(architectures_of(name)) | st.lists(st.text(max_size=5)).map(tuple)),
        target_config=data.draw(any_config()),
        serving_ids=data.draw(st.none() | ids.map(tuple)),
        fc_in=data.draw(st.none() | st.integers(1, 2**40)),
        fc_out=data.draw(st.none() | st.integers(1, 2**40)),
        own_embedding=data.draw(st.booleans()),
        own_head=data.draw(st.booleans()),
    )
    found = resolve(rules, runner, version, query)
    assert isinstance(found, Resolution)
    assert found.wiring is not None or found.reason
    if found.wiring is not None:
        assert [item.slot for item in found.wiring.features] == list(range(len(found.wiring.features)))
