"""Capture changes nothing for those who are served: not the tokens, and not the service when it breaks."""

from __future__ import annotations

import json
import logging
import subprocess
import sys

import pytest

from featurecontract.errors import InputError


@pytest.fixture
def prompts(recorded):
    from featurecontract.live._job import other_prompts

    case = recorded("llama", [1, 3, 5], "1,3,5")
    ids = tuple(case.probe.token_ids.tolist())
    return [ids[:20], ids, *(other[:40] for other in other_prompts(ids))]


def test_tokens_are_the_same_with_capture_on_and_off(recorded, engine, prompts):
    case = recorded("llama", [1, 3, 5], "1,3,5")
    running = engine(case)
    with_capture = running.run(prompts, tokens=24)
    running.call("pause")
    paused = running.run(prompts, tokens=24)
    running.call("remove")
    without = running.run(prompts, tokens=24)
    assert with_capture == paused == without
    assert len({tuple(tokens) for tokens in without}) == len(prompts)


def test_a_failing_hook_lets_go_and_the_server_goes_on(recorded, engine, fed, prompts, monkeypatch, caplog):
    from featurecontract.capture import _vllm_worker as worker

    case = recorded("llama", [1, 3, 5], "1,3,5")
    running = engine(case)
    healthy = running.run(prompts, tokens=8)

    def broken(*_):
        raise RuntimeError("no such field")

    monkeypatch.setattr(worker, "facts_v1", broken)
    with caplog.at_level(logging.WARNING, "featurecontract.capture"):
        assert running.run(prompts, tokens=8) == healthy
        with pytest.raises(InputError, match="the capture let go: propose: RuntimeError: no such field"):
            fed(running, case)
    said = [record for record in caplog.records if record.name == "featurecontract.capture"]
    assert len(said) == 1


def test_a_release_with_other_names_is_refused_in_one_line(recorded, engine, monkeypatch):
    from vllm.v1.spec_decode.llm_base_proposer import SpecDecodeBaseProposer

    from featurecontract.errors import UsageError

    monkeypatch.delattr(SpecDecodeBaseProposer, "set_inputs_first_pass")
    with pytest.raises(UsageError, match=r"vLLM 0\.32\.0 has no EagleProposer\.set_inputs_first_pass; this capture is"):
        engine(recorded("llama", [1, 3, 5], "1,3,5"))


def test_the_plugin_imports_nothing_unless_it_is_asked_for():
    code = (
        "import json, sys, time\n"
        "import torch\n"
        "before = set(sys.modules)\n"
        "from importlib.metadata import entry_points\n"
        "(entry,) = [item for item in entry_points(group='vllm.general_plugins') if item.name == 'featurecontract']\n"
        "began = time.perf_counter()\n"
        "entry.load()()\n"
        "spent = time.perf_counter() - began\n"
        "print(json.dumps([spent, sorted(n for n in set(sys.modules) - before if n.startswith('featurecontract'))]))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    spent, loaded = json.loads(done.stdout)
    assert loaded == [
        "featurecontract",
        "featurecontract._version",
        "featurecontract.capture",
        "featurecontract.capture.vllm",
    ]
    # Three small files: a few milliseconds on a cold disk, nothing beside the seconds that vLLM takes.
    assert spent < 0.25
