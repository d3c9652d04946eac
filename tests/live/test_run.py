"""What the caller of a live run sees when there is nothing to run, and what it hands over."""

from __future__ import annotations

import importlib.util
import json
import re
import sys

import pytest

from featurecontract.errors import UsageError
from featurecontract.live import live_report, options_from_file, options_from_text, phases, run_live
from featurecontract.live._job import other_prompts, read_job

# The folder tests/real/vllm is found by that name too, as a namespace without a file.
_FOUND = importlib.util.find_spec("vllm")
pytestmark = pytest.mark.skipif(
    _FOUND is not None and _FOUND.origin is not None, reason="vLLM is here: tests/real/vllm"
)


def run(case, out, **how):
    return run_live("vllm", case.place, case.target, case.contract, probe=case.probe, out=out, **how)


def test_a_runtime_that_is_not_installed_is_could_not_check_in_one_line(tiny_case, tmp_path):
    said = []
    results = run(tiny_case, tmp_path / "out", progress=said.append)
    assert tuple(item.phase for item in results) == phases("vllm")
    for item in results:
        assert "No module named 'vllm'; install vllm for " in item.problem
        assert sys.executable in item.problem
        assert "\n" not in item.problem
        assert not item.captures
        report = live_report(item, tiny_case.contract, tiny_case.probe, runtime="vllm", path="ckpt")
        assert (report.verdict, report.exit_status) == ("could-not-check", 2)
        (only,) = report.findings
        assert (only.slug, only.runtime) == ("nothing-captured", f"vllm {item.phase}")
        assert str(tmp_path / "out" / "engine.log") in only.next_step
    assert any("No module named 'vllm'" in line for line in said)


def test_the_job_holds_what_an_engine_needs(tiny_case, tmp_path):
    run(tiny_case, tmp_path, only=("decode",), options={"dtype": "float32"})
    job = read_job(tmp_path / "job.json")
    assert job.token_ids == tuple(tiny_case.probe.token_ids.tolist())
    assert (job.phases, job.options, job.method) == (("decode",), {"dtype": "float32"}, tiny_case.contract.method)


def test_another_python_that_cannot_be_started(tiny_case, tmp_path):
    (item,) = run(tiny_case, tmp_path, only=("prefill",), python=str(tmp_path / "no-python"))
    assert "cannot be started (No such file or directory)" in item.problem


def test_a_python_that_dies_leaves_its_last_words(tiny_case, tmp_path):
    script = tmp_path / "python"
    script.write_text("#!/bin/sh\necho starting\necho 'RuntimeError: no such device' >&2\nexit 3\n")
    script.chmod(0o755)
    (item,) = run(tiny_case, tmp_path / "out", only=("prefill",), python=str(script))
    assert item.problem == "the engine died with status 3; its last words: RuntimeError: no such device"


def test_a_python_that_hangs_is_stopped_with_its_children(tiny_case, tmp_path):
    script = tmp_path / "python"
    script.write_text("#!/bin/sh\nsleep 600 &\necho waiting\nsleep 600\n")
    script.chmod(0o755)
    (item,) = run(tiny_case, tmp_path / "out", only=("prefill",), python=str(script), timeout=1.0)
    assert item.problem == "the engine did not end within 1 s and was stopped; its last words: waiting"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"only": ("warm-up",)}, "has no phase 'warm-up' (phases: prefill, "),
        ({"target": "name:8,64"}, "a live run needs the target's directory"),
        ({"name": "llama.cpp"}, "cannot be started here (live runtimes: vllm"),
    ],
)
def test_what_cannot_be_meant_is_a_usage_error(tiny_case, tmp_path, change, said):
    given = {"name": "vllm", "target": tiny_case.target} | change
    with pytest.raises(UsageError, match=re.escape(said)):
        run_live(
            given.pop("name"), tiny_case.place, given.pop("target"), tiny_case.contract,
            probe=tiny_case.probe, out=tmp_path, **given,
        )  # fmt: skip


@pytest.mark.parametrize("ids", [tuple(range(48)), (5, 5, 7, *range(100, 161)), tuple(range(63, -1, -1))])
def test_other_prompts_agree_with_the_probe_and_each_other_at_no_position(ids):
    prompts = [ids, *other_prompts(ids)]
    assert {len(item) for item in prompts} == {len(ids)}
    for place in range(len(ids)):
        assert len({item[place] for item in prompts}) == len(prompts)
    assert {token for item in prompts for token in item} <= set(ids)


def test_settings_of_an_engine_are_words_or_a_file(tmp_path):
    assert options_from_text("dtype=float32 max_num_seqs=8 enforce_eager=false") == {
        "dtype": "float32",
        "max_num_seqs": 8,
        "enforce_eager": False,
    }
    (tmp_path / "a.json").write_text(json.dumps({"block_size": 64}))
    assert options_from_file(tmp_path / "a.json") == {"block_size": 64}
    for text, said in (("dtype", "no KEY=VALUE"), ("a=1 a=2", "given twice"), ("a='1", "cannot be split")):
        with pytest.raises(UsageError, match=said):
            options_from_text(text)
    (tmp_path / "b.json").write_text("[1]")
    with pytest.raises(UsageError, match="holds no JSON object"):
        options_from_file(tmp_path / "b.json")
