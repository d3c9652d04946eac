"""``featurecontract capture``: programs of one's own, and servers that are not there, die, or know no plugin."""

from __future__ import annotations

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import featurecontract
from featurecontract.capture import Call, Capture, load, merge, save
from featurecontract.capture._armed import machine
from featurecontract.live import _serve

ROOT = Path(__file__).parents[2]

# A server that answers as vLLM does, and has no plugin.
STRANGER = """
import json, sys
from http.server import BaseHTTPRequestHandler, HTTPServer

class Handler(BaseHTTPRequestHandler):
    def answer(self, value):
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        self.answer({"data": [{"id": "m"}]})

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.answer({"choices": [{"text": "x"}]})

HTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Handler).serve_forever()
"""

ENGINE = """
import torch
from tiny_engine import Engine
import my_drafter
engine = Engine((0, 3, 6))
engine.change = my_drafter.combine
import pathlib
import featurecontract.probe
probe = featurecontract.probe.read_probe(featurecontract.load(CKPT), pathlib.Path(CKPT))
with torch.no_grad():
    engine(probe.token_ids[None])
print("done")
"""


def capture(*arguments, path=()):
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": ":".join(map(str, (ROOT, ROOT / "tests/identify", *path)))}
    words = [sys.executable, "-m", "featurecontract", "capture", *map(str, arguments)]
    return subprocess.run(words, capture_output=True, text=True, check=False, timeout=180, env=environment)


def free_port():
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return listening.getsockname()[1]


def only_line(done):
    """Return the error: the last line, and the only one that says ``error``."""
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    lines = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1
    assert lines[0] == done.stderr.splitlines()[-1]
    return lines[0]


def test_a_program_of_ones_own_is_tapped_and_verified(tiny_case, tmp_path):
    (tmp_path / "my_drafter.py").write_text("def combine(rows):\n    return rows\n")
    script = tmp_path / "serve.py"
    script.write_text(ENGINE.replace("CKPT", repr(str(tiny_case.place))))
    out = tmp_path / "out"
    done = capture(
        tiny_case.place,
        "--runtime",
        "torch",
        "--tap",
        "my_drafter:combine",
        "--out",
        out,
        "--",
        script,
        path=[tmp_path],
    )
    assert done.returncode == 0, done.stderr
    (written,) = out.glob("capture-*.json")
    assert done.stdout.strip() == str(written)
    report = featurecontract.verify(tiny_case.place, [out])
    assert (report.verdict, [item.rows for item in report.observed]) == ("pass", [64])


def test_a_program_that_never_calls_the_tap(tiny_case, tmp_path):
    (tmp_path / "my_drafter.py").write_text("def combine(rows):\n    return rows\n")
    script = tmp_path / "serve.py"
    script.write_text("import my_drafter\nprint('idle')\n")
    done = capture(
        tiny_case.place, "--runtime", "torch", "--tap", "my_drafter:combine", "--out", tmp_path / "out", "--", script
    )
    assert "never called my_drafter:combine" in only_line(done)


def test_a_program_that_fails(tiny_case, tmp_path):
    script = tmp_path / "serve.py"
    script.write_text("raise SystemExit('no model')\n")
    done = capture(tiny_case.place, "--runtime", "torch", "--tap", "a:b", "--out", tmp_path / "out", "--", script)
    assert "ended with status 1; its last words: no model" in only_line(done)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--runtime", "vllm"], "behind `--`, or a running server with --url"),
        (["--runtime", "vllm", "--url", "ftp://there"], "is no address of a server"),
        (["--runtime", "vllm", "--url", "http://there:port"], "is no address of a server"),
        (["--runtime", "vllm", "--startup", "nan", "--", "serve"], "--startup nan is no number of seconds"),
        (["--runtime", "vllm", "--startup", "inf", "--", "serve"], "--startup inf is no number of seconds"),
        (["--runtime", "vllm", "--startup", "-1", "--", "serve"], "--startup -1.0 is no number of seconds"),
        (["--runtime", "atom", "--url", "http://127.0.0.1:1"], "a server is captured for vllm, sglang"),
        (["--runtime", "transformers"], "give --target DIR"),
        (["--runtime", "torch"], "--tap PACKAGE.MODULE:Class.method"),
        (["--runtime", "vllm", "--tap", "a:b"], "--runtime torch --tap PATH"),
        (["--runtime", "torch", "--tap", "ab", "--", "x.py"], "is not PACKAGE.MODULE:NAME"),
        (["--runtime", "vllm", "--", "serve", "--port", "http"], "is no port"),
    ],
)
def test_what_cannot_be_meant(tiny_case, tmp_path, arguments, said):
    assert said in only_line(capture(tiny_case.place, "--out", tmp_path / "out", *arguments))


def test_a_port_that_is_in_use(tiny_case, tmp_path):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        done = capture(tiny_case.place, "--runtime", "vllm", "--out", tmp_path, "--", "serve", f"--port={port}")
    assert f"port {port} of 127.0.0.1 is in use" in only_line(done)


def test_a_command_that_is_not_there(tiny_case, tmp_path):
    done = capture(
        tiny_case.place, "--runtime", "vllm", "--out", tmp_path, "--", "no-such-server", "--port", free_port()
    )
    assert "no-such-server: cannot be started (No such file or directory)" in only_line(done)


def test_a_server_that_dies_at_start(tiny_case, tmp_path):
    script = tmp_path / "serve.py"
    script.write_text("raise ValueError('no such model')\n")
    done = capture(
        tiny_case.place, "--runtime", "vllm", "--out", tmp_path, "--", sys.executable, script, "--port", free_port()
    )
    assert "the server ended before it was up; its last words: ValueError: no such model" in only_line(done)


def test_a_server_that_does_not_come_up(tiny_case, tmp_path):
    script = tmp_path / "serve.py"
    script.write_text("import time\nprint('loading', flush=True)\ntime.sleep(600)\n")
    done = capture(
        tiny_case.place, "--runtime", "vllm", "--startup", "2", "--out", tmp_path, "--",
        sys.executable, script, "--port", free_port(),
    )  # fmt: skip
    line = only_line(done)
    assert "the server was not up within 2 s" in line
    assert "its last words: loading" in line


def test_a_server_without_the_plugin(tiny_case, tmp_path):
    script = tmp_path / "serve.py"
    script.write_text(STRANGER)
    done = capture(
        tiny_case.place,
        "--runtime",
        "vllm",
        "--out",
        tmp_path / "out",
        "--",
        sys.executable,
        script,
        "--port",
        free_port(),
    )
    assert "the plugin was not loaded" in only_line(done)


def test_nobody_answers(tiny_case, tmp_path):
    done = capture(
        tiny_case.place, "--runtime", "sglang", "--out", tmp_path, "--url", f"http://127.0.0.1:{free_port()}"
    )
    assert "/v1/models: [Errno 111] Connection refused" in only_line(done)


@pytest.mark.parametrize("runtime", ["vllm", "torch"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_stops_what_was_started(tiny_case, tmp_path, number, runtime):
    script = tmp_path / "serve.py"
    script.write_text(
        f"import os, time\nopen({str(tmp_path / 'pid')!r}, 'w').write(f'{{os.getpid()}}\\n')\ntime.sleep(600)\n"
    )
    more = (
        ["--", sys.executable, script, "--port", free_port()] if runtime == "vllm" else ["--tap", "a:b", "--", script]
    )
    if runtime == "torch":
        (tmp_path / "a.py").write_text("def b(rows):\n    return rows\n")
    words = [tiny_case.place, "--runtime", runtime, "--out", tmp_path / "out", *more]
    running = subprocess.Popen(
        [sys.executable, "-m", "featurecontract", "capture", *map(str, words)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=os.environ | {"PYTHONPATH": f"{ROOT}:{tmp_path}"},
        # Under nohup the signal is ignored from the start, and is left so.
        preexec_fn=lambda: signal.signal(number, signal.SIG_DFL),  # noqa: PLW1509 - no thread has been started here
    )  # fmt: skip
    try:
        limit = time.monotonic() + 120
        while not (said := (tmp_path / "pid").read_text() if (tmp_path / "pid").exists() else "").endswith("\n"):
            assert time.monotonic() < limit, running.poll()
            time.sleep(0.05)
        running.send_signal(number)
        _, errors = running.communicate(timeout=60)
    finally:
        running.kill()
    assert running.returncode == 128 + number
    assert b"Traceback" not in errors
    limit = time.monotonic() + 30
    while is_running(int(said)):
        assert time.monotonic() < limit, "what was started still runs"
        time.sleep(0.05)


def is_running(pid):
    """Whether a process runs; one that has ended may wait for somebody to ask how."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def asked(tmp_path, **more):
    return _serve._Asked("vllm", tmp_path, IDS, print, **more)


IDS = (5, 6, 7, 8)


def armed(place, pid, **said):
    path = place / f"armed-{pid}.json"
    path.write_text(json.dumps({"runtime": "vllm"} | said))
    return path


def test_a_plugin_of_a_server_that_ended_is_not_armed(tmp_path):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    assert not _serve._armed(asked(tmp_path))
    path = armed(tmp_path, ended.pid, machine=machine())
    assert not _serve._armed(asked(tmp_path))
    # Of another machine or container nobody knows which processes live.
    armed(tmp_path, ended.pid, machine="elsewhere/1")
    assert _serve._armed(asked(tmp_path))
    assert not _serve._armed(asked(tmp_path, before=frozenset(_serve._marks(tmp_path))))
    path.unlink()
    armed(tmp_path, os.getpid(), machine=machine())
    assert _serve._armed(asked(tmp_path))


def test_a_started_server_does_not_inherit_what_stood_there(tiny_case, tmp_path):
    script = tmp_path / "serve.py"
    script.write_text(STRANGER)
    (tmp_path / "out").mkdir()
    armed(tmp_path / "out", os.getpid(), machine=machine())
    done = capture(
        tiny_case.place, "--runtime", "vllm", "--out", tmp_path / "out", "--",
        sys.executable, script, "--port", free_port(),
    )  # fmt: skip
    assert "the plugin was not loaded" in only_line(done)


def part(tokens, start, rank, phase="prefill"):
    return Call(
        values=torch.full((len(tokens), 2), float(rank + 2 * sum(tokens))), token_ids=tuple(tokens), phase=phase,
        positions=tuple(range(start, start + len(tokens))), rank=rank, shard=(rank, 2), extra={"place": "fc"},
    )  # fmt: skip


def test_the_probe_of_a_busy_server_on_two_ranks_is_merged(tmp_path):
    """Each rank was saved at another moment, and both have dropped calls before the probe came."""
    for rank in range(2):
        before, behind = [part((5, 2), 0, rank)] * rank, [part((5, 3), 0, rank)] * (1 - rank)
        probe = [part((5, 6), 0, rank), part((9, 9), 4, rank), part((7, 8), 2, rank), part((1,), 9, rank, "decode")]
        calls = (*before, *probe, *behind)
        path = save(Capture(calls=calls, dropped=7 - rank, extra={"keep": "last", "rank": rank}), tmp_path)
        _serve._kept(asked(tmp_path), path)
    whole = merge(load(tmp_path / "probe"))
    assert whole.dropped == 0
    assert [call.token_ids for call in whole.calls] == [(5, 6), (9, 9), (7, 8)]
    assert {tuple(call.values.shape) for call in whole.calls} == {(2, 4)}


def test_the_next_step_can_be_pasted(tiny_case, tmp_path):
    (tmp_path / "my_drafter.py").write_text("def combine(rows):\n    return rows\n")
    script = tmp_path / "serve.py"
    script.write_text(ENGINE.replace("CKPT", repr(str(tiny_case.place))))
    out = tmp_path / "o h ü; exit 3"
    done = capture(
        tiny_case.place, "--runtime", "torch", "--tap", "my_drafter:combine", "--out", out, "--", script,
        path=[tmp_path],
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    line = done.stderr.splitlines()[-1]
    assert shlex.split(line) == ["next:", "featurecontract", "verify", str(tiny_case.place), str(out)]
