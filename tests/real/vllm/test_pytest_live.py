"""``pytest --feature-contract CKPT --feature-contract-live vllm --feature-contract-target T``, as a user runs it."""

from __future__ import annotations

import json
import subprocess
import sys

from featurecontract.live import phases
from featurecontract.live._run import package_environment


def run(case, tmp_path):
    words = [
        sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", "--rootdir", str(case.place.parent),
        "--feature-contract", str(case.place), "--feature-contract-live", "vllm",
        "--feature-contract-target", str(case.target), "--feature-contract-live-args", "dtype=float32",
        "--feature-contract-report", str(tmp_path / "report.json"),
    ]  # fmt: skip
    done = subprocess.run(
        words, capture_output=True, text=True, check=False, timeout=500, cwd=tmp_path, env=package_environment()
    )
    lines = [line.split() for line in done.stdout.splitlines() if "::live-vllm-" in line]
    found = {words[0].partition("::")[2]: words[1] for words in lines if len(words) > 1 and words[1].isupper()}
    return done, found, json.loads((tmp_path / "report.json").read_text())


def test_a_drafter_that_is_served_with_other_planes_fails_with_the_diff(recorded, tmp_path):
    # The story of this project in small: trained on the embedding and two planes, served with three deep ones.
    case = recorded("llama", [1, 3, 5], "0,1,3")
    done, found, report = run(case, tmp_path)
    assert {name.split("::")[0] for name in found} == {f"live-vllm-{phase}" for phase in phases("vllm")}
    for phase in phases("vllm"):
        words = {name.split("::")[1]: word for name, word in found.items() if name.startswith(f"live-vllm-{phase}::")}
        assert (words["slot-0"], words["rows"], words["drafts"], len(words)) == ("FAILED", "PASSED", "PASSED", 5)
    assert "embedding-missing" in done.stdout
    assert {item["slug"] for item in report["findings"] if item["severity"] == "error"} == {"embedding-missing"}
    assert (report["verdict"], done.returncode) == ("fail", 1)
    assert {item["runtime"] for item in report["observed"]} == {"vllm==0.32.0"}
