"""No input file makes any command print a traceback, hang, or write terminal codes."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import subprocess
import sys
import time
import traceback
from xml.etree import ElementTree as ET

import pytest
from cli_mutator import base_files, build

from featurecontract.cli import main

CASES = int(os.environ.get("FEATURECONTRACT_FUZZ_CASES", "500"))
LONG = 5000
CHUNKS = 10
PROCESSES = 50
SECONDS = 10
# Everything that moves a cursor, colours, rings, or turns text around.
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


def run(arguments) -> tuple[int, str, str]:
    """Run a command in this process with streams as a terminal has them: UTF-8, strict."""
    out, err = io.BytesIO(), io.BytesIO()
    streams = [io.TextIOWrapper(stream, "utf-8", write_through=True) for stream in (out, err)]
    status = 0
    with contextlib.redirect_stdout(streams[0]), contextlib.redirect_stderr(streams[1]):
        try:
            main(list(arguments))
        except SystemExit as end:
            status = end.code or 0
    return status, out.getvalue().decode(), err.getvalue().decode()


def problem_of(arguments, status, out, err) -> str:
    """Return what is wrong with the end of a command, empty when nothing is."""
    fmt = arguments[arguments.index("-o") + 1] if "-o" in arguments else "text"
    usage = err.startswith("Usage: ") and "\nError: " in err
    one_line = err.startswith("error: ") and err.count("\n") == 1 and err.endswith("\n")
    checks = {
        f"status {status}": status in (0, 1, 2),
        "a traceback": "Traceback" not in out + err,
        f"standard error is not one line: {err[:300]!r}": err == "" or one_line or usage,
        "neither a report nor an error": bool(out or err),
        "an error with another status than 2": not err or status == 2,
        "terminal codes on standard error": not CONTROL.search(err),
        f"{len(out)} characters of output": len(out) < 1_000_000,
        f"{len(err)} characters of errors": len(err) < 5_000,
        "terminal codes in the output": fmt == "json" or not CONTROL.search(out),
    }
    wrong = next((text for text, holds in checks.items() if not holds), "")
    return wrong or (unreadable(fmt, out) if out and arguments[0] != "init" else "")


def unreadable(fmt, out) -> str:
    try:
        if fmt in ("json", "sarif"):
            json.loads(out)
        elif fmt == "junit":
            ET.fromstring(out)  # noqa: S314 - our own output
    except (ValueError, ET.ParseError) as error:
        return f"{fmt} output cannot be read: {error}"
    return ""


def check_cases(seeds, directory):
    files = base_files()
    failures = []
    for seed in seeds:
        arguments, done = build(seed, directory, files)
        start = time.monotonic()
        try:
            status, out, err = run(arguments)
            wrong = problem_of(arguments, status, out, err)
            if arguments[0] == "init" and status == 0 and run(["show", arguments[1]])[0] != 0:
                wrong = wrong or "init wrote a contract that cannot be read"
        except BaseException as error:  # noqa: BLE001 - whatever escapes is what this test is for
            last = traceback.extract_tb(error.__traceback__)[-1]
            wrong = f"{type(error).__name__}: {str(error)[:200]} at {last.filename}:{last.lineno}"
        if (seconds := time.monotonic() - start) > SECONDS:
            wrong = wrong or f"took {seconds:.0f} s"
        if wrong:
            failures.append(f"seed {seed} ({done}): {' '.join(arguments)[:400]!r}\n    {wrong}")
    assert not failures, f"{len(failures)} failures\n" + "\n".join(failures[:20])


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_no_file_and_no_argument_makes_a_command_fail_badly(chunk, tmp_path):
    check_cases(range(chunk, CASES, CHUNKS), tmp_path / "run")


@pytest.mark.slow
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_the_long_run(chunk, tmp_path):
    check_cases(range(CASES + chunk, max(LONG, CASES), CHUNKS), tmp_path / "run")


def test_the_files_that_are_mutated_are_in_order(tmp_path):
    """A mutator over broken files would test the first error message only."""
    for name, data in base_files().items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(data)
    drafter, target = str(tmp_path / "drafter"), str(tmp_path / "target")
    rules = ["--rules", str(tmp_path / "rules.json")]
    for checkpoint in (drafter, str(tmp_path / "sharded")):
        status, out, err = run(["check", checkpoint, "--target", target, "--runtime", "sglang==0.5.12", "-o", "json"])
        assert (status, err) == (1, "")
        assert {item["slug"] for item in json.loads(out)["findings"]} >= {"embedding-missing"}
        assert run(["predict", checkpoint, "--target", target, *rules])[0] == 0
        assert run(["show", checkpoint])[0] == 0
        assert run(["diff", checkpoint, str(tmp_path / "other.json")])[0] == 0
        assert run(["init", checkpoint, "--target", target, "--features", "0,3,31", "--force"])[0] == 0


def limited() -> None:
    """Give a process 1 GiB of address space: a large allocation is a crash."""
    import resource

    resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))


@pytest.mark.skipif(sys.platform != "linux", reason="address space limits as Linux has them")
def test_processes(tmp_path):
    files = base_files()
    for seed in range(100_000, 100_000 + PROCESSES):
        arguments, done = build(seed, tmp_path / "run", files)
        finished = subprocess.run(
            [sys.executable, "-m", "featurecontract.cli", *arguments],
            capture_output=True,
            timeout=60,
            check=False,
            preexec_fn=limited,
            env={**os.environ, "PYTHONUTF8": "1"},
        )
        out, err = finished.stdout.decode(), finished.stderr.decode()
        assert not problem_of(arguments, finished.returncode, out, err), f"seed {seed} ({done}): {arguments}\n{err}"


def test_init_says_in_one_line_what_it_cannot_write(tmp_path):
    for name, data in base_files().items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(data)
    drafter = tmp_path / "drafter"
    arguments = ["init", str(drafter), "--target", str(tmp_path / "target"), "--features", "0,3,31", "--force"]
    before = (drafter / "feature_contract.json").read_bytes()
    for name in ("\udcff", "n" * 5000):
        status, out, err = run([*arguments, "--name", name])
        assert (status, out) == (2, "")
        assert re.match(r"error: the contract for .*: name: expected a string", err)
        assert (drafter / "feature_contract.json").read_bytes() == before
    (drafter / "feature_contract.json").unlink()
    (drafter / "feature_contract.json").mkdir()
    status, out, err = run(arguments)
    assert (status, out) == (2, "")
    assert "cannot be written: Is a directory" in err
    assert list((drafter / "feature_contract.json").iterdir()) == []
