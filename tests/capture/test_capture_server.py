"""What captures inside of servers are made of: methods replaced, modules awaited, files written while they run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from types import SimpleNamespace

import pytest

pytest.importorskip("torch")

import torch

from featurecontract.capture import Tap, capturing, load
from featurecontract.capture._imported import when_imported
from featurecontract.capture._saver import Saver
from featurecontract.capture._vllm_facts import Requests, Step, accepted_rows, facts_v1, facts_v2
from featurecontract.errors import UsageError


class Drafter(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(4, 2)

    def combine(self, hidden_states):
        return self.fc(hidden_states)


def test_a_method_of_one_object_is_tapped_and_given_back():
    one, other = Drafter(), Drafter()
    rows = torch.randn(3, 4)
    with capturing(Tap.method(one, "combine", name="combine"), one.fc) as recording:
        one.combine(hidden_states=rows)
        other.combine(rows)
        assert "combine" in vars(one)
    assert "combine" not in vars(one)
    calls = recording.capture().calls
    assert [call.extra["place"] for call in calls] == ["combine", "Linear"]
    assert all(torch.equal(call.values, rows) for call in calls)
    with pytest.raises(UsageError, match="Drafter has no method 'join'"):
        Tap.method(one, "join")


def test_two_taps_of_one_method_let_go_in_any_order():
    drafter = Drafter()
    first, second = (capturing(Tap.method(drafter, "combine")) for _ in range(2))
    first.attach()
    second.attach()
    first.detach()
    drafter.combine(torch.randn(2, 4))
    second.detach()
    drafter.combine(torch.randn(2, 4))
    assert (len(first.capture().calls), len(second.capture().calls)) == (0, 1)


def test_a_module_is_met_when_it_is_imported(tmp_path, monkeypatch):
    (tmp_path / "awaited_here.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    met = []
    when_imported("awaited_here", lambda module: met.append(module.value))
    assert met == []
    import awaited_here  # noqa: F401

    assert met == [1]
    when_imported("awaited_here", lambda module: met.append(module.__name__))
    assert met == [1, "awaited_here"]


def test_a_module_is_imported_whatever_we_do_with_it(tmp_path, monkeypatch):
    (tmp_path / "awaited_there.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    when_imported("awaited_there", lambda module: module.no_such_name)
    import awaited_there

    assert awaited_there.value == 1


def waited(condition, seconds=20.0):
    limit = time.monotonic() + seconds
    while not condition() and time.monotonic() < limit:
        time.sleep(0.02)
    return condition()


def test_a_capture_is_written_when_calls_pause_and_replaces_the_one_before(tmp_path):
    drafter = Drafter()
    with capturing(drafter.fc) as recording:
        saver = Saver(recording, str(tmp_path), idle=0.05)
        for count in (1, 2):
            drafter.fc(torch.randn(3, 4))
            saver.touch()
            assert waited(lambda count=count: [len(item.calls) for item in _loaded(tmp_path)] == [count])
    assert len(list(tmp_path.glob("capture-*"))) == 2


def test_a_capture_is_written_under_steady_traffic(tmp_path):
    drafter = Drafter()
    with capturing(drafter.fc) as recording:
        saver = Saver(recording, str(tmp_path), idle=30.0, longest=0.2)
        drafter.fc(torch.randn(3, 4))

        def busy():
            saver.touch()
            return list(tmp_path.glob("capture-*.json"))

        assert waited(busy, 60)


def _loaded(place):
    return load(place) if list(place.glob("capture-*.json")) else ()


def test_a_process_that_is_killed_leaves_its_capture(tmp_path):
    code = """
        import sys, time, torch
        from featurecontract.capture import capturing
        from featurecontract.capture._saver import Saver
        module = torch.nn.Linear(4, 2)
        recording = capturing(module)
        recording.attach()
        saver = Saver(recording, sys.argv[1], idle=0.05)
        module(torch.randn(3, 4))
        saver.touch()
        time.sleep(600)
    """
    running = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code), str(tmp_path)])
    try:
        assert waited(lambda: list(tmp_path.glob("capture-*.json")), 120)
    finally:
        os.kill(running.pid, signal.SIGTERM)
        running.wait(30)
    (found,) = load(tmp_path)
    assert found.calls[0].values.shape == (3, 4)


def test_a_directory_that_cannot_be_written_is_one_line_and_no_harm(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    drafter = Drafter()
    with capturing(drafter.fc) as recording:
        saver = Saver(recording, str(tmp_path / "file" / "below"), idle=30.0)
        for _ in range(2):
            drafter.fc(torch.randn(3, 4))
            saver.touch()
            saver.flush()
    assert [record.getMessage()[:31] for record in caplog.records] == ["the capture cannot be written: "]


# --- what vLLM knows of its rows -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bounds", "rejected", "expected"),
    [
        ([0, 4], [0], [1, 1, 1, 1]),
        ([0, 4], [3], [1, 0, 0, 0]),
        ([0, 4, 8], [1, 2], [1, 1, 1, 0, 1, 1, 0, 0]),
        ([0, 1, 5], [0, 3], [1, 1, 0, 0, 0]),
    ],
)
def test_the_rows_of_rejected_drafts_are_not_accepted(bounds, rejected, expected):
    found = accepted_rows(torch.tensor(bounds, dtype=torch.int32), bounds[-1], torch.tensor(rejected))
    assert found.int().tolist() == expected


def test_where_nothing_was_drafted_nothing_is_said():
    assert accepted_rows(torch.tensor([0, 4]), 4, None) is None


@pytest.mark.parametrize(
    ("steps", "phases"),
    [
        ([[Step("a", 0, 20, 20)]], ["prefill"]),
        ([[Step("a", 0, 12, 20)], [Step("a", 12, 8, 20)]], ["chunked-prefill"] * 2),
        ([[Step("a", 16, 4, 20)]], ["prefix-hit"]),
        ([[Step("a", 0, 20, 20)], [Step("a", 20, 4, 20)]], ["prefill", "decode"]),
        ([[Step("a", 0, 20, 20), Step("b", 0, 9, 9)]], ["batch"]),
    ],
)
def test_phases_are_told_from_the_schedule(steps, phases):
    requests = Requests()
    assert [requests.phase_of(item)[0] for item in steps] == phases


def test_cached_positions_stay_known_for_the_request():
    requests = Requests()
    assert requests.phase_of([Step("a", 16, 2, 20)]) == ("prefix-hit", {"a": 16})
    assert requests.phase_of([Step("a", 18, 2, 20)]) == ("prefix-hit", {"a": 16})
    assert requests.phase_of([Step("a", 20, 4, 20), Step("b", 0, 3, 3)]) == ("batch", {"a": 16})


def test_the_facts_of_both_runners_are_the_same_for_the_same_step():
    tokens, positions = torch.arange(100, 106), torch.tensor([0, 1, 2, 7, 8, 9])
    bounds = torch.tensor([0, 3, 6], dtype=torch.int32)
    rejected = torch.tensor([0, 2])
    state = {"a": (0, 3), "b": (7, 5)}
    runner = SimpleNamespace(
        input_batch=SimpleNamespace(req_ids=["a", "b", "left over"], num_reqs=2),
        requests={
            name: SimpleNamespace(num_computed_tokens=start, num_prompt_tokens=prompt)
            for name, (start, prompt) in state.items()
        },
    )
    first = facts_v1(
        runner,
        {"a": 3, "b": 3},
        {
            "target_token_ids": tokens,
            "target_positions": positions,
            "num_rejected_tokens_gpu": rejected,
            "common_attn_metadata": SimpleNamespace(query_start_loc=bounds, query_start_loc_cpu=bounds),
        },
        Requests(),
    )
    numpy = pytest.importorskip("numpy")
    batch = SimpleNamespace(
        req_ids=["a", "b"],
        num_reqs=2,
        num_tokens=6,
        num_scheduled_tokens=numpy.array([3, 3]),
        num_computed_tokens_np=numpy.array([0, 7]),
        prefill_len_np=numpy.array([3, 5]),
        query_start_loc=bounds,
        input_ids=torch.cat([tokens, torch.zeros(2)]),
        positions=torch.cat([positions, torch.zeros(2)]),
    )
    second = facts_v2({"input_batch": batch, "num_rejected": rejected}, Requests())
    assert first["accepted"].int().tolist() == second["accepted"].int().tolist() == [1, 1, 1, 1, 0, 0]
    assert first["requests"] == second["requests"] == ["a", "a", "a", "b", "b", "b"]
    for name in ("token_ids", "positions"):
        assert first[name].tolist() == second[name].tolist()
    assert (first["phase"], first["cached"]) == (second["phase"], second["cached"]) == ("batch", {"b": 7})


def test_the_plugin_does_nothing_unless_it_is_asked_for(tmp_path):
    code = (
        "import json, sys\n"
        "import featurecontract.capture.vllm as plugin\n"
        "plugin.register()\n"
        "loaded = sorted(n for n in sys.modules if n.startswith('featurecontract') or n in ('torch', 'safetensors'))\n"
        "print(json.dumps([loaded, [type(f).__module__ for f in sys.meta_path]]))\n"
    )
    for directory, armed in (("", False), (str(tmp_path / "on"), True)):
        environment = os.environ | {"FEATURECONTRACT_CAPTURE": directory}
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120, env=environment
        )
        loaded, finders = json.loads(done.stdout)
        assert ("featurecontract.capture._imported" in finders) == armed
        assert "torch" not in loaded
        if not armed:
            assert loaded == ["featurecontract", "featurecontract._version", "featurecontract.capture", plugin_name()]
    assert len(list((tmp_path / "on").glob("armed-*.json"))) == 1


def plugin_name():
    return "featurecontract.capture.vllm"
