"""The commands at their edges: exit status, one-line errors, outputs, colours, interruption."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from pathlib import Path

import jsonschema
import pytest
from make_checkpoint import build

from featurecontract.render import report_schema

KIMI = "Kimi-K2.5:61,7168,DeepseekV3ForCausalLM"


@pytest.fixture
def ckpt(tmp_path):
    return str(build(tmp_path / "ckpt"))


def declare(run, ckpt, features="0,3,31"):
    assert run("init", ckpt, "--target", KIMI, "--features", features, "--force")[0] == 0


def test_init_check_and_show(run, ckpt):
    declare(run, ckpt)
    status, out, _ = run("check", ckpt, "--runtime", "sglang==0.5.12")
    assert status == 1
    assert "FC304 embedding-missing" in out
    assert out.rstrip().splitlines()[-1].startswith("fail, exit status 1: ")
    status, out, _ = run("show", ckpt)
    assert status == 0
    assert "h[31] = output of layer 30" in out
    status, out, _ = run("show", ckpt, "-o", "json")
    assert out.encode() == (Path(ckpt) / "feature_contract.json").read_bytes()


def test_json_is_the_published_schema(run, ckpt):
    declare(run, ckpt)
    for arguments in (
        ("check", ckpt, "--runtime", "sglang==0.5.12"),
        ("check", ckpt, "--runtime", "vllm", "--runtime", "sglangg"),
        ("predict", ckpt, "--target", KIMI),
    ):
        status, out, _ = run(*arguments, "-o", "json")
        report = json.loads(out)
        jsonschema.Draft202012Validator(report_schema()).validate(report)
        assert report["exit_status"] == status
    assert report["predicted"]["vllm-v2==0.33.0"]["features"][0]["boundary"] == 2


@pytest.mark.parametrize("fmt", ["text", "json", "junit", "sarif", "github", "markdown", "html"])
def test_every_format_of_a_failing_check(run, ckpt, fmt, tmp_path):
    if fmt == "html":
        pytest.importorskip("jinja2")
    declare(run, ckpt)
    file = tmp_path / f"report.{fmt}"
    status, out, _ = run("check", ckpt, "--runtime", "sglang==0.5.12", "-o", fmt, "--output", str(file))
    assert (status, out) == (1, "")
    text = file.read_text("utf-8")
    assert "embedding-missing" in text
    if fmt == "junit":
        assert int(ET.fromstring(text).attrib["failures"]) == 1  # noqa: S314 - our own file


def test_errors_are_one_line_and_exit_2(run, ckpt, tmp_path):
    cases = [
        (("check", ckpt, "--runtime", "sglang"), "there is no feature contract here"),
        (("check", str(tmp_path / "nowhere"), "--runtime", "sglang"), "nowhere"),
        (("predict", ckpt), "give --target"),
        (("predict", ckpt, "--target", "nonsense"), "LAYERS,WIDTH"),
        (("predict", ckpt, "--target", KIMI, "--runtime", "=="), "is not NAME or NAME==VERSION"),
        (("predict", ckpt, "--target", KIMI, "--rules", str(tmp_path / "no.json")), "no.json"),
        (("init", ckpt, "--target", KIMI), "2 readings of the config fit, nothing was written"),
        (("init", ckpt, "--target", KIMI, "--features", "1,x"), "'x' is not a boundary"),
        (("explain", "layer-shif"), "did you mean layer-shift"),
        (("diff", ckpt, ckpt), "there is no feature contract here"),
    ]
    for arguments, expected in cases:
        status, out, err = run(*arguments)
        assert status == 2, arguments
        assert expected in err, (arguments, err)
        assert err.count("\n") == 1, err
        assert out == ""


def test_a_broken_input_is_a_report_in_machine_formats(run, ckpt):
    status, out, _ = run("check", ckpt, "--runtime", "sglang", "-o", "json")
    report = json.loads(out)
    assert (status, report["verdict"]) == (2, "could-not-check")
    assert report["findings"][0]["slug"] == "contract-missing"


def test_changes_prints_only_what_differs(run, ckpt):
    same = (
        "predict",
        ckpt,
        "--target",
        KIMI,
        "--runtime",
        "sglang==0.5.11",
        "--runtime",
        "sglang==0.5.12",
        "--changes",
    )
    status, out, _ = run(*same)
    assert (status, out) == (0, "no difference: each feeds the same as the one named before it\n")


def test_rules_and_explain_and_schema(run):
    for arguments in (("rules",), ("rules", "--runtimes"), ("rules", "--dialects"), ("schema",), ("schema", "report")):
        status, out, _ = run(*arguments)
        assert status == 0
        assert out
    status, out, _ = run("rules", "-o", "json")
    assert [row["slug"] for row in json.loads(out) if row["rule"] == "FC304"] == ["embedding-missing"]
    status, out, _ = run("explain", "FC304")
    assert out.startswith("FC304 embedding-missing (error): ")


def test_colours_only_where_asked(run, ckpt, monkeypatch):
    declare(run, ckpt)
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[" not in run("check", ckpt, "--runtime", "sglang==0.5.12")[1]
    assert "\x1b[" in run("check", ckpt, "--runtime", "sglang==0.5.12", "--color", "always")[1]


def test_an_output_that_cannot_be_written(run, ckpt):
    declare(run, ckpt)
    status, _, err = run("check", ckpt, "--runtime", "sglang==0.5.12", "--output", "/nonexistent/report")
    assert status == 2
    assert "/nonexistent/report" in err


def test_a_reader_that_goes_away_is_no_traceback(ckpt):
    command = f"{sys.executable} -m featurecontract.cli predict {ckpt} --target {KIMI} | head -c 10"
    done = subprocess.run(["/bin/sh", "-c", command], capture_output=True, text=True, check=False, timeout=60)
    assert "Traceback" not in done.stderr


def test_an_interrupted_init_leaves_the_old_contract(ckpt, tmp_path):
    """Stop the writer between its temporary file and the rename: the old contract is whole, and so is the next run."""
    contract = Path(ckpt) / "feature_contract.json"
    script = tmp_path / "slow.py"
    script.write_text(
        "import os, signal, sys, time\n"
        # A job in the background of a shell starts with interrupts ignored.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "import featurecontract.contract._files as files\n"
        "real = os.fsync\n"
        "def slow(descriptor):\n"
        "    real(descriptor); print('written', flush=True); time.sleep(30)\n"
        "os.fsync = slow\n"
        "from featurecontract.cli import main\n"
        f"main(['init', {ckpt!r}, '--target', {KIMI!r}, '--features', sys.argv[1], '--force'])\n",
        "utf-8",
    )
    main_arguments = [
        sys.executable,
        "-m",
        "featurecontract.cli",
        "init",
        ckpt,
        "--target",
        KIMI,
        "--features",
        "2,30,58",
    ]
    subprocess.run(main_arguments, check=True, capture_output=True, timeout=60)
    before = contract.read_bytes()
    for stop in (signal.SIGINT, signal.SIGKILL):
        command = [sys.executable, str(script), "0,3,31"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=os.environ) as process:
            assert process.stdout.readline() == b"written\n"
            time.sleep(0.05)
            process.send_signal(stop)
            _, errors = process.communicate(timeout=60)
        assert process.returncode == (130 if stop == signal.SIGINT else -signal.SIGKILL)
        assert b"Traceback" not in errors
        assert contract.read_bytes() == before
    done = subprocess.run(
        [*main_arguments[:-1], "0,3,31", "--force"], check=True, capture_output=True, text=True, timeout=60
    )
    assert "wrote" in done.stdout
