"""pytest-xdist: the same items and texts, warnings and report on the controller."""

from __future__ import annotations

import pytest

pytest.importorskip("xdist")


def test_the_same_outcomes_as_alone(pytester, kimi):
    kimi(pytester.path / "a")
    kimi(pytester.path / "b", features="3,31,59")
    pytester.makepyfile("def test_own(): pass")
    args = ("--feature-contract=a", "--feature-contract=b", "--feature-contract-runtime=sglang==0.5.13")
    alone = pytester.runpytest(*args)
    spread = pytester.runpytest(*args, "-n", "2", "--junitxml=o.xml")
    assert spread.parseoutcomes() == alone.parseoutcomes()
    text = spread.stdout.str()
    assert text.count("every slot, 1 block too early") == 1
    assert text.count("see b/feature_contract.json::predicted-sglang-0.5.13::slot-0") == 2
    assert "FC301 layer-shift" in (pytester.path / "o.xml").read_text("utf-8")


def test_warnings_and_remarks_reach_the_summary_once(pytester, kimi):
    kimi(pytester.path / "a", features="2,30,58")
    kimi(pytester.path / "b")
    kimi.edit_contract(pytester.path / "a", serving={"runtimes": ["sglang==99.1"]})
    text = pytester.runpytest("--feature-contract=a", "--feature-contract=b", "-n", "2").stdout.str()
    assert text.count("a: warning") == 1
    assert text.count("b: no runtime was named") == 1


def test_a_worker_that_dies_does_not_lose_the_report(pytester, kimi):
    kimi(pytester.path / "ckpt")
    pytester.makepyfile("import os\ndef test_dies(): os._exit(3)")
    pytester.runpytest("--feature-contract=ckpt", "-n", "1", "--feature-contract-report=r.json")
    assert '"exit_status": 2' in (pytester.path / "r.json").read_text()
