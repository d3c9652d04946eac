"""Any report renders in every format; what a file says never becomes markup, a command or a colour."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as ET

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from featurecontract.contract import Feature, Wiring
from featurecontract.errors import InputError, UsageError
from featurecontract.findings import Predicted, Report, catalogue, finding
from featurecontract.render import FORMATS, render, report_schema

ROOT = Path(__file__).resolve().parents[2]
EVIL = "\x1b[31m\u202e::error::x\n::stop-commands::\r\x00\ud800<script>alert(1)</script>`|]]>&@all%" + "A" * 9000
SPANS = st.tuples(st.integers(0, 9), st.integers(10, 99)).map(tuple)
TEXT = st.one_of(st.text(max_size=20), st.just(EVIL))
FEATURES = st.builds(
    Feature,
    slot=st.just(0),
    source=st.sampled_from(["target", "unknown"]),
    boundary=st.none() | st.integers(0, 200),
    state=st.sampled_from(["residual", "final_norm", "zero", "normed"]),
    dim=st.none() | st.integers(1, 8192),
    scale=st.floats(),
)
WIRINGS = st.lists(FEATURES, max_size=5).map(
    lambda items: Wiring(features=tuple(replace(item, slot=slot) for slot, item in enumerate(items)))
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
PREDICTED = st.builds(
    Predicted,
    runtime=st.one_of(st.sampled_from(["sglang==0.5.12", "vllm-v1==0.33.0"]), TEXT),
    wiring=st.none() | WIRINGS,
    alternatives=st.dictionaries(TEXT, WIRINGS, max_size=2),
    key=TEXT,
    ids=st.none() | st.lists(st.integers(), max_size=4).map(tuple),
    shift=st.none() | st.integers(-1, 1),
    crash=st.sampled_from(["", "at load", "at the first request"]),
    crash_message=TEXT,
    reason=TEXT,
)
FINDINGS = st.builds(
    finding,
    st.sampled_from(list(catalogue())),
    TEXT,
    severity=st.sampled_from([None, "error", "warning", "note"]),
    runtime=st.one_of(st.none(), st.just("sglang==0.5.12"), TEXT),
    slots=st.lists(st.integers(0, 6), max_size=4).map(tuple),
    columns=st.lists(SPANS, max_size=2).map(tuple),
    rows=st.none() | st.lists(SPANS, max_size=2).map(tuple),
    expected=VALUES,
    actual=VALUES,
    details=st.dictionaries(TEXT, VALUES, max_size=3),
    next_step=TEXT,
    cause=TEXT,
)
REPORTS = st.builds(
    Report,
    checkpoint=TEXT,
    contract_path=st.none() | TEXT,
    contract_sha256=st.none() | TEXT,
    target=st.none() | TEXT,
    declared=st.none() | WIRINGS,
    num_hidden_layers=st.none() | st.integers(1, 200),
    predicted=st.lists(PREDICTED, max_size=3, unique_by=lambda item: item.runtime).map(tuple),
    findings=st.lists(FINDINGS, max_size=4).map(tuple),
    compared=st.integers(0, 3),
    strict=st.booleans(),
)
VALIDATOR = jsonschema.Draft202012Validator(report_schema())


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("kind", ["check", "predict"])
@settings(max_examples=40, deadline=None)
@given(report=REPORTS)
def test_every_format_is_printable_and_bounded(fmt, kind, report):
    text = render(report, fmt, kind=kind)
    assert text.endswith("\n")
    assert text.replace("\n", "").isprintable()
    assert len(text) < 400_000


@settings(max_examples=60, deadline=None)
@given(report=REPORTS)
def test_json_validates_and_holds_every_finding(report):
    for kind in ("check", "predict"):
        value = json.loads(render(report, "json", kind=kind), parse_constant=pytest.fail)
        VALIDATOR.validate(value)
        assert len(value["findings"]) == len(report.findings)
        assert len(value.get("predicted", {})) == len(report.predicted) or EVIL in {
            item.runtime for item in report.predicted
        }


@settings(max_examples=60, deadline=None)
@given(report=REPORTS)
def test_junit_counts_add_up_and_agree_with_the_verdict(report):
    root = ET.fromstring(render(report, "junit"))  # noqa: S314 - our own output
    for attribute, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        for suite in root:
            cases = [case for case in suite if case.find(tag) is not None]
            assert suite.get(attribute) == str(len(cases))
        assert root.get(attribute) == str(sum(int(suite.get(attribute)) for suite in root))
    assert root.get("tests") == str(len(root.findall("*/testcase")))
    assert (root.get("failures") != "0") == (report.verdict == "fail")
    if report.verdict != "fail":
        assert (root.get("errors") != "0") == (report.verdict == "could-not-check")


@settings(max_examples=60, deadline=None)
@given(report=REPORTS)
def test_github_prints_one_command_per_finding(report):
    lines = render(report, "github").splitlines()
    assert len(lines) == len(report.findings) + 1
    assert all(line.startswith(("::error file=", "::warning file=", "::notice file=")) for line in lines[:-1])
    assert lines[-1].startswith("featurecontract: ")


@settings(max_examples=40, deadline=None)
@given(report=REPORTS)
def test_hostile_text_never_becomes_markup(report):
    for kind in ("check", "predict"):
        assert "<script" not in render(report, "html", kind=kind)
        for line in render(report, "markdown", kind=kind).splitlines():
            outside = "".join(line.split("`")[::2])
            assert "<script" not in outside


@pytest.mark.parametrize("fmt", ["text", "markdown", "html", "github"])
def test_long_lists_are_capped_and_say_so(story, fmt):
    many = replace(story, findings=story.findings * 1000)
    text = render(many, fmt)
    assert " more findings" in text
    assert len(text) < 500_000
    assert len(json.loads(render(many, "json"))["findings"]) == 1000


def test_a_thousand_slots_are_capped(story):
    wide = Wiring.from_boundaries(tuple(range(5000)), dim=8)
    text = render(replace(story, declared=wide), "text")
    assert "and 4968 more" in text
    assert len(text.splitlines()) < 80


def test_a_predicted_crash_without_findings_is_shown_as_not_compared(story):
    crashed = replace(story, predicted=(Predicted(runtime="eagle", crash="at load"),), findings=(), compared=0)
    root = ET.fromstring(render(crashed, "junit"))  # noqa: S314 - our own output
    assert root.find("testsuite[@name='eagle']/testcase/skipped").get("message") == "crash at load"
    assert root.find("testsuite[@name='contract']/testcase[@name='nothing-compared']/error") is not None


def test_wide_cells_of_the_prediction_move_to_the_notes(story):
    wide = replace(
        story,
        predicted=(
            *story.predicted,
            replace(
                story.predicted[0], runtime="x" * 60, ids=tuple(range(20)), wiring=Wiring.from_boundaries((1,) * 40)
            ),
        ),
    )
    lines = render(wide, "text", kind="predict").splitlines()
    assert max(len(line) for line in lines) <= 120
    assert any(line.startswith("[") and "key read: eagle_config.eagle_aux" in line for line in lines)


def test_unknown_names_list_the_valid_ones(story):
    with pytest.raises(UsageError, match="choose one of text, json, junit"):
        render(story, "yaml")
    with pytest.raises(UsageError, match="choose one of check, predict"):
        render(story, "text", kind="diff")


def test_html_without_jinja2_is_one_line(story, monkeypatch):
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(InputError, match=r"needs jinja2, .*pip install 'featurecontract\[html\]'"):
        render(story, "html")


def test_the_schema_is_valid_and_refuses_a_verdict_that_contradicts_its_status(story):
    jsonschema.Draft202012Validator.check_schema(report_schema())
    value = json.loads(render(story, "json"))
    assert VALIDATOR.is_valid(value)
    assert not VALIDATOR.is_valid(value | {"exit_status": 0})
    assert not VALIDATOR.is_valid(value | {"findings": [{"rule": "FC304"}]})


def test_text_and_json_import_nothing_heavy():
    code = (
        "import sys; from featurecontract.findings import Report; from featurecontract.render import render;"
        "[render(Report(checkpoint='x'), fmt) for fmt in ('text', 'json', 'github', 'markdown')];"
        "heavy = {'torch', 'rich', 'jinja2', 'jsonschema', 'hypothesis', 'xml', 'pytest'} & set(sys.modules);"
        "sys.exit(str(heavy) if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT)
    assert (done.returncode, done.stderr) == (0, "")
