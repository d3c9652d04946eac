"""The SGLang engine of live runs, as far as it goes without SGLang: what is said when it cannot be run."""

from __future__ import annotations

import importlib.metadata
import json
import os
import sys
from types import SimpleNamespace

import pytest

pytest.importorskip("torch")

from featurecontract.capture import Call, Capture, save
from featurecontract.live import _sglang_plugin as plugin
from featurecontract.live import sglang_engine
from featurecontract.live._engine import CannotRun, Phase
from featurecontract.live._job import Job, other_prompts, prefix_lengths
from featurecontract.live._sglang_force import _drafts, _Plan, _replace_drafts
from featurecontract.live._sglang_phases import ACCEPTED, PHASES, SglangRun

IDS = tuple(range(2, 66))


@pytest.fixture
def job(tmp_path):
    return Job(
        runtime="sglang",
        checkpoint="drafter",
        target="target",
        out=str(tmp_path),
        phases=tuple(PHASES),
        token_ids=IDS,
        others=other_prompts(IDS),
    )


@pytest.fixture
def released(monkeypatch):
    """Return a function that makes SGLang look installed in a version."""

    def install(version):
        real = importlib.metadata.version
        monkeypatch.setattr(importlib.metadata, "version", lambda name: version if name == "sglang" else real(name))

    return install


def test_a_release_without_plugins_is_named(released):
    released("0.5.10.post1")
    with pytest.raises(CannotRun, match=r"SGLang 0\.5\.10\.post1 has no plugins \(they came with 0\.5\.11\)"):
        plugin.usable_version()
    released("0.5.11")
    assert plugin.usable_version() == "0.5.11"


def test_without_sglang_the_import_says_so(monkeypatch):
    def absent(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", absent)
    with pytest.raises(ImportError, match="No module named 'sglang'"):
        plugin.usable_version()


def test_plugins_that_keep_ours_out_are_named(job, monkeypatch):
    monkeypatch.setenv("SGLANG_PLUGINS", "other")
    with pytest.raises(CannotRun, match="SGLANG_PLUGINS=other keeps the plugin 'featurecontract' out"):
        plugin.prepare(job, accepted=ACCEPTED)


def test_the_run_brings_its_entry_points_and_the_plan_of_forced_tokens(job, monkeypatch, tmp_path):
    for name in ("SGLANG_PLUGINS", "PYTHONPATH", "FEATURECONTRACT_CAPTURE_ROWS", "FEATURECONTRACT_LIVE_FORCE"):
        monkeypatch.setenv(name, "")
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert plugin.prepare(job, accepted=ACCEPTED) == tmp_path / "captured"
    names = {item.name for item in importlib.metadata.entry_points(group="sglang.srt.plugins")}
    assert {"featurecontract", "featurecontract-live"} <= names
    assert str(tmp_path / "plugin") in os.environ["PYTHONPATH"].split(os.pathsep)
    plan = _Plan(os.environ["FEATURECONTRACT_LIVE_FORCE"])
    assert plan.of("fc-decode-1") == list(IDS)
    assert plan.of("fc-decode-0") == list(job.others[0])
    assert plan.of("of somebody else") is None
    assert [plan.accepts("fc-decode-1") for _ in range(9)] == [*ACCEPTED, ACCEPTED[0]]


def test_exactly_the_planned_drafts_are_what_comes():
    import torch

    drafted = torch.tensor([50, 51, 52])
    assert _drafts([7, 0, 9], 3, drafted).tolist() == [7, 0, 9]
    assert _drafts([7, 0, 9], 1, drafted).tolist() == [7, 1, 52]
    assert _drafts([7, 0, 9], 0, drafted).tolist() == [6, 51, 52]
    assert _drafts([], 3, drafted).tolist() == [50, 51, 52]


def test_drafts_are_replaced_for_forced_requests_only(job, monkeypatch):
    import torch

    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in ("SGLANG_PLUGINS", "PYTHONPATH", "FEATURECONTRACT_CAPTURE_ROWS", "FEATURECONTRACT_LIVE_FORCE"):
        monkeypatch.setenv(name, "")
    plugin.prepare(job, accepted=(2,))
    drafted = torch.tensor([40, 50, 51, 52, 41, 60, 61, 62])
    batch = SimpleNamespace(
        reqs=[SimpleNamespace(rid="fc-decode-1"), SimpleNamespace(rid="else")],
        seq_lens=torch.tensor([10, 12]),
        spec_info=SimpleNamespace(draft_token=drafted),
    )
    _replace_drafts(_Plan(os.environ["FEATURECONTRACT_LIVE_FORCE"]), batch)
    assert drafted.tolist() == [40, IDS[11], IDS[12], IDS[13] - 1, 41, 60, 61, 62]


@pytest.mark.parametrize("rows", [1, 2, 5, 12, 16, 64, 256])
def test_prefixes_are_as_far_apart_as_they_are_long(rows):
    lengths = prefix_lengths(rows)
    assert lengths[0] == 1
    assert lengths[-1] == rows
    assert list(lengths) == sorted(set(lengths))
    assert len(lengths) == min(rows, 12)


def test_phases_of_equal_settings_share_an_engine_and_the_users_settings_win(job, monkeypatch):
    monkeypatch.setattr(sglang_engine, "_on_cpu", lambda: False)
    groups = [names for names, _ in sglang_engine._groups(job)]
    assert groups == [["prefill", "batch", "prefix-hit", "decode", "drafts"], ["chunked"]]
    assert sglang_engine.settings(job, "chunked")["chunked_prefill_size"] < len(IDS)
    mine = Job(**{name: getattr(job, name) for name in Job.__slots__} | {"options": {"random_seed": 9}})
    assert sglang_engine.settings(mine, "prefill")["random_seed"] == 9


def test_on_a_cpu_decode_needs_an_attention_that_can(job, monkeypatch):
    monkeypatch.setattr(sglang_engine, "_on_cpu", lambda: True)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    assert "TRITON_INTERPRET=1" in sglang_engine.settings(job, "decode")
    for phase in ("prefill", "drafts"):
        assert sglang_engine.settings(job, phase)["attention_backend"] == "torch_native"
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert sglang_engine.settings(job, "decode") == sglang_engine.settings(job, "drafts")
    assert sglang_engine.settings(job, "decode")["attention_backend"] == "triton"
    assert sglang_engine.settings(job, "prefill")["attention_backend"] == "torch_native"


def test_a_method_that_is_not_run_live_is_named(job):
    other = Job(**{name: getattr(job, name) for name in Job.__slots__} | {"method": "medusa"})
    with pytest.raises(CannotRun, match="a drafter of method medusa is not run live in SGLang"):
        sglang_engine.main(other)


@pytest.fixture
def run(job, tmp_path, monkeypatch):
    """An engine that is no engine: what it generates is given, what was captured lies in a directory."""
    monkeypatch.setitem(sys.modules, "sglang", SimpleNamespace(Engine=lambda **_: SimpleNamespace()))
    monkeypatch.setenv("FEATURECONTRACT_CAPTURE", "")
    (tmp_path / "captured").mkdir()
    return SglangRun(job, {}, tmp_path / "captured")


def test_a_server_without_the_plugin_is_told_from_one_that_let_go(run):
    with pytest.raises(CannotRun, match="the capture plugin left no file"):
        run.check_plugin()
    path = run.captured / "capture-1-r0-x.json"
    path.write_text(json.dumps({"failure": "start: LookupError: no fc", "extra": {}}))
    with pytest.raises(CannotRun, match="the capture plugin let go: start: LookupError: no fc"):
        run.check_plugin()
    path.write_text(json.dumps({"failure": "", "extra": {"resolved_ids": None, "layers_to_capture": [2, 4, 5]}}))
    run.check_plugin()
    assert run.facts == "ids None read from the drafter, layers_to_capture [2, 4, 5]"


def fed(request, positions):
    import torch

    rows = len(positions)
    return Call(
        values=torch.randn(rows, 6), positions=positions, requests=(request,) * rows, token_ids=tuple(range(rows))
    )


def test_what_was_drafted_is_waited_for(run, tmp_path, monkeypatch):
    """The rows of a pass may be written before its tokens are said."""
    from dataclasses import replace

    monkeypatch.setattr("featurecontract.live._sglang_phases._SOON", 30.0)
    early = fed("fc-prefill-1", (0, 1))
    files = iter([replace(early, draft_tokens=None), replace(early, draft_tokens=(5,))])
    monkeypatch.setattr(run, "_load", lambda: (Capture(calls=(next(files),), extra={"rank": 0}),))
    (taken,) = run.collect(Phase("prefill", tmp_path / "prefill"), "prefill", {"fc-prefill-1": 1})
    assert taken.draft_tokens == (5,)
    # Nobody says tokens here: the rows are taken all the same, a little later.
    monkeypatch.setattr("featurecontract.live._sglang_phases._SOON", 0.1)
    monkeypatch.setattr(run, "_load", lambda: (Capture(calls=(early,), extra={"rank": 0}),))
    (taken,) = run.collect(Phase("prefill", tmp_path / "prefill"), "prefill", {"fc-prefill-1": 1})
    assert taken.draft_tokens is None


def test_the_calls_of_a_phase_are_taken_by_request(run, tmp_path, monkeypatch):
    monkeypatch.setattr("featurecontract.live._sglang_phases._SOON", 0.1)
    calls = (fed("fc-prefill-1", (0, 1)), fed("fc-batch-0", (0, 1)), fed("fc-prefill-1", (2,)))
    save(Capture(calls=calls, extra={"rank": 0}), run.captured)
    running = Phase("prefill", tmp_path / "prefill")
    taken = run.collect(running, "prefill", {"fc-prefill-1": 2})
    assert [call.positions for call in taken] == [(0, 1), (2,)]
    from featurecontract.capture import load

    (kept,) = load(tmp_path / "prefill")
    assert {call.phase for call in kept.calls} == {"prefill"}


def test_rows_that_never_come_are_could_not_check(run, tmp_path, monkeypatch):
    monkeypatch.setattr("featurecontract.live._sglang_phases._WAIT", 0.3)
    save(Capture(calls=(fed("fc-prefill-1", (0, 1)),), extra={"rank": 0}), run.captured)
    with pytest.raises(CannotRun, match="was not fed all rows"):
        run.collect(Phase("prefill", tmp_path / "prefill"), "prefill", {"fc-prefill-1": 5})
