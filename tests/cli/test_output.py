"""Where output goes and what becomes of it: closed and full standard output, pipes, links, the inputs themselves."""

from __future__ import annotations

import json
import os
import resource
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from make_checkpoint import build

from featurecontract.cli import main
from featurecontract.contract import CONTRACT_FILE, load
from featurecontract.contract._files import atomic_write

KIMI = "Kimi-K2.5:61,7168,DeepseekV3ForCausalLM"
GOOD, BAD = ("--runtime", "sglang==0.5.13"), ("--runtime", "tokenspeed==2026.8.22")


@pytest.fixture
def ckpt(tmp_path):
    path = build(tmp_path / "ckpt")
    main(["init", str(path), "--target", KIMI, "--features", "2,30,58"])
    return path


def shell(text, **options):
    return subprocess.run(["/bin/sh", "-c", text], capture_output=True, text=True, check=False, timeout=60, **options)


@pytest.mark.parametrize(("runtime", "status"), [("sglang==0.5.13", 0), ("tokenspeed==2026.8.22", 1), ("nope==1", 2)])
@pytest.mark.parametrize("closed", [">&-", ">&- 2>&-"])
def test_a_closed_standard_output_leaves_the_verdict(ckpt, runtime, status, closed):
    done = shell(f"{sys.executable} -m featurecontract check {ckpt} --runtime {runtime} {closed}")
    assert (done.returncode, done.stderr) == (status, "")


@pytest.mark.parametrize(
    "arguments", [("check", "{}", *GOOD), ("check", "{}", *BAD), ("rules",), ("show", "{}"), ("--help",)]
)
def test_an_output_that_fills_up_is_could_not_check(ckpt, tmp_path, arguments):
    command = [sys.executable, "-m", "featurecontract", *(item.format(ckpt) for item in arguments)]
    with (tmp_path / "full").open("wb") as full:
        done = subprocess.run(
            command,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            timeout=60,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)),
        )
    assert done.returncode == 2
    assert done.stderr == "error: File too large\n"


def test_a_reader_that_went_away_is_never_a_verdict():
    done = shell(f"{{ {sys.executable} -m featurecontract rules -o json; echo $? >&2; }} | :")
    assert done.stderr == "2\n"


def test_output_into_a_pipe_is_written_through(ckpt, tmp_path, run):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    got = []
    reader = threading.Thread(target=lambda: got.append(pipe.read_text("utf-8")))
    reader.start()
    assert run("check", ckpt, *GOOD, "-o", "json", "--output", pipe)[0] == 0
    reader.join(30)
    assert json.loads(got[0])["verdict"] == "pass"
    assert stat.S_ISFIFO(pipe.lstat().st_mode)


def test_output_follows_a_link_to_its_file(ckpt, tmp_path, run):
    (tmp_path / "deep").mkdir()
    real, link, hanging = tmp_path / "deep" / "real", tmp_path / "link", tmp_path / "hanging"
    real.write_text("old", "utf-8")
    link.symlink_to(real)
    hanging.symlink_to(tmp_path / "deep" / "new")
    for place, file in ((link, real), (hanging, tmp_path / "deep" / "new")):
        assert run("check", ckpt, *GOOD, "-o", "json", "--output", place)[0] == 0
        assert place.is_symlink()
        assert json.loads(file.read_text("utf-8"))["verdict"] == "pass"
    assert sorted(item.name for item in (tmp_path / "deep").iterdir()) == ["new", "real"]


def test_output_never_replaces_what_is_read(ckpt, tmp_path, run):
    contract = ckpt / CONTRACT_FILE
    before = contract.read_bytes(), (ckpt / "config.json").read_bytes()
    link = tmp_path / "link"
    link.symlink_to(contract)
    other = tmp_path / "other.json"
    other.write_bytes(before[0])
    for arguments in (
        ("check", ckpt, *GOOD, "--output", contract),
        ("check", ckpt, *GOOD, "--output", link),
        ("check", ckpt, *GOOD, "--output", ckpt / "config.json"),
        ("check", ckpt, *GOOD, "--contract", other, "--output", other),
        ("check", ckpt / "config.json", *GOOD, "--output", contract),
        ("predict", ckpt, "--target", KIMI, "--output", contract),
        ("diff", ckpt, other, "--output", contract),
        ("diff", ckpt, other, "--output", other),
    ):
        status, out, err = run(*arguments)
        assert (status, out) == (2, ""), arguments
        assert "which is read" in err
        assert err.count("\n") == 1
    assert (contract.read_bytes(), (ckpt / "config.json").read_bytes()) == before
    assert other.read_bytes() == before[0]


def test_output_to_a_directory_is_refused(ckpt, tmp_path, run):
    status, _, err = run("check", ckpt, *GOOD, "--output", tmp_path)
    assert (status, err.count("\n")) == (2, 1)


def test_python_dash_m(ckpt):
    command = [sys.executable, "-m", "featurecontract"]
    done = subprocess.run([*command, "check", str(ckpt), *BAD], capture_output=True, check=False, timeout=60)
    assert done.returncode == 1
    done = subprocess.run([*command, "--version"], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.startswith("featurecontract")


def test_the_contract_file_stands_for_its_directory(ckpt, run):
    for runtime in (GOOD, BAD):
        by_file = run("check", ckpt / CONTRACT_FILE, *runtime)
        assert by_file[0] == run("check", ckpt, *runtime)[0] == (runtime is BAD)


def test_changes_with_an_unknown_runtime(ckpt, run):
    status, out, _ = run("predict", ckpt, "--target", KIMI, "--changes", "--runtime", "nope==1")
    assert status == 2
    assert "'nope' is not a known runtime" in out
    assert "no difference" not in out
    status, out, _ = run("predict", ckpt, "--target", KIMI, "--changes", *BAD, *GOOD, "--runtime", "nope==1")
    assert status == 2
    assert "'nope' is not a known runtime" in out


def test_bad_runtimes_of_the_contract_are_a_report(ckpt, run):
    file = ckpt / CONTRACT_FILE
    value = json.loads(file.read_text("utf-8"))
    value["serving"] = {"runtimes": ["sglang=0.5.13"]}
    file.write_text(json.dumps(value), "utf-8")
    status, out, err = run("check", ckpt)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert "serving.runtimes" in err
    status, out, _ = run("check", ckpt, "-o", "json")
    report = json.loads(out)
    assert (status, report["exit_status"], report["findings"][0]["slug"]) == (2, 2, "contract-invalid")
    status, out, _ = run("check", ckpt, "--runtime", "==", "-o", "json")
    assert (status, json.loads(out)["findings"][0]["slug"]) == (2, "nothing-compared")
    assert run("check", ckpt, *GOOD)[0] == 0


def test_serve_args_that_are_empty_or_cannot_be_read(ckpt, run, tmp_path):
    for text, said in (
        ("", "is empty"),
        (" ", "is empty"),
        ("./no-such-arguments", "cannot be opened"),
        ("@no-such-arguments", "cannot be opened"),
        (tmp_path / "absent", "cannot be opened"),
        (tmp_path, "cannot be opened"),
    ):
        status, _, err = run("check", ckpt, *GOOD, "--serve-args", text)
        assert status == 2, text
        assert err.count("\n") == 1
        assert said in err or "regular" in err, err
    status, _, _ = run("check", ckpt, *GOOD, "--serve-args", "/usr/bin/python3 -m sglang.launch_server --tp 2")
    assert status in (0, 1)


def test_a_directory_without_permissions_is_one_line(ckpt, run, monkeypatch):
    real = os.stat

    def refuse(path, *args, **kwargs):
        if str(ckpt) in str(path):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, *args, **kwargs)

    monkeypatch.setattr(os, "stat", refuse)
    monkeypatch.setattr(Path, "stat", refuse)
    for arguments in (("check", ckpt, *GOOD), ("init", ckpt, "--target", KIMI), ("show", ckpt)):
        status, out, err = run(*arguments)
        assert (status, out, err.count("\n")) == (2, "", 1), err


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_directory_that_may_not_be_entered_is_one_line(ckpt, run):
    ckpt.chmod(0)
    try:
        for arguments in (("check", ckpt, *GOOD), ("init", ckpt, "--target", KIMI), ("show", ckpt)):
            status, out, err = run(*arguments)
            assert (status, out, err.count("\n")) == (2, "", 1), err
    finally:
        ckpt.chmod(0o700)


def test_a_contract_link_follows_the_link_policy(ckpt, run, tmp_path):
    outside = tmp_path / "outside.json"
    (ckpt / CONTRACT_FILE).rename(outside)
    (ckpt / CONTRACT_FILE).symlink_to(outside)
    status, _, err = run("check", ckpt, *GOOD)
    assert (status, err.count("\n")) == (2, 1)
    assert "leaves the checkpoint" in err
    assert run("check", ckpt, *GOOD, "--follow-links")[0] == 0
    assert run("check", ckpt, *GOOD, "--contract", outside)[0] == 0


def test_only_one_of_many_writers_gets_the_name(ckpt):
    file = ckpt / CONTRACT_FILE
    file.unlink()
    command = [sys.executable, "-m", "featurecontract", "init", str(ckpt), "--target", KIMI, "--features"]
    started = [
        subprocess.Popen([*command, f"{n},30,58"], stdout=subprocess.PIPE, stderr=subprocess.PIPE) for n in range(6)
    ]
    said = [process.communicate(timeout=60) for process in started]
    winners = [number for number, process in enumerate(started) if process.returncode == 0]
    assert len(winners) == 1, said
    assert [process.returncode for process in started].count(2) == 5
    assert load(file).wiring.boundaries == (winners[0], 30, 58)
    assert sorted(path.name for path in ckpt.iterdir()) == ["config.json", CONTRACT_FILE, "model.safetensors"]


def test_a_link_that_leads_nowhere_has_the_name(ckpt, run, tmp_path):
    (ckpt / CONTRACT_FILE).unlink()
    (ckpt / CONTRACT_FILE).symlink_to(tmp_path / "nowhere")
    status, _, err = run("init", ckpt, "--target", KIMI, "--features", "0,3,31")
    assert status == 2
    assert "leads nowhere" in err
    assert not (tmp_path / "nowhere").exists()
    assert run("init", ckpt, "--target", KIMI, "--features", "0,3,31", "--force")[0] == 0


@pytest.mark.parametrize("links", [True, False])
def test_exclusive_writes_keep_what_is_there(tmp_path, monkeypatch, links):
    def refuse(*_args, **_kwargs):
        raise OSError(95, "Operation not supported")

    if not links:
        monkeypatch.setattr(os, "link", refuse)
    path = tmp_path / "file"
    with atomic_write(path, exclusive=True) as stream:
        stream.write(b"first")
    with pytest.raises(FileExistsError), atomic_write(path, exclusive=True) as stream:
        stream.write(b"second")
    assert path.read_bytes() == b"first"
    assert [item.name for item in tmp_path.iterdir()] == ["file"]


SLOW = """
import atexit, runpy, signal, sys, time
moment, checkpoint = sys.argv[1:]
def wait():
    print("up", flush=True)
    time.sleep(30)
class Slow:
    def find_spec(self, name, path=None, target=None):
        if name == moment:
            wait()
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.meta_path.insert(0, Slow())
if moment == "atexit":
    atexit.register(wait)
sys.argv = ["featurecontract", "check", checkpoint, "--runtime", "sglang==0.5.13", "--output", checkpoint + "/report"]
runpy.run_module("featurecontract", run_name="__main__")
"""


@pytest.mark.parametrize(
    ("moment", "status"),
    # Its own death by the signal is what a shell shows as 130, too.
    [("click", 130), ("featurecontract.gate._run", 130), ("atexit", -signal.SIGINT)],
)
def test_an_interrupt_is_130_without_a_traceback(ckpt, moment, status):
    command = [sys.executable, "-c", SLOW, moment, str(ckpt)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"up\n"
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == status
    assert b"Traceback" not in errors


def _broken(monkeypatch):
    def fault(*_args, **_kwargs):
        raise ZeroDivisionError("nobody\nthought of it")

    monkeypatch.setattr("featurecontract.gate.check", fault)


def test_a_fault_of_our_own_is_one_line_and_no_verdict(ckpt, run, monkeypatch):
    _broken(monkeypatch)
    monkeypatch.delenv("FEATURECONTRACT_TRACEBACK", raising=False)
    status, out, err = run("check", ckpt, "--runtime", "vllm")
    assert (status, out) == (2, "")
    assert err == (
        "error: internal: ZeroDivisionError: nobody thought of it; please report it "
        "(FEATURECONTRACT_TRACEBACK=1 shows where)\n"
    )


def test_a_fault_of_our_own_shows_where_on_request(ckpt, run, monkeypatch):
    _broken(monkeypatch)
    monkeypatch.setenv("FEATURECONTRACT_TRACEBACK", "1")
    status, out, err = run("check", ckpt, "--runtime", "vllm")
    assert (status, out) == (2, "")
    assert "Traceback (most recent call last)" in err
    assert err.splitlines()[-1].startswith("error: internal: ZeroDivisionError")


@pytest.mark.parametrize(
    "arguments",
    [
        ["verify", "CKPT", "cap", "--confidence", "nan"],
        ["audit-data", "data", "CKPT", "--confidence", "nan"],
        ["replay", "CKPT", "--states", "s", "--confidence", "nan"],
        ["replay", "CKPT", "--states", "s", "--tolerance", "nan"],
        ["replay", "CKPT", "--states", "s", "--tolerance", "inf"],
        ["replay", "CKPT", "--states", "s", "--seed", "-1"],
    ],
)
def test_numbers_that_are_none(ckpt, run, arguments):
    status, out, err = run(*[ckpt if item == "CKPT" else item for item in arguments])
    assert (status, out) == (2, "")
    assert f"Invalid value for '{arguments[-2]}'" in err
