"""docs/capture.md is true: its Python runs as written, and names every keyword of the public functions."""

from __future__ import annotations

import dataclasses
import inspect
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from featurecontract.capture import POINTS, Tap, capturing, tag
from featurecontract.capture._tag import Facts

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "capture.md").read_text("utf-8")


def test_its_python_runs_as_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = [block for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if "MyEngine" not in block]
    assert len(blocks) >= 3
    script = tmp_path / "page.py"
    script.write_text("\n".join(blocks))
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.glob("captured/capture-*.json"))


@pytest.mark.parametrize(
    "name",
    [
        *inspect.signature(capturing).parameters,
        *(field.name for field in dataclasses.fields(Facts)),
        *(
            field.name
            for field in dataclasses.fields(Tap)
            if field.name not in ("target", "pattern_text", "method_name")
        ),
        *POINTS,
    ],
)
def test_every_keyword_is_documented(name):
    assert f"`{name}`" in PAGE or f"`{name}=" in PAGE or name == "taps"
    assert tag.__doc__


def test_without_a_gpu_the_gpu_benchmark_says_so():
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu"],
        cwd=ROOT,
        env=os.environ | {"CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "has not been run" in done.stdout
    assert json.loads(done.stdout.splitlines()[-1]) == {"ran": False}
