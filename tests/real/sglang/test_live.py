"""The phases of a live run in a whole SGLang engine: scheduler, radix cache, chunks, batches, verify steps."""

from __future__ import annotations

import json
import socket
import subprocess
import sys

import pytest
from drafters import as_speculators
from sglang_cpu import environment

from featurecontract.capture import load
from featurecontract.gate import verify

PLAIN = ("prefill", "batch", "prefix-hit", "chunked")
LABELS = {"chunked": "chunked-prefill"}
VERSION = "0.5.23"


@pytest.fixture(scope="module")
def honest(recorded):
    return recorded([1, 3, 4], "2,4,5")


@pytest.fixture(scope="module")
def ran(honest, live):
    return live(honest, PLAIN)


def boundaries(report):
    return {tuple(feature.boundary for feature in item.wiring.features) for item in report.observed}


@pytest.mark.parametrize("phase", PLAIN)
def test_a_phase_runs_and_is_no_false_alarm(ran, phase):
    result, report = ran.results[phase], ran.reports[phase]
    assert result.problem == ""
    assert {(item.phase, item.point) for item in report.observed} == {
        (LABELS.get(phase, phase), point) for point in ("features", "projection_input")
    }
    assert boundaries(report) == {(2, 4, 5)}
    assert (report.verdict, {item.slug for item in report.findings if item.severity != "note"}) == ("pass", set())
    assert any(VERSION in note for note in result.notes)


def test_every_row_of_the_probe_was_compared_but_those_from_the_cache(ran):
    rows = {phase: {item.rows for item in report.observed} for phase, report in ran.reports.items()}
    assert rows["prefill"] == rows["batch"] == rows["chunked"] == {64}
    (left,) = rows["prefix-hit"]
    assert 16 <= left < 64
    missing = [item for item in ran.reports["prefix-hit"].findings if item.slug == "rows-missing"]
    assert missing
    assert {(item.severity, item.details["count"]) for item in missing} == {("note", 64 - left)}


def test_the_phases_are_what_they_say(ran, honest):
    ids = tuple(honest.probe.token_ids.tolist())
    chunked = [call for item in load(ran.results["chunked"].captures) for call in item.calls]
    parts = [call for call in chunked if call.point == "features" and set(call.token_ids) <= set(ids)]
    probe_parts = [call.token_ids for call in parts if call.token_ids[0] == ids[call.positions[0]]]
    assert len(probe_parts) > 1
    assert tuple(token for part in probe_parts for token in part) == ids
    batch = [call for item in load(ran.results["batch"].captures) for call in item.calls]
    assert max(len(set(call.requests)) for call in batch) > 1
    # In a chunk that is not the last one the drafter's last token is the prompt's next.
    first = next(call for call in parts if call.token_ids == probe_parts[0])
    assert first.drafter_token_ids == ids[1 : len(probe_parts[0]) + 1]


def test_decode_steps_feed_accepted_rows_and_rejected_ones_do_not_count(honest, live):
    found = live(honest, ("decode",), TRITON_INTERPRET="1")
    report = found.reports["decode"]
    assert found.results["decode"].problem == ""
    assert "4, 1, 3, 4, 2, 4, 4, 3 accepted rows of 4" in " ".join(found.results["decode"].notes)
    assert boundaries(report) == {(2, 4, 5)}
    assert (report.verdict, report.findings) == ("pass", tuple(i for i in report.findings if i.severity == "note"))
    steps = [call for item in load(found.results["decode"].captures) for call in item.calls if call.accepted]
    assert sum(not all(call.accepted) for call in steps) > 1
    assert {len(call.draft_tokens) for call in steps} <= {1, 3}


def test_without_a_cpu_backend_decode_is_not_run_and_says_so(honest, live):
    found = live(honest, ("decode",), TRITON_INTERPRET="0")
    assert "TRITON_INTERPRET=1" in found.results["decode"].problem
    report = found.reports["decode"]
    assert (report.verdict, [item.slug for item in report.findings]) == ("could-not-check", ["nothing-captured"])


def test_a_contract_that_is_one_layer_off_fails_live(recorded, live):
    copied = recorded([2, 4, 5], "2,4,5")
    report = live(copied, ("prefill",)).reports["prefill"]
    errors = {(item.slug, item.slots, item.details["shift"]) for item in report.findings if item.severity == "error"}
    assert errors == {("layer-shift", (0, 1, 2), 1)}


def test_a_drafter_that_sglang_refuses_is_could_not_check_with_its_words(recorded, live):
    refused = recorded(None, "2,4,5", change=lambda folder: as_speculators(folder, [2, 4, 5]))
    found = live(refused, ("prefill",))
    assert "model_type" in found.results["prefill"].problem
    assert "\n" not in found.results["prefill"].problem
    assert found.reports["prefill"].verdict == "could-not-check"


def test_forward_hooks_are_a_way_without_plugins(honest, engine_once, tmp_path):
    hook = {
        "name": "featurecontract",
        "target_modules": ["model", "model.fc"],
        "hook_factory": "featurecontract.capture.sglang:forward_hook",
        "config": {"directory": str(tmp_path / "hooked")},
    }
    ids = honest.probe.token_ids.tolist()
    engine_once(
        honest,
        prompts=[ids[::-1], ids],
        settings={"forward_hooks": [hook]},
        SGLANG_PLUGINS="featurecontract-sglang-cpu",
    )
    (found,) = load(tmp_path / "hooked")
    assert found.extra["through"] == "--forward-hooks"
    report = verify(honest.place, [tmp_path / "hooked"])
    assert boundaries(report) == {(2, 4, 5)}
    assert (report.verdict, report.findings) == ("pass", ())
    assert {item.point: item.rows for item in report.observed} == {"features": 64, "projection_input": 64}


@pytest.mark.slow
def test_a_whole_engine_generates_the_same_with_capture_and_without(honest, engine_once, tmp_path):
    ids = honest.probe.token_ids.tolist()
    asked = {"prompts": [ids[:24], ids[30:50]], "tokens": 8, "TRITON_INTERPRET": "1"}
    without = engine_once(honest, **asked)
    assert engine_once(honest, **asked, FEATURECONTRACT_CAPTURE=str(tmp_path)) == without
    calls = [call for item in load(tmp_path) for call in item.calls]
    assert {call.phase for call in calls} == {"prefill", "decode"}
    assert json.loads(next(tmp_path.glob("armed-*.json")).read_text())["runtime"] == "sglang"


@pytest.mark.slow
def test_a_server_by_its_own_command_is_captured(honest, tmp_path):
    out = tmp_path / "captured"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = f"{sys.executable} -m sglang.launch_server --model-path {honest.target} --port {port} --device cpu"
    server += f" --dtype float32 --speculative-algorithm EAGLE3 --speculative-draft-model-path {honest.place}"
    server += " --speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 4"
    server += " --attention-backend torch_native --sampling-backend pytorch --grammar-backend none --disable-cuda-graph"
    server += " --disable-overlap-schedule --mem-fraction-static 0.5 --max-total-tokens 2048 --max-running-requests 4"
    server += " --skip-server-warmup"
    command = [sys.executable, "-m", "featurecontract", "capture", str(honest.place), "--runtime", "sglang"]
    done = subprocess.run(
        [*command, "--out", str(out), "--", *server.split()],
        env=environment(SGLANG_USE_CPU_ENGINE="1"),
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    report = verify(honest.place, [out])
    assert boundaries(report) == {(2, 4, 5)}
    assert (report.verdict, [item for item in report.findings if item.severity != "note"]) == ("pass", [])
    assert list(out.glob("armed-*.json"))


def test_plugins_that_keep_ours_out_are_could_not_check_at_once(honest, live):
    found = live(honest, ("prefill", "batch"), SGLANG_PLUGINS="featurecontract-sglang-cpu")
    assert {item.problem for item in found.results.values()} == {
        "SGLANG_PLUGINS=featurecontract-sglang-cpu keeps the plugin 'featurecontract' out; add it or unset the variable"
    }
    assert {report.verdict for report in found.reports.values()} == {"could-not-check"}


def test_without_the_stand_ins_the_cpu_is_named(honest, live):
    found = live(honest, ("prefill",), PYTHONPATH="")
    assert "finds no GPU and no sgl_kernel" in found.results["prefill"].problem
