"""The whole output of each format for one small report."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from featurecontract.contract import Wiring
from featurecontract.findings import Predicted, finding
from featurecontract.render import render

TITLE = "The embedding is not fed, and every later feature sits one slot too early"
TEXT = f"""\
checkpoint  kimi-drafter
contract    kimi-drafter/feature_contract.json (sha256 0123456789ab)
target      kimi-k2.5
declared    embedding, h[3], h[31]: 3 x 7168 -> 21504
              slot 0  [0:7168]       embedding
              slot 1  [7168:14336]   h[3]
              slot 2  [14336:21504]  h[31]
predicted   sglang==0.5.12: h[3], h[31], h[59] \
(eagle_config.eagle_aux_hidden_state_layer_ids = [2, 30, 58], boundary = id + 1)

error FC304 embedding-missing: {TITLE}
  place:         sglang==0.5.12, slot 0, columns [0:7168]
  what:          slot 0 was trained on the embedding, h[0]
  contract says: embedding, h[3], h[31]
  predicted:     h[3], h[31], h[59]
  likely cause:  the list holds no id for the embedding
  next step:     write the ids:
                   [-1, 2, 30]

boundaries in the words of each tool
  h[0] (embedding) = SGLang/SpecForge/TRT-LLM id -1 = vLLM/speculators/llama.cpp id 0 = HF hidden_states[0]
  h[3] = output of layer 2 = SGLang/SpecForge/TRT-LLM id 2 = vLLM/speculators/llama.cpp id 3 = HF hidden_states[3]
  h[31] = output of layer 30 = SGLang/SpecForge/TRT-LLM id 30 = vLLM/speculators/llama.cpp id 31 = HF hidden_states[31]
  h[59] = output of layer 58 = SGLang/SpecForge/TRT-LLM id 58 = vLLM/speculators/llama.cpp id 59 = HF hidden_states[59]
  what a runtime makes of an id also depends on its version, the target and the list: write the ids that a next step names

fail, exit status 1: 1 finding (1 error, 0 could not check, 0 warnings, 0 notes); 3 statements compared
"""


def test_text(story):
    assert render(story, "text") == TEXT


def test_colour_only_adds_escapes(story):
    coloured = render(story, "text", color=True)
    assert coloured.count("\x1b[") == 4
    plain = coloured.replace("\x1b[1;31m", "").replace("\x1b[0m", "")
    assert plain == TEXT


def test_predict_text(story):
    many = replace(
        story,
        contract_path=None,
        declared=None,
        findings=(),
        predicted=(
            *story.predicted,
            Predicted(
                runtime="vllm-v1==0.33.0", wiring=Wiring.from_boundaries((0, 3, 31)), key="a", ids=(31, 3, 0), shift=0
            ),
            Predicted(runtime="eagle", key="default", wiring=Wiring.from_boundaries((2, 30, 61), final_norm=True)),
            Predicted(runtime="llama.cpp==b9000", crash="at load", crash_message="layer input is null"),
            Predicted(runtime="lmdeploy==0.1", reason="no rule for dflash"),
        ),
    )
    assert (
        render(many, "text", kind="predict")
        == """\
checkpoint  kimi-drafter
target      kimi-k2.5

runtime           slots              key read                                       ids        shift  notes
sglang==0.5.12    3, 31, 59          eagle_config.eagle_aux_hidden_state_layer_ids  2, 30, 58  +1
vllm-v1==0.33.0   embedding, 3, 31   a                                              31, 3, 0   0      [1]
eagle             2, 30, final_norm  default                                        -          -
llama.cpp==b9000  crash              -                                              -          -      [2]
lmdeploy==0.1     none               -                                              -          -      [3]

slots are boundaries: 3 is h[3], the tensor that enters layer 3; embedding is h[0]
[1] sorted: the config lists another order
[2] crash at load: layer input is null
[3] no rule for dflash
"""
    )


def test_json(story):
    report = json.loads(render(story, "json"))
    assert list(report) == [
        "report_version", "verdict", "exit_status", "contract", "declared", "predicted", "findings",
    ]  # fmt: skip
    assert (report["report_version"], report["verdict"], report["exit_status"]) == ("1.0", "fail", 1)
    assert report["contract"] == {
        "path": "kimi-drafter/feature_contract.json",
        "sha256": "0123456789abcdef" * 4,
    }
    assert report["declared"]["features"][1] == {
        "slot": 1, "boundary": 3, "state": "residual", "source": "target", "dim": 7168, "columns": [7168, 14336],
        "row_offset": 0, "scale": 1.0, "reduction": "none", "streams": 1, "name": "h[3]",
    }  # fmt: skip
    fed = report["predicted"]["sglang==0.5.12"]
    assert [item["boundary"] for item in fed["features"]] == [3, 31, 59]
    assert (fed["ids"], fed["shift"], "crash" in fed) == ([2, 30, 58], 1, False)
    (found,) = report["findings"]
    assert (found["rule"], found["slug"], found["severity"]) == ("FC304", "embedding-missing", "error")
    assert (found["slots"], found["columns"], found["rows"]) == ([0], [[0, 7168]], None)
    assert found["details"] == {"appended": [59]}
    assert found["next_step"] == "write the ids:\n  [-1, 2, 30]"


def test_a_prediction_has_no_verdict(story):
    report = json.loads(render(story, "json", kind="predict"))
    assert "verdict" not in report
    assert report["exit_status"] == 0


def test_github(story):
    assert render(story, "github") == (
        "::error file=kimi-drafter/feature_contract.json,title=FC304 embedding-missing::"
        "slot 0 was trained on the embedding, h[0] (sglang==0.5.12, slot 0, columns [0:7168])"
        "%0Alikely cause: the list holds no id for the embedding%0Awrite the ids:%0A  [-1, 2, 30]\n"
        "featurecontract: fail, exit status 1: 1 finding (1 error, 0 could not check, 0 warnings, 0 notes); "
        "3 statements compared\n"
    )


def test_junit(story):
    assert (
        render(story, "junit")
        == f"""\
<?xml version="1.0" encoding="utf-8"?>
<testsuites name="featurecontract" tests="4" failures="1" errors="0" skipped="0">
  <testsuite name="contract" tests="1" failures="0" errors="0" skipped="0">
    <testcase classname="contract" name="report" />
  </testsuite>
  <testsuite name="sglang==0.5.12" tests="3" failures="1" errors="0" skipped="0">
    <testcase classname="predicted-sglang-0.5.12" name="slot-0">
      <failure message="error FC304 embedding-missing: {TITLE}" type="failure">error FC304 embedding-missing: {TITLE}
place: sglang==0.5.12, slot 0, columns [0:7168]
what: slot 0 was trained on the embedding, h[0]
contract says: embedding, h[3], h[31]
predicted: h[3], h[31], h[59]
likely cause: the list holds no id for the embedding
next step: write the ids:
  [-1, 2, 30]</failure>
    </testcase>
    <testcase classname="predicted-sglang-0.5.12" name="slot-1" />
    <testcase classname="predicted-sglang-0.5.12" name="slot-2" />
  </testsuite>
</testsuites>
"""
    )


def test_markdown(story):
    page = render(story, "markdown")
    assert page.startswith("# featurecontract: fail\n\nfail, exit status 1: 1 finding (1 error,")
    assert "| `slot 1` | `[7168:14336]` | `h[3]` |\n" in page
    assert f"## error: FC304 embedding-missing: {TITLE}\n" in page
    assert "- next step: `write the ids:`<br>`  [-1, 2, 30]`\n" in page


def test_sarif(story):
    log = json.loads(render(story, "sarif"))
    (run,) = log["runs"]
    (result,) = run["results"]
    assert log["version"] == "2.1.0"
    assert run["tool"]["driver"]["rules"][result["ruleIndex"]]["id"] == result["ruleId"] == "FC304"
    assert result["level"] == "error"
    assert result["message"]["text"].endswith("write the ids:\n  [-1, 2, 30]")
    (location,) = result["locations"]
    assert location["physicalLocation"]["artifactLocation"]["uri"] == "kimi-drafter/feature_contract.json"
    assert location["logicalLocations"] == [{"name": "slot-0", "kind": "member"}]
    assert run["invocations"] == [{"executionSuccessful": True, "exitCode": 1}]


def test_html(story):
    page = render(story, "html")
    assert '<section class="fail"><p>fail, exit status 1: 1 finding' in page
    assert "<tr><td>slot 1</td><td>[7168:14336]</td><td>h[3]</td></tr>" in page
    assert "<dt>next step</dt><dd>write the ids:\n  [-1, 2, 30]</dd>" in page
    assert "<td>3, 31, 59</td>" in render(story, "html", kind="predict")


@pytest.mark.parametrize("fmt", ["text", "markdown", "github"])
def test_graver_findings_come_first(story, fmt):
    mixed = replace(
        story,
        findings=(
            finding("tensor-unclaimed", "a note"),
            finding("runtime-newer", "a warning"),
            finding("inconclusive", "not settled"),
            *story.findings,
        ),
    )
    text = render(mixed, fmt)
    places = [text.index(rule) for rule in ("FC304", "FC109", "FC217", "FC208")]
    assert places == sorted(places)
    assert "4 findings (1 error, 1 could not check, 1 warning, 1 note)" in text
