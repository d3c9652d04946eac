"""`featurecontract diagnose` on a target, a drafter, states and captures that belong together: one fault at a time."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import save_file
from tiny_drafters import Tiny
from tiny_engine import capture_tiny, record_tiny
from tiny_runs import DEPTH, WIDTH, run, weights

from featurecontract import contract as fc
from featurecontract.checkpoint import open_checkpoint
from featurecontract.cli import cli
from featurecontract.errors import FeatureContractError
from featurecontract.replay import drafted_tokens, read_drafter

VOCAB, SEQUENCES, LENGTH = 300, 16, 36
DECLARED, STORY = (0, 3, 6), (3, 6, 9)
PLANES = "embedding," + ",".join(map(str, range(1, DEPTH + 1)))


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    """A checkpoint with contract and probe, and states of texts that its drafter predicts under the declared wiring."""
    root = tmp_path_factory.mktemp("case")
    tiny = Tiny(hidden=WIDTH, target_hidden=WIDTH, vocab=VOCAB, draft_vocab=120, heads=6, kv_heads=6, head_dim=16)
    tiny.config["eagle_config"] = {"eagle_aux_hidden_state_layer_ids": [-1, 2, 5]}
    tiny.write(root / "ckpt")
    (root / "target").mkdir()
    (root / "target" / "config.json").write_text(
        json.dumps(
            {
                "architectures": ["LlamaForCausalLM"],
                "model_type": "llama",
                "num_hidden_layers": DEPTH,
                "hidden_size": WIDTH,
                "vocab_size": VOCAB,
            }
        )
    )
    invoke("init", str(root / "ckpt"), "--target", str(root / "target"), "--features", "0,3,6")
    record_tiny(root / "ckpt")
    drafter = read_drafter(open_checkpoint(root / "ckpt"), contract=fc.load(root / "ckpt"))
    (root / "states").mkdir()
    for number in range(SEQUENCES):
        ids = written(drafter, number)
        planes = torch.stack(run(weights(), ids).boundary, dim=1)
        save_file({"hidden_states": planes, "token_ids": ids}, root / "states" / f"hs_{number}.safetensors")
    return root


def written(drafter, seed):
    """Tokens that mostly follow what the drafter drafts from the target's own planes of the tokens before."""
    g = torch.Generator().manual_seed(seed)
    ids = torch.randint(VOCAB, (LENGTH,), generator=g)
    for row in range(LENGTH - 2):
        seen = ids[: row + 2]
        planes = run(weights(), seen[: row + 1])
        features = torch.cat([planes.boundary[b] for b in DECLARED], dim=-1)
        drafted = drafted_tokens(drafter, features, seen, steps=1)[-1, 0]
        if float(torch.rand((), generator=g)) < 0.7:
            ids[row + 2] = drafted
    return ids


@pytest.fixture
def quality(case):
    """Let the contract state figures for one test."""
    before = (case / "ckpt" / fc.CONTRACT_FILE).read_bytes()

    def state(**figures):
        fc.save(replace(fc.load(case / "ckpt"), quality=fc.Quality(**figures)), case / "ckpt")

    yield state
    (case / "ckpt" / fc.CONTRACT_FILE).write_bytes(before)


def invoke(*arguments, status=0):
    result = CliRunner().invoke(cli, list(arguments), standalone_mode=False)
    if isinstance(result.exception, FeatureContractError):
        assert status == 2, result.exception
        return str(result.exception)
    code = result.exception.code if isinstance(result.exception, SystemExit) else result.exit_code
    assert code == status, (code, result.output[-3000:], result.exception)
    return result.stdout


def diagnose(case, *arguments, status=0):
    return json.loads(invoke("diagnose", str(case / "ckpt"), *arguments, "-o", "json", status=status))


def replayed(case):
    return ("--states", str(case / "states"), "--planes", PLANES)


def captured(case, folder, fed=DECLARED, **keywords):
    capture_tiny(case / "ckpt", folder, fed, runtime="sglang==0.5.23", **keywords)
    return str(folder)


def test_nothing_but_a_checkpoint_is_undecided_and_says_what_to_provide(case):
    report = diagnose(case, status=2)
    assert report["diagnosis"]["cause"] == "undecided"
    asked = [text.split()[0] for text in report["diagnosis"]["missing"]]
    assert asked == ["a", "--states", "--runtime", "--serve-args", "--acceptance"]
    assert [item["slug"] for item in report["findings"]] == ["inconclusive"]
    # The drafter's weights and the probe are enough for one figure.
    rows = next(item for item in report["diagnosis"]["evidence"] if item["name"] == "rows")
    assert rows["ran"]
    assert "golden rows: step 1 is the probe's own next token in" in rows["text"]


def test_another_wiring_in_the_capture_is_the_wiring_and_its_effect_is_measured(case, tmp_path):
    report = diagnose(case, captured(case, tmp_path / "c", STORY), *replayed(case), status=1)
    found = report["diagnosis"]
    assert found["cause"] == "wiring"
    assert found["sentence"].startswith("wiring: sglang==0.5.23 prefill: ")
    assert "replayed with that, step 1 is right in" in found["sentence"]
    assert found["missing"] == []
    assert [item["slug"] for item in report["findings"] if item["severity"] == "error"] == ["embedding-missing"]
    declared, story = report["replayed"]
    assert [item["boundary"] for item in story["features"]] == list(STORY)
    assert declared["accuracy"][0]["value"] > story["accuracy"][0]["value"] + 0.2
    rows = next(item for item in found["evidence"] if item["name"] == "rows")["text"]
    same, of = (int(rows.rpartition(": ")[2].split()[at]) for at in (0, 2))
    assert same < of / 2


def test_a_predicted_wiring_is_the_wiring_too(case):
    report = diagnose(case, "--runtime", "sglang==0.5.12", status=1)
    assert report["diagnosis"]["cause"] == "wiring"
    assert report["diagnosis"]["sentence"].startswith("wiring: sglang==0.5.12: ")


def test_a_served_acceptance_that_the_weights_give_is_the_drafter(case, tmp_path):
    capture = captured(case, tmp_path / "c")
    length = diagnose(case, capture, *replayed(case), status=2)["replayed"][0]["acceptance_length"]["value"]
    report = diagnose(case, capture, *replayed(case), "--acceptance", f"{length:.2f}")
    assert report["diagnosis"]["cause"] == "drafter"
    assert "nothing is lost on the way" in report["diagnosis"]["sentence"]
    assert report["verdict"] == "pass"
    # The rows that were fed draft what the golden ones do.
    rows = next(item for item in report["diagnosis"]["evidence"] if item["name"] == "rows")["text"]
    assert rows.endswith("sglang==0.5.23 prefill: 64 of 64 rows draft what the golden ones draft")


def test_a_served_acceptance_below_the_weights_is_lost_somewhere(case, tmp_path):
    report = diagnose(case, captured(case, tmp_path / "c"), *replayed(case), "--acceptance", "1.0", status=2)
    assert report["diagnosis"]["cause"] == "undecided"
    assert "1.00 tokens per round are served where the weights accept" in report["diagnosis"]["sentence"]


def test_figures_below_the_contracts_are_the_drafter(case, quality):
    quality(step_accuracies=(0.95,))
    report = diagnose(case, *replayed(case), status=1)
    assert report["diagnosis"]["cause"] == "drafter"
    assert [item["slug"] for item in report["findings"]] == ["accuracy-below"]


def test_a_forced_acceptance_is_a_flag(case):
    arguments = "python -m sglang.launch_server --speculative-algorithm EAGLE3 --speculative-draft-model-path ckpt "
    arguments += "--speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 16"
    report = diagnose(case, "--runtime", "sglang==0.5.23", "--serve-args", arguments, status=1)
    assert report["diagnosis"]["cause"] == "flags"
    assert [item["slug"] for item in report["findings"] if item["severity"] == "error"] == ["draft-tokens-forced"]


def test_wiring_and_a_weak_drafter_are_both_said(case, quality, tmp_path):
    quality(step_accuracies=(0.95,))
    report = diagnose(case, captured(case, tmp_path / "c", (0, 6, 3)), *replayed(case), status=1)
    assert report["diagnosis"]["cause"] == "wiring"
    assert [text.split(":")[0] for text in report["diagnosis"]["also"]] == ["drafter quality"]


@pytest.mark.parametrize("fmt", ["text", "markdown", "html", "github", "sarif", "junit"])
def test_every_format_ends_in_the_sentence(case, fmt):
    shown = invoke("diagnose", str(case / "ckpt"), "--runtime", "sglang==0.5.12", "-o", fmt, status=1)
    if fmt != "junit":
        assert "wiring: sglang==0.5.12: " in shown.replace("\\", "")
    else:
        assert 'name="slot-0"' in shown or "slot" in shown


def test_evidence_that_cannot_be_used_stops_none_of_the_rest(case, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn" / "hs_0.safetensors").write_bytes(b"\x10" + bytes(7) + b"not a header")
    arguments = (str(tmp_path / "empty"), "--states", str(tmp_path / "torn"), "--runtime", "sglang==0.5.12")
    report = diagnose(case, *arguments, status=1)
    assert report["diagnosis"]["cause"] == "wiring"
    ran = {item["name"]: item["ran"] for item in report["diagnosis"]["evidence"]}
    assert ran == {"static": True, "captured": False, "drafts": False, "rows": True, "replay": False}
    assert {item["slug"] for item in report["findings"]} >= {"nothing-captured", "checkpoint-unreadable"}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--acceptance", "0.4"), "--acceptance 0.4"),
        (("--acceptance", "nan"), "--acceptance nan"),
        (("--text", "a"), "--text and --tokens are for a target that is run: give --target DIR"),
        (("--planes", "0,3,6"), "--planes names the planes of stored states: give --states DIR"),
        (("--planes", "0,x,6", "--states", "."), "'0,x,6'"),
        (("--states", "nowhere"), "--states nowhere: does not exist"),
        (("nowhere",), "CAPTURE nowhere: does not exist"),
        (("--serve-args", " "), "--serve-args"),
    ],
)
def test_options_that_cannot_be_used_are_refused(case, arguments, said):
    assert said in invoke("diagnose", str(case / "ckpt"), *arguments, status=2)


def test_a_checkpoint_without_a_contract_says_how_to_get_one(case, tmp_path):
    Tiny().write(tmp_path / "bare")
    shown = invoke("diagnose", str(tmp_path / "bare"), "--target", str(case / "target"), status=2)
    assert "featurecontract init" in shown
