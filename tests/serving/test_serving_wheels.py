"""The tables against the runtime that is installed here, where one is."""

from __future__ import annotations

import importlib.metadata
import json
import re
from pathlib import Path

import pytest

import featurecontract.serving
from featurecontract.runtimes._versions import in_range

RULES = json.loads(Path(featurecontract.serving.__file__).with_name("rules.json").read_text("utf-8"))


def python_of(name):
    """Return version and source text of an installed distribution, without importing it."""
    try:
        distribution = importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        pytest.skip(f"{name} is not installed here")
    wanted = ("server_args.py", "speculative_hook.py", "spec.py", "spec_info.py", "environ.py", "eagle_utils.py")
    wanted += ("speculative.py", "arg_utils.py", "envs.py")
    inside = (f"{name}/config.py", f"{name}/config/__init__.py")
    paths = [path for path in distribution.files or () if path.name in wanted or path.as_posix() in inside]
    text = "\n".join(Path(path.locate()).read_text("utf-8") for path in paths)
    return distribution.version, text.replace("'", '"')


def test_sglang_says_what_the_tables_say():
    version, text = python_of("sglang")
    rules = RULES["sglang"]
    assert rules["chain"]["log"] in text
    for name, entry in RULES["flags"].items():
        if name.startswith("--speculative-") and entry["runtime"] == "sglang":
            there = not entry["since"] or in_range(version, f">={entry['since']}")
            spelled = rf"({re.escape(name)}|\b{name[2:].replace('-', '_')})(?![\w-])"
            assert bool(re.search(spelled, text)) == there, name
    for table in (rules["draft_path"]["table"], rules["automatic"]["table"]):
        for entry in table:
            if in_range(version, entry["versions"]):
                assert [name for name in entry.get("architectures", ()) if f'"{name}"' not in text] == []
    for entry in rules["forced_acceptance"]:
        if in_range(version, entry["versions"]):
            assert entry["variable"] in text


def test_vllm_says_what_the_tables_say():
    version, text = python_of("vllm")
    rules = RULES["vllm"]
    for entry in rules["guesses"]["table"]:
        if in_range(version, entry["versions"]):
            assert [part for part in entry.get("path", ()) if f'"{part}"' not in text] == []
    for entry in (*rules["forced_acceptance"], *rules["lossy_acceptance"]):
        if in_range(version, entry["versions"]):
            assert entry["key"] in text
            assert all(f'"{value}"' in text for value in entry.get("values", ()))
    for name in ("--speculative-config", "--spec-method", "--spec-model", "--spec-tokens"):
        since = RULES["flags"][name]["since"]
        assert (f'"{name}"' in text) == (not since or in_range(version, f">={since}")), name
