"""The tables themselves, their documentation, and the rule that any text is survived."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import featurecontract.serving
from featurecontract.contract import Serving
from featurecontract.errors import InputError, UsageError
from featurecontract.findings import Finding
from featurecontract.runtimes._versions import in_range
from featurecontract.serving import check_flags, read_arguments

FOLDER = Path(featurecontract.serving.__file__).parent
RULES = json.loads((FOLDER / "rules.json").read_text("utf-8"))
DOCS = Path(__file__).parents[2] / "docs" / "serving-flags.md"
RUNTIMES = ("sglang", "vllm-v1", "vllm-v2", "tensorrt-llm", "lmdeploy")


def walk(value, path=""):
    yield path, value
    if isinstance(value, dict):
        for key, item in value.items():
            yield from walk(item, f"{path}/{key}")
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from walk(item, f"{path}/{index}")


def test_every_range_parses():
    ranges = [value for path, value in walk(RULES) if path.endswith("/versions")]
    assert len(ranges) > 60
    for spec in ranges:
        in_range("0.5.14", spec)


def test_every_rule_has_a_source():
    for family in ("sglang", "vllm", "tensorrt-llm"):
        for name, rule in RULES[family].items():
            entries = rule if isinstance(rule, list) else [rule]
            for entry in entries:
                if isinstance(entry, dict) and ("versions" in entry or "table" in entry):
                    assert entry.get("source"), f"{family}.{name}"


@pytest.mark.parametrize("version", ["0.4.6", "0.4.9.post5", "0.5.1.post3", "0.5.2", "0.5.11", "0.5.16", "0.5.23", "9"])
def test_one_list_of_algorithms_holds_for_each_version(version):
    assert sum(in_range(version, entry["versions"]) for entry in RULES["sglang"]["algorithms"]["table"]) == 1


def test_the_docs_name_every_switch():
    text = DOCS.read_text("utf-8")
    names = [name for name in RULES["flags"] if name.startswith("--spec") or name == "-sc"]
    for family in ("sglang", "vllm", "tensorrt-llm"):
        for table in ("forced_acceptance", "lossy_acceptance"):
            rules = RULES[family].get(table, ())
            names += [rule.get("variable") or rule.get("flag") or rule["key"] for rule in rules]
    missing = sorted({name for name in names if f"`{name}`" not in text})
    assert missing == []


def test_the_docs_show_what_the_code_says():
    line = "--speculative-algorithm EAGLE3 --speculative-num-steps 1 --speculative-eagle-topk 1 "
    (item,) = check_flags(
        "sglang", "0.5.14", read_arguments(line + "--speculative-num-draft-tokens 16"), method="eagle3"
    )
    assert item.message in DOCS.read_text("utf-8")


def test_importing_it_stays_light():
    code = (
        "import sys, featurecontract.serving; print([m for m in ('yaml', 'torch', 'jsonschema') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_no_version_is_compared_in_code():
    """A rule about somebody else's runtime is data: no module holds a version number."""
    for path in FOLDER.glob("_*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value[:1] in "<>=":
                assert node.value.strip("<>=") == "", f"{path.name}: {node.value!r}"


FLAGS = [*RULES["flags"], "--speculative-algo", "--speculative-config.method", "--x", "SGLANG_SIMULATE_ACC_LEN=", "#"]
VALUES = ["", "1", "0", "-1", "x", "EAGLE3", "dflash", "'", '"', "\\", "'{}'", "$V", "=", "{", "16", "\n", "1e9"]
WORDS = st.one_of(st.sampled_from(FLAGS), st.sampled_from(VALUES), st.text(max_size=8))
LINES = st.lists(WORDS, max_size=14).map(" ".join)
NUMBERS = st.none() | st.integers(0, 20)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)
KEYS = [
    "method",
    "model",
    "num_speculative_tokens",
    "rejection_sample_method",
    "synthetic_acceptance_length",
    "decoding_type",
    "max_draft_len",
    "eagle_choices",
    "dynamic_tree_max_topK",
    "max_total_draft_tokens",
    "speculative_model",
]
CONFIGS = st.dictionaries(st.sampled_from(KEYS), JSON, max_size=6)


def judge(text, runtime, version, *, method, serving, config):
    failure = None
    items = ()
    try:
        items = check_flags(
            runtime,
            version,
            read_arguments(text),
            method=method,
            drafter_path="/d",
            draft_config=config,
            contract_serving=serving,
        )
    except (UsageError, InputError) as error:
        failure = str(error)
    assert failure is None or (failure and "\n" not in failure)
    assert all(isinstance(item, Finding) for item in items)
    for item in items:
        assert item.message
        assert "\n" not in item.message
        json.dumps(item.details, allow_nan=False)


@settings(max_examples=300, deadline=None)
@given(
    text=LINES,
    runtime=st.sampled_from(RUNTIMES),
    version=st.sampled_from(["0.4.6", "0.5.2", "0.5.12", "0.5.23", "0.9.2", "0.14.1", "0.33.0"]),
    method=st.sampled_from(["eagle3", "mtp", "dflash", "dspark", "other", ""]),
    serving=st.none() | st.builds(Serving, num_steps=NUMBERS, top_k=NUMBERS, num_draft_tokens=NUMBERS),
    config=CONFIGS,
)
def test_any_text_gives_findings_or_one_line(*, text, runtime, version, method, serving, config):
    judge(text, runtime, version, method=method, serving=serving, config=config)


@settings(max_examples=200, deadline=None)
@given(content=st.one_of(LINES, st.text(max_size=60), CONFIGS.map(json.dumps)), suffix=st.sampled_from(["", ".yaml"]))
def test_any_file_gives_arguments_or_one_line(tmp_path_factory, content, suffix):
    path = tmp_path_factory.getbasetemp() / f"serve{suffix}"
    path.write_bytes(content.encode("utf-8", "surrogatepass"))
    for runtime in RUNTIMES:
        judge(f"@{path}", runtime, "0.33.0", method="eagle3", serving=None, config={})


@settings(max_examples=200, deadline=None)
@given(
    CONFIGS,
    st.sampled_from(RUNTIMES),
    st.sampled_from(["0.8.5", "0.12.0", "0.19.0", "0.24.0", "0.33.0"]),
    st.dictionaries(st.sampled_from(["architectures", "model_type", "n_predict", "block_size"]), JSON),
)
def test_any_speculative_config_gives_findings_or_one_line(config, runtime, version, draft):
    quoted = json.dumps(config).replace("'", "'\\''")
    judge(f"--speculative-config '{quoted}'", runtime, version, method="eagle3", serving=None, config=draft)


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 40), st.integers(1, 9), st.integers(1, 60))
def test_a_finding_is_an_error_exactly_when_the_number_differs(steps, top_k, tokens):
    text = (
        f"--speculative-algorithm EAGLE3 --speculative-num-steps {steps} "
        f"--speculative-eagle-topk {top_k} --speculative-num-draft-tokens {tokens}"
    )
    items = check_flags("sglang", "0.5.14", read_arguments(text), method="eagle3")
    assert bool(items) == (top_k == 1 and tokens != steps + 1)
