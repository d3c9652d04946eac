"""vLLM: a speculative config in, exact findings out."""

from __future__ import annotations

import json

import pytest
from flag_findings import short

from featurecontract.contract import Serving
from featurecontract.errors import UsageError
from featurecontract.serving import check_flags, forced_runner, read_arguments

FULL = {"method": "eagle3", "model": "/drafter", "num_speculative_tokens": 3}


def line(config, flag="--speculative-config"):
    return f"vllm serve M {flag} '{json.dumps(config)}'"


def found(text, *, runtime="vllm-v2", version="0.33.0", method="eagle3", config=None, serving=None):
    return check_flags(
        runtime,
        version,
        read_arguments(text),
        method=method,
        drafter_path="/drafter",
        draft_config=config or {},
        contract_serving=serving,
    )


@pytest.mark.parametrize(
    "text",
    [
        line(FULL),
        line(FULL, "-sc"),
        line(FULL, "--speculative_config"),
        line({"method": "eagle3", "model": "/drafter", "num-speculative-tokens": "3"}),
        "vllm serve M -sc.num_speculative_tokens 3 -sc.method eagle3 -sc.model /drafter --port 80",
        line(FULL) + " -sc.method eagle3 -sc.model /drafter -sc.num-speculative-tokens 3",
        "vllm serve M -sc.method=eagle3 -sc.model=/drafter -sc.num_speculative_tokens=3",
        "vllm serve M --spec-method eagle3 --spec-model /drafter --spec-tokens 3",
        "vllm serve M --spec-tokens 3 -sc.method eagle3 -sc.model /drafter",
    ],
)
def test_every_spelling_of_one_config(text):
    assert found(text) == ()
    wrong = found(text, serving=Serving(num_steps=7, top_k=1, num_draft_tokens=8))
    assert short(wrong) == [("error", "steps-forced", "num_steps", 7, 3)]


def test_dotted_flags_replace_the_json_as_in_vllm():
    items = found(line(FULL) + " --speculative-config.num_speculative_tokens 5")
    assert [(item.severity, item.slug) for item in items] == [("error", "algorithm-missing")]
    assert 'no "model"' in items[0].message


CASES = [
    # Nothing drafts.
    ("vllm serve M", {}, [("warning", "algorithm-missing", "algorithm", None, None)]),
    ("vllm serve M", {"serving": Serving(num_steps=3)}, [("error", "algorithm-missing", "algorithm", None, None)]),
    (
        "vllm serve M --spec-method eagle3 --spec-model x --spec-tokens 3",
        {"version": "0.21.0"},
        [("error", "algorithm-missing", "algorithm", "drafting", None)],
    ),
    # The drafter itself is served and says what it is.
    (
        "vllm serve /drafter/",
        {"config": {"speculators_config": {}}},
        [("note", "algorithm-missing", "algorithm", None, "eagle3")],
    ),
    (
        "vllm serve /drafter/",
        {"config": {"speculators_config": {}}, "version": "0.10.2"},
        [("warning", "algorithm-missing", "algorithm", None, None)],
    ),
    # The method is guessed from the path.
    (
        line({"model": "org/X-eagle3", "num_speculative_tokens": 3}),
        {},
        [("warning", "algorithm-missing", "algorithm", None, "eagle3")],
    ),
    (
        line({"model": "org/EAGLE-X", "num_speculative_tokens": 3}),
        {},
        [("error", "algorithm-missing", "method", "eagle3", "eagle")],
    ),
    (
        line({"model": "org/X", "num_speculative_tokens": 3}),
        {},
        [("error", "algorithm-missing", "method", "eagle3", "draft_model")],
    ),
    (
        line({"model": "org/X", "num_speculative_tokens": 3}),
        {"version": "0.12.0"},
        [("error", "algorithm-missing", "algorithm", None, None)],
    ),
    (
        line({"model": "org/EAGLE3-X", "num_speculative_tokens": 3}),
        {"version": "0.10.1"},
        [("error", "algorithm-missing", "method", "eagle3", "eagle")],
    ),
    (
        line({"model": "org/EAGLE3-X", "num_speculative_tokens": 3}),
        {"version": "0.10.2"},
        [("warning", "algorithm-missing", "algorithm", None, "eagle3")],
    ),
    (
        line({"model": "org/X-DFlash", "num_speculative_tokens": 15}),
        {"method": "dflash", "version": "0.20.0"},
        [("warning", "algorithm-missing", "algorithm", None, "dflash")],
    ),
    (
        line({"model": "org/X", "num_speculative_tokens": 1}),
        {"method": "mtp", "config": {"model_type": "deepseek_mtp"}},
        [("warning", "algorithm-missing", "algorithm", None, "mtp")],
    ),
    # An explicit method that a path overrides, and one that it does not.
    (
        line({"method": "draft_model", "model": "org/eagle3", "num_speculative_tokens": 3}),
        {},
        [("error", "algorithm-missing", "algorithm", "draft_model", "eagle3")],
    ),
    (line({"method": "eagle3", "model": "org/EAGLE-X", "num_speculative_tokens": 3}), {}, []),
    # Methods by version, and the wrong one.
    (
        line({"method": "dflash", "model": "d", "num_speculative_tokens": 7}),
        {"method": "dflash", "version": "0.19.1"},
        [("error", "algorithm-missing", "algorithm", "dflash", None)],
    ),
    (line({"method": "dflash", "model": "d", "num_speculative_tokens": 7}), {"method": "dflash"}, []),
    (
        line({"method": "medusa", "model": "d", "num_speculative_tokens": 3}),
        {"method": "medusa"},
        [("error", "algorithm-missing", "algorithm", "medusa", None)],
    ),
    (
        line({"method": "ngram", "num_speculative_tokens": 3}),
        {},
        [("error", "algorithm-missing", "method", "eagle3", "ngram")],
    ),
    (
        line({"method": "eagle", "model": "d", "num_speculative_tokens": 3}),
        {},
        [("error", "algorithm-missing", "method", "eagle3", "eagle")],
    ),
    # No drafter is named.
    (
        line({"method": "eagle3", "num_speculative_tokens": 3}),
        {},
        [("error", "algorithm-missing", "algorithm", "eagle3", None)],
    ),
    (
        line({"method": "deepseek_mtp", "num_speculative_tokens": 1}),
        {"method": "mtp"},
        [("note", "draft-path-default", "draft_path", None, "the target's path")],
    ),
    # How many.
    (line({"method": "eagle3", "model": "d"}), {}, [("error", "steps-forced", "num_steps", None, None)]),
    (
        line({"method": "eagle3", "model": "d"}),
        {"config": {"n_predict": 4}},
        [("note", "steps-forced", "num_steps", None, 4)],
    ),
    (
        line({"method": "dspark", "model": "d"}),
        {"method": "dspark", "config": {"block_size": 7}},
        [("note", "draft-tokens-forced", "num_draft_tokens", None, 8)],
    ),
    (
        line({"method": "dflash", "model": "d"}),
        {"method": "dflash", "config": {"block_size": 16}},
        [("error", "steps-forced", "num_steps", None, None)],
    ),
    (
        line({"method": "dflash", "model": "d", "num_speculative_tokens": 15}),
        {"method": "dflash", "serving": Serving(num_steps=1, top_k=1, num_draft_tokens=16)},
        [],
    ),
    (
        line({"method": "dflash", "model": "d", "num_speculative_tokens": 7}),
        {"method": "dflash", "serving": Serving(num_steps=1, top_k=1, num_draft_tokens=16)},
        [("error", "draft-tokens-forced", "num_draft_tokens", 16, 8)],
    ),
    # n drafts are n + 1 rows, and a tree's rows say nothing about a chain.
    (line(FULL), {"serving": Serving(num_draft_tokens=4)}, []),
    (
        line(FULL),
        {"serving": Serving(num_draft_tokens=3)},
        [("error", "draft-tokens-forced", "num_draft_tokens", 3, 4)],
    ),
    (line(FULL), {"serving": Serving(num_steps=3, top_k=4, num_draft_tokens=16)}, []),
    (
        line({**FULL, "num_speculative_tokens_per_batch_size": [[1, 8, 5]]}),
        {},
        [("note", "steps-forced", "num_steps", None, None)],
    ),
]


@pytest.mark.parametrize(("text", "given", "wanted"), CASES)
def test_findings_are_exactly_these(text, given, wanted):
    assert short(found(text, **given)) == wanted


@pytest.mark.parametrize(
    ("more", "runtime", "version", "wanted"),
    [
        ({"rejection_sample_method": "synthetic", "synthetic_acceptance_length": 2.5}, "vllm-v2", "0.33.0", "error"),
        (
            {"rejection_sample_method": "synthetic", "synthetic_acceptance_rates": [1, 0, 0]},
            "vllm-v1",
            "0.20.0",
            "error",
        ),
        ({"rejection_sample_method": "synthetic", "synthetic_acceptance_rate": 0.5}, "vllm-v2", "0.19.1", "error"),
        ({"rejection_sample_method": "synthetic", "synthetic_acceptance_rate": 0.5}, "vllm-v1", "0.19.1", None),
        ({"rejection_sample_method": "synthetic"}, "vllm-v2", "0.18.1", None),
        ({"rejection_sample_method": "standard"}, "vllm-v2", "0.33.0", None),
        ({"rejection_sample_method": "block"}, "vllm-v2", "0.33.0", None),
        ({"rejection_sample_method": "fly"}, "vllm-v2", "0.33.0", "warning"),
        ({"rejection_sample_method": "fly"}, "vllm-v2", "0.32.0", None),
        ({"acceptance_method": "typical_acceptance_sampler"}, "vllm-v1", "0.9.2", "warning"),
        ({"acceptance_method": "typical_acceptance_sampler"}, "vllm-v1", "0.10.0", None),
    ],
)
def test_forced_acceptance_is_one_finding(more, runtime, version, wanted):
    items = found(line({**FULL, **more}), runtime=runtime, version=version)
    assert [(item.severity, item.slug) for item in items] == ([(wanted, "forced-acceptance")] if wanted else [])


@pytest.mark.parametrize(
    ("text", "part"),
    [
        (line({**FULL, "num_speculative_tokens": 0}), "num_speculative_tokens: 0 is not an integer"),
        (line({**FULL, "num_speculative_tokens": "many"}), "num_speculative_tokens: 'many' is not an integer"),
        (line({**FULL, "num_speculative_tokens": 1.5}), "num_speculative_tokens: 1.5 is not an integer"),
        (line({**FULL, "num_speculative_tokens": True}), "num_speculative_tokens: True is not an integer"),
        (line({**FULL, "model": ["a"]}), r"model: \['a'\] is not a text"),
    ],
)
def test_values_that_no_version_takes(text, part):
    with pytest.raises(UsageError, match=part):
        found(text)


@pytest.mark.parametrize(
    ("text", "version", "wanted"),
    [
        ("VLLM_USE_V2_MODEL_RUNNER=1 vllm serve M", "0.33.0", "vllm-v2"),
        ("VLLM_USE_V2_MODEL_RUNNER=0 vllm serve M", "0.33.0", "vllm-v1"),
        ("VLLM_USE_V2_MODEL_RUNNER=1 vllm serve M", "0.11.2", None),
        ("vllm serve M", "0.33.0", None),
    ],
)
def test_the_forced_runner(text, version, wanted):
    assert forced_runner(version, read_arguments(text)) == wanted
