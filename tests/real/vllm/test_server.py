"""The unmodified HTTP server, started by its own command."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request

import pytest

import featurecontract
from featurecontract.errors import InputError
from featurecontract.live._http import Server
from featurecontract.live._job import other_prompts
from featurecontract.live._run import package_environment


def free_port():
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return listening.getsockname()[1]


def command(case, port, *more):
    speculative = {"method": "eagle3", "model": str(case.place), "num_speculative_tokens": 3}
    return [
        sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(case.target),
        "--dtype", "float32", "--enforce-eager", "--max-model-len", "128", "--max-num-seqs", "4",
        "--port", str(port), "--speculative-config", json.dumps(speculative), *more,
    ]  # fmt: skip


def cli(*arguments):
    words = [sys.executable, "-m", "featurecontract", *map(str, arguments)]
    # The engine of a server is a process of its own.
    environment = package_environment() | {"VLLM_ENABLE_V1_MULTIPROCESSING": "1"}
    return subprocess.run(words, capture_output=True, text=True, check=False, timeout=500, env=environment)


def ask(port, prompt):
    server = Server(f"http://127.0.0.1:{port}")
    body = {
        "model": server.model(),
        "prompt": prompt,
        "max_tokens": 12,
        "temperature": 0,
        "return_token_ids": True,
        "ignore_eos": True,
    }
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=120) as answer:  # noqa: S310 - our own server
        return json.load(answer)["choices"][0]["token_ids"]


def test_a_server_is_captured_by_its_own_command(recorded, tmp_path):
    case = recorded("llama", [1, 3, 5], "1,3,5")
    port = free_port()
    done = cli("capture", case.place, "--runtime", "vllm", "--out", tmp_path / "on", "--", *command(case, port))
    assert done.returncode == 0, done.stderr
    report = featurecontract.verify(case.place, [tmp_path / "on" / "probe"])
    assert (report.verdict, report.findings) == ("pass", ())
    assert {item.rows for item in report.observed} == {64}
    assert {item.runtime for item in report.observed} == {"vllm==0.32.0"}
    with pytest.raises(OSError, match=r".*"), socket.create_connection(("127.0.0.1", port), timeout=1):
        pass


def test_a_running_server_is_sent_the_probe_and_leaves_its_capture_when_it_is_killed(recorded, tmp_path):
    """One server with the plugin on: its tokens are those of an engine without, and SIGTERM loses nothing."""
    case = recorded("llama", [1, 3, 5], "1,3,5")
    port, place = free_port(), tmp_path / "captured"
    prompt = list(other_prompts(tuple(case.probe.token_ids.tolist()))[0][:30])
    environment = package_environment() | {
        "FEATURECONTRACT_CAPTURE": str(place),
        "VLLM_ENABLE_V1_MULTIPROCESSING": "1",
    }
    with (tmp_path / "server.log").open("wb") as log:
        running = subprocess.Popen(command(case, port), stdout=log, stderr=log, env=environment, start_new_session=True)
        try:
            Server(f"http://127.0.0.1:{port}").wait(240, alive=lambda: running.poll() is None)
            taken = cli("capture", case.place, "--runtime", "vllm", "--out", place, "--", *command(case, port))
            assert taken.returncode == 2
            assert f"port {port} of 127.0.0.1 is in use" in taken.stderr
            url = f"http://127.0.0.1:{port}"
            served = ask(port, prompt)
            # Among other traffic, whose decode steps are nothing to compare with.
            done = cli("capture", case.place, "--runtime", "vllm", "--out", place, "--url", url)
            assert done.returncode == 0, done.stderr
            assert ask(port, prompt) == served
            time.sleep(2)
        finally:
            os.killpg(running.pid, signal.SIGTERM)
            running.wait(60)
    found = list(place.glob("capture-*.json"))
    assert len(found) == 1
    rows = json.loads(found[0].read_text())["calls"]
    # The last request's steps were written before the end, too.
    assert sum(call["phase"] == "decode" for call in rows[-4:]) > 0
    report = featurecontract.verify(case.place, [place / "probe"])
    assert (report.verdict, {item.rows for item in report.observed}) == ("pass", {64})
    plain = engine_without_us(case, prompt)
    assert served == plain


def engine_without_us(case, prompt):
    """Return the tokens of an engine that knows nothing of this package."""
    code = (
        "import json, sys\n"
        "from vllm import LLM, SamplingParams\n"
        "target, drafter, prompt = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])\n"
        "llm = LLM(model=target, dtype='float32', enforce_eager=True, max_model_len=128, max_num_seqs=4, seed=0,\n"
        "    speculative_config={'method': 'eagle3', 'model': drafter, 'num_speculative_tokens': 3})\n"
        "sampling = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)\n"
        "out = llm.generate([{'prompt_token_ids': prompt}], sampling)\n"
        "print('TOKENS', json.dumps(list(out[0].outputs[0].token_ids)))\n"
    )
    words = [sys.executable, "-c", code, str(case.target), str(case.place), json.dumps(prompt)]
    environment = os.environ | {"VLLM_PLUGINS": ""}
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=300, env=environment)
    return json.loads(done.stdout.partition("TOKENS ")[2].splitlines()[0])


def test_a_plugin_that_was_not_loaded_is_said(recorded, tmp_path, monkeypatch):
    from featurecontract.live import capture_served

    monkeypatch.setenv("VLLM_PLUGINS", "")
    case = recorded("llama", [1, 3, 5], "1,3,5")
    with pytest.raises(InputError, match="the plugin was not loaded") as refused:
        capture_served("vllm", case.probe, tmp_path, command=command(case, free_port()))
    assert refused.value.slug == "nothing-captured"
