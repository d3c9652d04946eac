"""``--feature-contract-capture PATH`` and ``--feature-contract-confidence X``: what was fed, as items ``observed``."""

from __future__ import annotations

import json
import shutil

import jsonschema
import pytest

pytest.importorskip("torch")

from tiny_engine import Engine, capture_tiny

import featurecontract
from featurecontract.render import render, report_schema

SLOTS = ["slot-0", "slot-1", "slot-2", "rows"]


def run(pytester, *captures, more=()):
    options = [f"--feature-contract-capture={item}" for item in captures]
    return pytester.runpytest("--feature-contract=ckpt", *options, "--feature-contract-report=r.json", "-v", *more)


def observed(found):
    return {name: word for name, word in found.items() if name.startswith("observed")}


def errors(result):
    return [line for line in result.outlines if line.startswith("could not check")]


def test_a_right_capture_passes_and_its_report_is_the_commands(pytester, tiny, outcomes):
    result = run(pytester, "good")
    assert observed(outcomes(result)) == {f"observed::{name}": "PASSED" for name in SLOTS}
    assert result.ret == 0
    found = json.loads((tiny / "r.json").read_text())
    jsonschema.validate(found, report_schema())
    command = json.loads(render(featurecontract.verify(tiny / "ckpt", [tiny / "good"]), "json"))
    assert found["observed"] == command["observed"]
    # No runtime was named, and none is needed: the capture says what is fed.
    assert (found["verdict"], found["exit_status"]) == ("pass", 0)
    assert "no runtime was named" not in result.stdout.str()


def test_a_swap_fails_its_slots_in_full_once_and_by_reference_then(pytester, tiny, outcomes):
    result = run(pytester, "swapped")
    assert observed(outcomes(result)) == {
        "observed::slot-0": "PASSED",
        "observed::slot-1": "FAILED",
        "observed::slot-2": "FAILED",
        "observed::rows": "PASSED",
    }
    text = result.stdout.str()
    report = featurecontract.verify(tiny / "ckpt", [tiny / "swapped"])
    block = render(report, "text")
    block = block[block.index("error FC303") :].split("\n\n")[0]
    assert text.count(block) == 1
    assert text.count("see ckpt/feature_contract.json::observed::slot-1") == 1
    assert "Traceback" not in text
    found = json.loads((tiny / "r.json").read_text())
    assert found["exit_status"] == 1
    assert found["findings"] == json.loads(render(report, "json"))["findings"]


def test_rows_at_other_tokens_fail_the_rows_and_the_slots_they_name(pytester, tiny, outcomes):
    assert tiny
    result = run(pytester, "rolled")
    found = observed(outcomes(result))
    assert set(found.values()) == {"FAILED"}
    assert list(found) == [f"observed::{name}" for name in SLOTS]
    assert "FC401 rows-shifted" in result.stdout.str()
    alone = run(pytester, "rolled", more=("-k", "rows"))
    alone.stdout.fnmatch_lines(["error FC401 rows-shifted*", "*rows are *1 against their tokens*"])


@pytest.mark.parametrize(
    ("captures", "groups"),
    [
        (("phases",), ["observed-prefill", "observed-decode"]),
        (("good", "good"), ["observed"]),
        (("good", "swapped"), ["observed-good-prefill", "observed-swapped-prefill"]),
        (("good", "decode"), ["observed-prefill", "observed-decode"]),
    ],
)
def test_the_names_of_the_groups_tell_them_apart(pytester, tiny, collected, captures, groups):
    if "decode" in captures:
        capture_tiny(tiny / "ckpt", tiny / "decode", phases=("decode",))
    result = run(pytester, *captures, more=("--collect-only", "-qq"))
    names = [line.partition(".json::")[2] for line in collected(result)]
    assert [name for name in names if name.startswith("observed")] == [f"{g}::{s}" for g in groups for s in SLOTS]
    assert result.ret == 0


def test_one_observation_of_two_fails_alone(pytester, tiny, outcomes):
    assert tiny
    found = observed(outcomes(run(pytester, "good", "swapped")))
    assert [name for name, word in found.items() if word == "FAILED"] == [
        "observed-swapped-prefill::slot-1",
        "observed-swapped-prefill::slot-2",
    ]
    report = json.loads((tiny / "r.json").read_text())
    assert len(report["observed"]) == 2
    assert [item["slug"] for item in report["findings"]] == ["order"]


def _empty(folder):
    shutil.rmtree(folder / "good")
    (folder / "good").mkdir()


def _no_json(folder):
    next((folder / "good").glob("*.json")).write_text("{")


def _foreign_json(folder):
    next((folder / "good").glob("*.json")).write_text('{"capture_version": "1.0", "calls": 3, "contract_sha256": ""}')


@pytest.mark.parametrize("harm", [_empty, _no_json, _foreign_json])
def test_a_capture_that_cannot_be_read_is_one_error_item(pytester, tiny, outcomes, harm):
    harm(tiny)
    result = run(pytester, "good")
    assert observed(outcomes(result)) == {"observed::capture": "ERROR"}
    (line,) = errors(result)
    assert line.startswith("could not check (nothing-captured): ")
    assert json.loads((tiny / "r.json").read_text())["exit_status"] == 2
    assert "Traceback" not in result.stdout.str()


def _truncated(folder):
    file = next((folder / "good").glob("*.safetensors"))
    file.write_bytes(file.read_bytes()[:-10])


def _no_probe(folder):
    (folder / "ckpt" / "feature_contract.probe").unlink()


def _no_rows(folder):
    file = next((folder / "good").glob("*.json"))
    value = json.loads(file.read_text())
    file.write_text(json.dumps(value | {"calls": []}))


def _another_contract(folder):
    file = next((folder / "good").glob("*.json"))
    value = json.loads(file.read_text())
    file.write_text(json.dumps(value | {"contract_sha256": "0" * 64}))


@pytest.mark.parametrize(
    ("harm", "slug"),
    [
        (_truncated, "nothing-captured"),
        (_no_probe, "probe-missing"),
        (_no_rows, "nothing-captured"),
        (_another_contract, "nothing-compared"),
    ],
)
def test_what_could_not_be_checked_is_an_error_of_every_item(pytester, tiny, outcomes, harm, slug):
    harm(tiny)
    result = run(pytester, "good")
    assert observed(outcomes(result)) == {f"observed::{name}": "ERROR" for name in SLOTS}
    assert all(line.startswith(f"could not check ({slug}): ") for line in errors(result))
    assert json.loads((tiny / "r.json").read_text())["exit_status"] == 2
    assert "Traceback" not in result.stdout.str()


def test_a_hook_that_let_go_proves_nothing(pytester, tiny, outcomes):
    file = next((tiny / "good").glob("*.json"))
    file.write_text(json.dumps(json.loads(file.read_text()) | {"failure": "fc: RuntimeError: full"}))
    result = run(pytester, "good")
    assert set(observed(outcomes(result)).values()) == {"ERROR"}
    assert "the capturing hook detached itself" in result.stdout.str()


def test_rows_of_another_prompt_prove_nothing(pytester, tiny, outcomes):
    import torch

    from featurecontract.capture import capturing, tag

    engine = Engine((0, 3, 6))
    with torch.no_grad(), capturing(engine.fc) as recording, tag(token_ids=[299] * 8, phase="prefill"):
        engine(torch.tensor([[299] * 8]))
    recording.save(tiny / "other")
    found = observed(outcomes(run(pytester, "other")))
    assert found == {f"observed::{name}": "ERROR" for name in SLOTS}


def test_only_the_state_of_step_two_is_nothing_captured(pytester, tiny, outcomes):
    file = next((tiny / "good").glob("*.json"))
    value = json.loads(file.read_text())
    value["calls"][0]["point"] = "recurrent"
    file.write_text(json.dumps(value))
    assert observed(outcomes(run(pytester, "good"))) == {f"observed::{name}": "ERROR" for name in SLOTS}


def test_without_torch_every_item_is_an_error_that_says_how_to_install_it(pytester, tiny, outcomes):
    assert tiny
    pytester.makeconftest("import sys\nsys.modules['torch'] = None")
    result = pytester.runpytest_subprocess("--feature-contract=ckpt", "--feature-contract-capture=good", "-v")
    found = outcomes(result)
    assert observed(found) == {f"observed::{name}": "ERROR" for name in SLOTS}
    assert found["contract::schema"] == "PASSED"
    assert 'pip install "featurecontract[torch]"' in result.stdout.str()


def test_below_the_asked_confidence_is_an_error(pytester, tiny, outcomes):
    assert tiny
    result = run(pytester, "good", more=("--feature-contract-confidence", "1.0"))
    assert "ERROR" in observed(outcomes(result)).values()
    assert "FC109 inconclusive" in result.stdout.str()
    assert json.loads((tiny / "r.json").read_text())["exit_status"] == 2
    assert run(pytester, "good", more=("--feature-contract-confidence=0.5",)).ret == 0


@pytest.mark.parametrize("value", ["1.5", "much", "nan", "-1"])
def test_a_confidence_that_is_none_is_a_usage_error(pytester, tiny, value):
    assert tiny
    result = run(pytester, "good", more=(f"--feature-contract-confidence={value}",))
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: --feature-contract-confidence: '{value}' is no number from 0 to 1; *"])


@pytest.mark.parametrize("value", ["gone", " "])
def test_a_path_that_is_not_there_is_a_usage_error(pytester, tiny, value):
    assert tiny
    result = run(pytester, value)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: --feature-contract-capture: '{value}' does not exist; name a capture-*"])


def test_a_file_of_a_capture_stands_for_it(pytester, tiny, outcomes):
    for pattern in ("*.json", "*.safetensors"):
        (file,) = (tiny / "good").glob(pattern)
        assert set(observed(outcomes(run(pytester, file))).values()) == {"PASSED"}


def test_the_ini_twins(pytester, tiny, outcomes):
    assert tiny
    pytester.makeini(
        "[pytest]\nfeature_contract = ckpt\n"
        "feature_contract_capture =\n    swapped\nfeature_contract_confidence = 0.8\n"
    )
    assert "FAILED" in observed(outcomes(pytester.runpytest("-v"))).values()


def test_a_capture_goes_to_the_contract_that_it_names(pytester, tiny, outcomes):
    shutil.copytree(tiny / "ckpt", tiny / "other")
    file = tiny / "other" / "feature_contract.json"
    file.write_text(file.read_text().replace('"method": "eagle3"', '"method": "hass"'))
    capture_tiny(tiny / "ckpt", tiny / "bound", contract=tiny / "ckpt")
    args = ("--feature-contract=ckpt", "--feature-contract=other", "--feature-contract-capture=bound", "-v")
    result = pytester.runpytest(*args)
    assert set(observed(outcomes(result)).values()) == {"PASSED"}
    assert not observed(outcomes(result, "other"))
    assert "other: no capture was made for this contract" in result.stdout.str()
    unbound = pytester.runpytest(*args[:2], "--feature-contract-capture=good", "-v")
    assert observed(outcomes(unbound))
    assert observed(outcomes(unbound, "other"))


def test_k_lf_and_pasted_node_ids(pytester, tiny):
    assert tiny
    run(pytester, "swapped", more=("-k", "observed and slot-2")).assert_outcomes(failed=1, deselected=9)
    # What is selected first says it in full.
    run(pytester, "swapped", more=("-k", "slot-2")).stdout.fnmatch_lines(["error FC303*", "*place:*slots 1, 2*"])
    run(pytester, "swapped")
    assert run(pytester, "swapped", more=("--lf",)).parseoutcomes()["failed"] == 2
    node = "ckpt/feature_contract.json::observed::slot-1"
    run(pytester, "swapped", more=(node,)).assert_outcomes(failed=1)


def test_xdist_gives_the_same_outcomes_and_report(pytester, tiny):
    pytest.importorskip("xdist")
    alone = run(pytester, "good", "swapped")
    first = json.loads((tiny / "r.json").read_text())
    spread = run(pytester, "good", "swapped", more=("-n", "2"))
    assert spread.parseoutcomes() == alone.parseoutcomes()
    assert json.loads((tiny / "r.json").read_text()) == first
    assert spread.stdout.str().count("what:          the declared slices were fed in another order") == 1


def test_it_is_computed_once_and_not_at_collection(pytester, tiny, monkeypatch):
    import featurecontract.gate

    assert tiny
    calls = []
    original = featurecontract.gate.verify_captures
    monkeypatch.setattr(featurecontract.gate, "verify_captures", lambda *a, **k: calls.append(1) or original(*a, **k))
    args = ("--feature-contract=ckpt", "--feature-contract-capture=phases")
    pytester.inline_run(*args, "--collect-only")
    pytester.inline_run(*args, "-k", "contract or checkpoint", "--deselect", "ckpt/feature_contract.json::observed")
    assert calls == []
    pytester.inline_run(*args, "-k", "observed-prefill")
    assert calls == [1]
    pytester.inline_run(*args)
    assert calls == [1] * 3


def test_strict_needs_no_runtime_beside_a_capture(pytester, tiny, outcomes):
    assert tiny
    found = outcomes(run(pytester, "good", more=("--feature-contract-strict",)))
    assert "predicted::runtime" not in found
    assert set(found.values()) == {"PASSED"}
