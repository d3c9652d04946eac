"""``run_live`` with the real engine in its own process: every phase, healthy and faulty, compiled, and dying."""

from __future__ import annotations

import pytest

from featurecontract.live import live_report, phases, run_live


def reports(case, out, **how):
    how["options"] = {"dtype": "float32"} | how.get("options", {})
    results = run_live("vllm", case.place, case.target, case.contract, probe=case.probe, out=out, **how)
    return {
        item.phase: (item, live_report(item, case.contract, case.probe, runtime="vllm", path=str(case.place)))
        for item in results
    }


@pytest.fixture(scope="module")
def healthy(recorded, tmp_path_factory):
    """Every phase of a drafter that is served as it was trained, and the lines that were said on the way."""
    lines = []
    case = recorded("llama", [1, 3, 5], "1,3,5")
    return reports(case, tmp_path_factory.mktemp("healthy"), progress=lines.append), lines


def test_every_phase_of_a_healthy_drafter_passes(healthy):
    found, lines = healthy
    assert tuple(found) == phases("vllm")
    assert {name: (result.problem, report.verdict) for name, (result, report) in found.items()} == dict.fromkeys(
        phases("vllm"), ("", "pass")
    )
    rows = {name: {item.rows for item in report.observed} for name, (_, report) in found.items()}
    # Every row of every prefix counts.
    wanted = {"prefill": 64, "chunked": 64, "batch": 64, "prefix-hit": 32, "decode": 63, "drafts": 205}
    assert rows == {name: {count} for name, count in wanted.items()}
    notes = {(name, item.slug) for name, (_, report) in found.items() for item in report.findings}
    assert notes == {("prefix-hit", "rows-missing")}
    assert {item.severity for _, report in found.values() for item in report.findings} == {"note"}
    assert "phase decode" in lines
    assert any("layers (1, 3, 5)" in line or "layers [1, 3, 5]" in line for line in lines)


def test_a_capture_of_an_engine_says_all_it_knows(healthy):
    from featurecontract.capture import load

    (capture,) = load(list(healthy[0]["decode"][0].captures))
    assert capture.runtime == "vllm==0.32.0"
    extra = capture.extra
    assert (extra["runner"], extra["method"], extra["aux_layer_ids"]) == ("V1", "eagle3", [1, 3, 5])
    assert extra["fc_modules"] == ["model.fc"]
    steps = [call for call in capture.calls if call.point == "projection_input" and call.values.shape[0] == 4]
    assert len(steps) == 16
    # What each of the eight verifications accepted, the bonus token's row always among them; both prompts alike.
    accepted = [sum(call.accepted) for call in steps]
    assert accepted == [4, 1, 3, 4, 2, 4, 4, 3] * 2
    for call in steps:
        assert len(call.draft_tokens) == 3
        # The drafter pairs each row with the token after it.
        kept = sum(call.accepted)
        assert call.drafter_token_ids[: kept - 1] == call.token_ids[1:kept]
        assert call.positions == tuple(range(call.positions[0], call.positions[0] + 4))


def test_compiled_and_in_a_process_of_its_own_it_is_fed_the_same(recorded, tmp_path, monkeypatch):
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "1")
    case = recorded("llama", [1, 3, 5], "1,3,5")
    found = reports(case, tmp_path, only=("prefill", "decode"), options={"enforce_eager": False})
    assert {name: (item.problem, report.verdict) for name, (item, report) in found.items()} == {
        "prefill": ("", "pass"),
        "decode": ("", "pass"),
    }
    assert not any("enforce_eager" in note for item, _ in found.values() for note in item.notes)


@pytest.mark.parametrize(
    ("options", "said"),
    [({"no_such_setting": 1}, "no_such_setting"), ({"block_size": 16}, "No common block size")],
)
def test_an_engine_that_does_not_start_is_one_clear_line(recorded, tmp_path, options, said):
    case = recorded("llama", [1, 3, 5], "1,3,5")
    found = reports(case, tmp_path, only=("prefill",), options=options)
    result, report = found["prefill"]
    assert said in result.problem
    assert "\n" not in result.problem
    assert len(result.problem) < 700
    assert (report.verdict, [item.slug for item in report.findings]) == ("could-not-check", ["nothing-captured"])


def test_an_engine_that_takes_too_long_is_stopped(recorded, tmp_path):
    case = recorded("llama", [1, 3, 5], "1,3,5")
    found = reports(case, tmp_path, only=("prefill",), timeout=2.0)
    assert "did not end within 2 s" in found["prefill"][0].problem
