"""SGLang: a command line in, exact findings out."""

from __future__ import annotations

import pytest
from flag_findings import short

from featurecontract.contract import Serving
from featurecontract.errors import UsageError
from featurecontract.serving import check_flags, effective, read_arguments

PATH = "--speculative-draft-model-path /drafter"
EAGLE3 = f"{PATH} --speculative-algorithm EAGLE3"
CHAIN_LOG = "speculative_num_draft_tokens is adjusted to speculative_num_steps + 1 when speculative_eagle_topk == 1"


def found(text, *, version="0.5.14", method="eagle3", architecture=None, config=None, serving=None):
    return check_flags(
        "sglang",
        version,
        read_arguments(text),
        method=method,
        target_architecture=architecture,
        drafter_path="/drafter",
        draft_config=config or {},
        contract_serving=serving,
    )


def shape(steps, top_k, tokens):
    return f"--speculative-num-steps {steps} --speculative-eagle-topk {top_k} --speculative-num-draft-tokens {tokens}"


def test_top_k_1_serves_steps_plus_1_draft_tokens():
    text = f"--speculative-algorithm EAGLE3 {shape(1, 1, 16)}"
    (item,) = found(text)
    assert (item.severity, item.slug) == ("error", "draft-tokens-forced")
    assert (item.details["requested"], item.details["effective"]) == (16, 2)
    assert item.details["log"] == CHAIN_LOG
    assert item.runtime == "sglang==0.5.14"
    assert item.next_step == "set --speculative-num-steps 15, or --speculative-num-draft-tokens 2"
    assert item.message == (
        "16 draft tokens asked for, 2 served: "
        "with --speculative-eagle-topk 1 SGLang serves --speculative-num-steps + 1 = 2 draft tokens"
    )
    assert item.source


def test_without_the_algorithm_nothing_drafts_and_nothing_else_is_said():
    (item,) = found(shape(1, 1, 16))
    assert (item.severity, item.slug) == ("error", "algorithm-missing")
    assert item.next_step == "add --speculative-algorithm EAGLE3"


@pytest.mark.parametrize("flag", ["--speculative-algorithm", "--speculative-algo", "--speculative_algorithm"])
@pytest.mark.parametrize("version", ["0.4.6", "0.4.8.post1", "0.5.10.post1", "0.5.23", "0.9.0"])
def test_the_chain_rule_holds_in_every_version_and_spelling(flag, version):
    text = f"{PATH} {flag}=EAGLE3 {shape(3, 1, 16)}"
    assert short(found(text, version=version)) == [("error", "draft-tokens-forced", "num_draft_tokens", 16, 4)]


CASES = [
    # A healthy command line says nothing.
    (f"{EAGLE3} {shape(3, 1, 4)}", {}, []),
    (f"{EAGLE3} {shape(5, 4, 8)}", {}, []),
    (f"{EAGLE3} {shape(3, 1, 4)}", {"serving": Serving(num_steps=3, top_k=1, num_draft_tokens=4)}, []),
    (f"{PATH} --speculative-algorithm NEXTN {shape(3, 1, 4)}", {"method": "mtp"}, []),
    (f"{PATH} --speculative-algorithm eagle3 {shape(3, 1, 4)}", {"version": "0.5.12"}, []),
    # The last of two wins.
    (f"{EAGLE3} {shape(3, 1, 9)} --speculative-num-draft-tokens 4", {}, []),
    # Drafting is off.
    (PATH, {}, [("error", "algorithm-missing", "algorithm", "drafting", None)]),
    ("--tp 8", {}, [("warning", "algorithm-missing", "algorithm", None, None)]),
    ("", {}, [("warning", "algorithm-missing", "algorithm", None, None)]),
    ("--tp 8", {"serving": Serving(num_steps=3)}, [("error", "algorithm-missing", "algorithm", None, None)]),
    ("--tp 8", {"serving": Serving(runtimes=("sglang",))}, [("warning", "algorithm-missing", "algorithm", None, None)]),
    (
        f"{PATH} --speculative-algorithm none",
        {},
        [("error", "algorithm-missing", "algorithm", "drafting", None)],
    ),
    # Algorithms by version.
    (
        f"{PATH} --speculative-algorithm EAGLE4",
        {},
        [("error", "algorithm-missing", "algorithm", "EAGLE4", None)],
    ),
    (
        f"{PATH} --speculative-algorithm eagle3",
        {"version": "0.5.10"},
        [("error", "algorithm-missing", "algorithm", "eagle3", None)],
    ),
    (
        f"{PATH} --speculative-algorithm DFLASH",
        {"version": "0.5.10.post1", "method": "dflash"},
        [("error", "algorithm-missing", "algorithm", "DFLASH", None)],
    ),
    (
        f"{PATH} --speculative-algorithm DSPARK",
        {"version": "0.5.15.post1", "method": "dspark"},
        [("error", "algorithm-missing", "algorithm", "DSPARK", None)],
    ),
    # The wrong one for this drafter.
    (
        f"{PATH} --speculative-algorithm EAGLE {shape(3, 1, 4)}",
        {},
        [("error", "algorithm-missing", "method", "eagle3", "EAGLE")],
    ),
    (
        f"{PATH} --speculative-algorithm NGRAM",
        {},
        [("error", "algorithm-missing", "method", "eagle3", "NGRAM")],
    ),
    (
        f"{PATH} --speculative-algorithm EAGLE3 {shape(3, 1, 4)}",
        {"method": "mtp"},
        [("error", "algorithm-missing", "method", "mtp", "EAGLE3")],
    ),
    (
        f"{PATH} --speculative-algorithm NEXTN {shape(3, 1, 4)}",
        {"method": "mtp", "config": {"architectures": ["Gemma4AssistantForCausalLM"]}},
        [],
    ),
    # The contract's shape.
    (
        f"{EAGLE3} {shape(3, 1, 4)}",
        {"serving": Serving(num_steps=7, top_k=1, num_draft_tokens=8)},
        [("error", "steps-forced", "num_steps", 7, 3)],
    ),
    (
        f"{EAGLE3} {shape(3, 1, 4)}",
        {"serving": Serving(num_draft_tokens=16)},
        [("error", "draft-tokens-forced", "num_draft_tokens", 16, 4)],
    ),
    (
        f"{EAGLE3} {shape(5, 4, 8)}",
        {"serving": Serving(num_steps=5, top_k=8, num_draft_tokens=8)},
        [("error", "steps-forced", "top_k", 8, 4)],
    ),
    # Defaults are notes.
    (
        f"{EAGLE3} --speculative-num-steps 3 --speculative-eagle-topk 1",
        {},
        [("note", "draft-tokens-forced", "num_draft_tokens", None, 4)],
    ),
    (f"{EAGLE3}", {"architecture": "LlamaForCausalLM"}, [("note", "steps-forced", "num_steps", None, 5)]),
    (f"{EAGLE3}", {"architecture": "Qwen3ForCausalLM"}, [("note", "steps-forced", "num_steps", None, 3)]),
    (
        f"{EAGLE3}",
        {"architecture": "Qwen3ForCausalLM", "version": "0.5.7"},
        [("note", "steps-forced", "num_steps", None, 5)],
    ),
    (
        f"{EAGLE3}",
        {"architecture": "LlamaForCausalLM", "serving": Serving(num_steps=5, top_k=4, num_draft_tokens=8)},
        [],
    ),
    (
        f"{EAGLE3}",
        {"architecture": "Qwen3ForCausalLM", "serving": Serving(num_steps=5, top_k=4, num_draft_tokens=8)},
        [("error", "steps-forced", "num_steps", 5, 3)],
    ),
    # An unnamed architecture leaves both open.
    (f"{EAGLE3}", {}, [("note", "steps-forced", "num_steps", None, None)]),
    (f"{EAGLE3}", {"serving": Serving(num_steps=5)}, [("warning", "steps-forced", "num_steps", 5, None)]),
    (f"{EAGLE3}", {"serving": Serving(num_steps=7)}, [("error", "steps-forced", "num_steps", 7, None)]),
    # It stops.
    (
        f"{EAGLE3} --speculative-num-draft-tokens 4",
        {},
        [("error", "steps-forced", "num_steps", None, None)],
    ),
    (
        f"{EAGLE3} --speculative-num-steps 3 --speculative-num-draft-tokens 4",
        {},
        [("error", "steps-forced", "top_k", None, None)],
    ),
    # Adaptive steps.
    (f"{EAGLE3} --speculative-adaptive", {}, [("note", "steps-forced", "num_steps", None, None)]),
    # Pages, early versions only.
    (
        f"{EAGLE3} {shape(3, 4, 4)} --page-size 64",
        {"version": "0.4.8.post1"},
        [("error", "steps-forced", "top_k", 4, 1)],
    ),
    (f"{EAGLE3} {shape(3, 4, 4)} --page-size 64", {"version": "0.4.9"}, []),
    # Blocks.
    (
        f"{PATH} --speculative-algorithm DFLASH --speculative-num-steps 4 --speculative-eagle-topk 2",
        {"method": "dflash", "config": {"dflash_config": {"block_size": 8}, "block_size": 12}},
        [
            ("error", "steps-forced", "num_steps", 4, 1),
            ("error", "steps-forced", "top_k", 2, 1),
            ("note", "draft-tokens-forced", "num_draft_tokens", None, 8),
        ],
    ),
    (
        f"{PATH} --speculative-algorithm DFLASH",
        {"method": "dflash"},
        [("note", "draft-tokens-forced", "num_draft_tokens", None, 16)],
    ),
    (
        f"{PATH} --speculative-algorithm DFLASH --speculative-num-draft-tokens 8",
        {"method": "dflash", "config": {"block_size": 16}},
        [],
    ),
    (
        f"{PATH} --speculative-algorithm DFLASH --speculative-num-draft-tokens 8 --speculative-dflash-block-size 16",
        {"method": "dflash"},
        [("error", "draft-tokens-forced", "num_draft_tokens", 8, None)],
    ),
    (
        f"{PATH} --speculative-algorithm DFLASH",
        {"method": "dflash", "config": {"block_size": 16}, "serving": Serving(num_draft_tokens=8)},
        [("error", "draft-tokens-forced", "num_draft_tokens", 8, 16)],
    ),
    (
        f"{PATH} --speculative-algorithm DSPARK",
        {"method": "dspark", "version": "0.5.16", "config": {"block_size": 7}},
        [("note", "draft-tokens-forced", "num_draft_tokens", None, 8)],
    ),
    (
        f"{PATH} --speculative-algorithm DSPARK --speculative-num-draft-tokens 7",
        {"method": "dspark", "version": "0.5.16", "config": {"block_size": 7}},
        [("error", "draft-tokens-forced", "num_draft_tokens", 7, None)],
    ),
    (
        f"{PATH} --speculative-algorithm DSPARK --speculative-dspark-block-size 5",
        {"method": "dspark", "version": "0.5.16"},
        [],
    ),
]


@pytest.mark.parametrize(("text", "given", "wanted"), CASES)
def test_findings_are_exactly_these(text, given, wanted):
    assert short(found(text, **given)) == wanted


PATHS = [
    ("DeepseekV3ForCausalLM", "0.4.6.post2", "mtp", []),
    ("DeepseekV3ForCausalLM", "0.4.6.post3", "mtp", ["note"]),
    ("DeepseekV3ForCausalLM", "0.5.14", "eagle3", ["warning"]),
    ("Glm4MoeForCausalLM", "0.4.9.post4", "mtp", []),
    ("Glm4MoeForCausalLM", "0.4.9.post5", "mtp", ["note"]),
    ("DeepseekV4ForCausalLM", "0.5.11", "mtp", []),
    ("DeepseekV4ForCausalLM", "0.5.12.post1", "mtp", ["note"]),
    ("LlamaForCausalLM", "0.5.14", "eagle3", ["error"]),
    (None, "0.5.14", "eagle3", ["error"]),
]


@pytest.mark.parametrize(("architecture", "version", "method", "wanted"), PATHS)
def test_a_whole_command_line_without_a_draft_path(architecture, version, method, wanted):
    algorithm = "NEXTN" if method == "mtp" else "EAGLE3"
    text = f"python -m sglang.launch_server --model-path /m --speculative-algorithm {algorithm} {shape(3, 1, 4)}"
    items = found(text, version=version, method=method, architecture=architecture)
    assert [item.slug for item in items] == ["draft-path-default"] * len(wanted)
    assert [item.severity for item in items] == wanted


@pytest.mark.parametrize(
    ("assignment", "version", "wanted"),
    [
        ("SGLANG_SIMULATE_ACC_LEN=4", "0.5.3", "error"),
        ("SGLANG_SIMULATE_ACC_LEN=4", "0.5.23", "error"),
        ("SGLANG_SIMULATE_ACC_LEN=2.5", "0.5.23", "error"),
        ("SGLANG_SIMULATE_ACC_LEN=-1", "0.5.23", None),
        ("SGLANG_SIMULATE_ACC_LEN=0", "0.5.23", None),
        ("SGLANG_SIMULATE_ACC_LEN=", "0.5.23", None),
        ("SGLANG_SIMULATE_ACC_LEN=$LEN", "0.5.23", "warning"),
        ("SGLANG_SIMULATE_ACC_LEN=inf", "0.5.23", "warning"),
        ("SGLANG_SIMULATE_ACC_LEN=4", "0.5.2", None),
        ("SIMULATE_ACC_LEN=4", "0.5.2", "error"),
        ("SIMULATE_ACC_LEN=4", "0.5.3", None),
        ("env SGLANG_SIMULATE_ACC_LEN=4", "0.5.23", "error"),
        ("docker run -e SGLANG_SIMULATE_ACC_LEN=4 image", "0.5.23", "error"),
    ],
)
def test_forced_acceptance(assignment, version, wanted):
    text = f"{assignment} python -m sglang.launch_server --model /m {EAGLE3} {shape(3, 1, 4)}"
    items = found(text, version=version)
    assert [(item.severity, item.slug) for item in items] == ([(wanted, "forced-acceptance")] if wanted else [])


@pytest.mark.parametrize(("value", "said"), [("'4\n5'", "'4\\n5'"), ("'\n'", "'\\n'"), ("x" * 99, "x" * 60)])
def test_forced_acceptance_stays_on_one_line(value, said):
    (item,) = found(f"SGLANG_SIMULATE_ACC_LEN={value} {EAGLE3} {shape(3, 1, 4)}")
    assert item.message.startswith(f"SGLANG_SIMULATE_ACC_LEN={said} may force")


def test_a_loosened_rule_is_a_warning():
    (item,) = found(f"{EAGLE3} {shape(3, 1, 4)} --speculative-accept-threshold-single 0.5")
    assert (item.severity, item.slug, item.details["parameter"]) == ("warning", "forced-acceptance", "lossy_acceptance")
    assert found(f"{EAGLE3} {shape(3, 1, 4)} --speculative-accept-threshold-single 1.0") == ()


def test_an_abbreviation_is_read_as_argparse_reads_it():
    """``--speculative-draft`` was unique before 0.5.2 and is ambiguous now."""
    text = f"--speculative-draft /drafter --speculative-algo EAGLE3 {shape(3, 1, 4)}"
    assert found(text, version="0.5.1") == ()
    with pytest.raises(UsageError, match=r"--speculative-draft is short for any of .*write it out"):
        found(text, version="0.5.2")


def test_effective_gives_both_values_and_the_reason():
    served = effective("sglang", "0.5.14", read_arguments(f"{EAGLE3} {shape(1, 1, 16)}"), method="eagle3")
    assert (served.num_draft_tokens.requested, served.num_draft_tokens.effective) == (16, 2)
    assert served.num_draft_tokens.origin == "forced"
    assert (served.num_steps.effective, served.top_k.effective) == (1, 1)
    assert served.algorithm.effective == "EAGLE3"
    assert served.draft_path.effective == "/drafter"
    assert served.forced_acceptance == ()


@pytest.mark.parametrize("runtime", ["lmdeploy", "llama.cpp", "transformers", ""])
def test_other_runtimes_have_no_rules(runtime):
    assert check_flags(runtime, "1.0", read_arguments(EAGLE3), method="eagle3") == ()


def test_flags_of_another_runtime_are_named_once():
    (item,) = found('vllm serve M --speculative-config \'{"method": "eagle3"}\'')
    assert (item.severity, item.slug) == ("note", "algorithm-missing")
    assert "flags of vllm" in item.message


def test_a_version_that_is_none():
    with pytest.raises(UsageError, match="is not a version"):
        found(EAGLE3, version="newest")
