"""The rule format: our own data parses like a fork's file, and every mistake in a fork's is named with its place."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import jsonschema
import pytest

from featurecontract.errors import InputError, UsageError
from featurecontract.runtimes import NAMES, choose, parse_rules, read_rules, rules_of, rules_schema
from featurecontract.runtimes._expressions import condition_holds, evaluate
from featurecontract.runtimes._versions import in_range

DATA = Path(__file__).parents[2] / "featurecontract" / "runtimes" / "data"
MINIMAL = {
    "format": "featurecontract-rules/1",
    "runtime": "fork",
    "title": "Fork",
    "releases": ["1.0"],
    "source": "read",
    "methods": [{"method": "eagle3"}],
    "targets": [{"methods": ["eagle3"], "default": ["2", "L//2", "L-3"], "source": "read"}],
}


@pytest.mark.parametrize("name", NAMES)
def test_our_own_rules_parse_and_fit_the_schema(name):
    value = json.loads((DATA / f"{name}.json").read_text("utf-8"))
    assert asdict(parse_rules(value, source=name)) == asdict(rules_of(name))
    jsonschema.Draft202012Validator(rules_schema()).validate(value)


def test_there_is_no_other_rule_file():
    assert {item.stem for item in DATA.glob("*.json")} == set(NAMES)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"format": "other/9"}, "format: expected one of featurecontract-rules/1"),
        ({"releases": []}, "releases: is empty"),
        ({"releases": ["2.0", "1.0"]}, "releases: is not in ascending order"),
        ({"releases": ["banana"]}, "releases: 'banana' is not a version"),
        ({"extra": 1}, "extra: unknown key"),
        ({"targets": [{"methods": ["eagle3"]}]}, "targets[0]"),
        ({"targets": [{"methods": ["eagle3"], "source": "x", "default": ["L**2"]}]}, "targets[0].default[0]: 'L**2'"),
        ({"targets": [{"methods": "eagle3", "source": "x"}]}, "targets[0].methods: expected a list"),
        (
            {"targets": [{"methods": ["eagle3"], "source": "x", "explicit": [{"when": "first==1"}]}]},
            "targets[0].explicit: no case is left",
        ),
        (
            {"targets": [{"methods": ["eagle3"], "source": "x", "embedding": {"outcome": "explodes"}}]},
            "targets[0].embedding.outcome: expected one of fed, dropped, crash",
        ),
        ({"ids": [{"methods": ["eagle3"], "versions": "~=1.0"}]}, "ids[0].versions: '~=1.0'"),
        ({"flags": [{"flag": "bias", "default": 1}]}, "flags[0].default: expected bool"),
    ],
)
def test_a_mistake_is_named_with_its_place(change, problem):
    with pytest.raises(InputError) as caught:
        parse_rules(MINIMAL | change, source="fork.json")
    assert problem in str(caught.value)


def test_every_problem_at_once():
    with pytest.raises(InputError) as caught:
        parse_rules(MINIMAL | {"format": "x", "extra": 1, "title": 3}, source="fork.json")
    assert len(caught.value.problems) == 3


def test_a_forks_rules_replace_or_add(tmp_path):
    file = tmp_path / "fork.json"
    file.write_text(json.dumps(MINIMAL), "utf-8")
    rules = read_rules(file)
    (choice,) = choose("fork==1.0", extra={"fork": rules})
    assert choice.key == "fork==1.0"
    assert choose("fork") == ()


def test_expressions():
    assert [evaluate(text, 61) for text in ("2", "-1", "L", "L-3", "L//2", "L//2+1")] == [2, -1, 61, 58, 30, 31]
    for text in ("", "l", "L*2", "L//0", "__import__('os')", "2+2"):
        with pytest.raises(UsageError):
            evaluate(text, 61)


def test_conditions():
    assert condition_holds("", (), 3)
    assert condition_holds("first==1", (1, 5), 61)
    assert condition_holds("max==L", (1, 61), 61)
    assert condition_holds("min<0", (-1, 3), 61)
    assert condition_holds("count!=3", (1, 2), 61)
    assert condition_holds("depth<=5", (), 5)
    assert not condition_holds("first==1", (), 61)
    with pytest.raises(UsageError):
        condition_holds("first=1", (1,), 61)


@pytest.mark.parametrize(
    ("version", "spec", "expected"),
    [
        ("0.5.12.post1", "<0.5.13", True),
        ("0.5.13rc1", ">=0.5.13", True),
        ("0.5.13.dev3", ">=0.5.13", True),
        ("0.5.12+cu129", "==0.5.12", True),
        ("0.5.9", ">=0.5.10", False),
        ("b6000", ">=5999", True),
        ("1.0", "", True),
    ],
)
def test_version_ranges(version, spec, expected):
    assert in_range(version, spec) is expected
