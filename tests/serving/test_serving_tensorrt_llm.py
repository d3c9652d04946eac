"""TensorRT-LLM: LLM API options in, exact findings and the captured layers out."""

from __future__ import annotations

import pytest

from featurecontract.contract import Serving
from featurecontract.errors import InputError
from featurecontract.serving import check_flags, read_arguments

BASE = "speculative_config:\n  decoding_type: Eagle3\n  speculative_model: /drafter\n"


@pytest.fixture
def found(tmp_path):
    def check(text, *, method="eagle3", serving=None, prefix=""):
        path = tmp_path / "options.yaml"
        path.write_text(text)
        line = f"{prefix}trtllm-serve M --extra_llm_api_options {path}" if prefix else str(path)
        items = check_flags(
            "tensorrt-llm", "1.1.0", read_arguments(line), method=method, drafter_path="/d", contract_serving=serving
        )
        return [
            (item.severity, item.slug, item.details["parameter"], item.details["requested"], item.details["effective"])
            for item in items
        ]

    return check


def test_healthy(found):
    assert found(BASE + "  max_draft_len: 3\n") == []
    assert found(BASE + "  max_draft_len: 3\n", serving=Serving(num_steps=3, num_draft_tokens=4)) == []


def test_a_tree_of_width_1_is_a_chain(found):
    text = BASE + "  max_draft_len: 4\n  dynamic_tree_max_topK: 1\n  max_total_draft_tokens: 16\n"
    assert found(text) == [("error", "draft-tokens-forced", "num_draft_tokens", 17, 5)]


def test_a_tree_without_a_total_is_left_open(found):
    text = BASE + "  max_draft_len: 4\n  dynamic_tree_max_topK: 4\n"
    assert found(text) == [("note", "draft-tokens-forced", "num_draft_tokens", None, None)]


def test_the_contract_and_the_method(found):
    text = BASE + "  max_draft_len: 4\n"
    assert found(text, serving=Serving(num_steps=7)) == [("error", "steps-forced", "num_steps", 7, 4)]
    assert found(text, method="dflash") == [("error", "algorithm-missing", "method", "dflash", "Eagle3")]


def test_nothing_drafts(found):
    assert found("max_batch_size: 8\n") == [("warning", "algorithm-missing", "algorithm", None, None)]


def test_no_drafter_is_named(found):
    text = "speculative_config:\n  decoding_type: Eagle3\n  max_draft_len: 3\n"
    assert found(text) == [("warning", "draft-path-default", "draft_path", None, None)]


def test_forced_acceptance(found):
    variable = "TLLM_SPEC_DECODE_FORCE_NUM_ACCEPTED_TOKENS"
    text = BASE + "  max_draft_len: 3\n"
    assert [item[:2] for item in found(text, prefix=f"{variable}=2 ")] == [("error", "forced-acceptance")]
    assert found(text, prefix=f"{variable}=0 ") == []


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (BASE, None),
        (BASE + "  eagle3_layers_to_capture: [1, 30, 57]\n", (1, 30, 57)),
        (BASE + "  eagle3_layers_to_capture: [57, -1, 1]\n", (57, -1, 1)),
        (BASE + "  eagle3_layers_to_capture: !!set {30, 1}\n", (1, 30)),
        ('{"speculative_config": {"decoding_type": "Eagle3", "eagle3_layers_to_capture": [2]}}', (2,)),
        ("decoding_type: Eagle3\neagle3_layers_to_capture: [2, 3]\n", (2, 3)),
    ],
)
def test_the_layers_to_capture(tmp_path, text, wanted):
    path = tmp_path / "options"
    path.write_text(text)
    assert read_arguments(f"@{path}").layers_to_capture == wanted


@pytest.mark.parametrize("value", ["[]", "[a]", "[1, true]", "7", "{a: 1}", "[1.5]"])
def test_layers_that_are_none(tmp_path, value):
    path = tmp_path / "options.yaml"
    path.write_text(f"{BASE}  eagle3_layers_to_capture: {value}\n")
    with pytest.raises(InputError, match=r"eagle3_layers_to_capture: .* is not a list of layer numbers"):
        _ = read_arguments(str(path)).layers_to_capture
