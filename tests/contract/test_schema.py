"""The JSON Schema and our own reader accept the same contracts."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import jsonschema
import pytest
from contract_values import FULL, MINIMAL, SHA, changed
from hypothesis import example, given, settings
from hypothesis import strategies as st

from featurecontract.contract import contract_from_dict, contract_to_dict
from featurecontract.contract._decode import shape_problems

ROOT = Path(__file__).resolve().parents[2]
PACKAGED = ROOT / "featurecontract" / "contract" / "schema" / "feature_contract-1.schema.json"
SCHEMA = json.loads(PACKAGED.read_text("utf-8"))
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)


def agree(value) -> bool:
    ours, theirs = shape_problems(value), list(VALIDATOR.iter_errors(value))
    assert bool(ours) == bool(theirs), f"ours: {ours[:3]}, JSON Schema: {theirs[:1]}"
    return not ours


def test_the_schema_is_valid_and_published_unchanged():
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    assert (ROOT / "contracts" / "schema" / PACKAGED.name).read_bytes() == PACKAGED.read_bytes()


@pytest.mark.parametrize("value", [MINIMAL, FULL])
def test_both_accept_what_we_write(value):
    assert agree(value)
    assert agree(contract_to_dict(contract_from_dict(value, source="c")))


def paths(value, path=""):
    """Every path of a value, such as ``features[1].boundary``."""
    if isinstance(value, dict):
        for key, entry in ((k, v) for k, v in value.items() if k.isidentifier()):
            yield f"{path}.{key}" if path else key
            yield from paths(entry, f"{path}.{key}" if path else key)
    elif isinstance(value, list):
        for index, entry in enumerate(value):
            yield f"{path}[{index}]"
            yield from paths(entry, f"{path}[{index}]")


PATHS = sorted(paths(FULL))
EDGES = [
    None,
    True,
    False,
    0,
    -1,
    1,
    1.0,
    0.0,
    -0.0,
    -1.0,
    1.5,
    1e16,
    1e300,
    1000,
    1001,
    10_000,
    10_001,
    100_000,
    100_001,
    2**31,
    2**31 + 1,
    -(2**31),
    -(2**31) - 1,
    2**53,
    2**53 + 1,
    2**64 - 1,
    "",
    "x",
    "1.0",
    "1.1",
    "1.0\n",
    "n" * 4096,
    "n" * 4097,
    "\U0001f600" * 4096,
    SHA,
    SHA + "\n",
    SHA.upper(),
    SHA[:-1],
    "residual",
    "none",
    "offset",
    [],
    [0],
    [1.0],
    [-1],
    [None],
    ["x"],
    [[]],
    {},
    {"a": 1},
    {"slot": 0, "dim": 1},
    {"size": 1},
]


@pytest.mark.parametrize("path", PATHS)
def test_every_key_with_every_edge_value(path):
    accepted = [agree(changed(FULL, path, value)) for value in [..., *copy.deepcopy(EDGES)]]
    assert not all(accepted) or path.startswith("rope.scaling."), "nothing that is wrong here was refused"


@pytest.mark.parametrize("path", [path for path in PATHS if not path.endswith("]")])
def test_an_unknown_key_beside_every_key(path):
    assert agree(changed(FULL, f"{path}_x", 1)) == path.startswith("rope.scaling.")


json_values = st.recursive(
    st.sampled_from(EDGES)
    | st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(json_values)
@example({})
@example([])
def test_any_json(value):
    agree(value)


@settings(max_examples=300)
@given(st.sampled_from([MINIMAL, FULL]), st.data())
def test_contracts_with_a_few_changes(base, data):
    value = copy.deepcopy(base)
    for _ in range(data.draw(st.integers(0, 4))):
        path = data.draw(st.sampled_from(sorted(paths(value)) or ["name"]))
        kind = data.draw(st.sampled_from(["replace", "remove", "unknown", "swap"]))
        if kind == "replace":
            value = changed(value, path, data.draw(json_values))
        elif kind == "remove":
            value = changed(value, path, ...)
        elif kind == "unknown" and not path.endswith("]"):
            value = changed(value, f"{path}_x", data.draw(json_values))
        else:
            # A value that is right somewhere else.
            other = data.draw(st.sampled_from([p for p in PATHS if "[" not in p]))
            found = FULL
            for part in other.split("."):
                found = found[part]
            value = changed(value, path, found)
    agree(value)


def text_of(part):
    return st.just(SHA) if "pattern" in part else st.text(min_size=part.get("minLength", 0), max_size=6)


def object_of(part):
    if "properties" not in part:
        return st.dictionaries(st.text(max_size=3), st.integers(0, 9), max_size=2)
    keys = {key: generated(value) for key, value in part["properties"].items()}
    required = {key: keys.pop(key) for key in part["required"]}
    return st.fixed_dictionaries(required, optional=keys)


# A strategy of accepted values for each of the few words that our schema uses.
WORDS = {
    "$ref": lambda part: st.deferred(lambda: generated(SCHEMA["$defs"][part["$ref"].rsplit("/", 1)[1]])),
    "anyOf": lambda part: st.one_of([generated(item) for item in part["anyOf"]]),
    "const": lambda part: st.just(part["const"]),
    "enum": lambda part: st.sampled_from(part["enum"]),
}
TYPES = {
    "array": lambda part: st.lists(generated(part["items"]), min_size=part.get("minItems", 0), max_size=3),
    "string": text_of,
    "object": object_of,
    "integer": lambda part: st.integers(part.get("minimum", -(2**53)), part.get("maximum", 2**53)),
    "number": lambda part: st.floats(part.get("minimum", -1e300), part.get("maximum", 1e300)),
    "boolean": lambda _: st.booleans(),
    "null": lambda _: st.none(),
}


def generated(part):
    word = next((word for word in WORDS if word in part), None)
    return WORDS[word](part) if word else TYPES[part["type"]](part)


@settings(max_examples=100, deadline=None)
@given(generated(SCHEMA))
def test_whatever_the_schema_describes_is_read(value):
    assert agree(value)
