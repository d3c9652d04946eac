"""The fixture ``feature_capture``: a test of the user's own engine, right and wrong."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

pytest.importorskip("torch")

PAGE = Path(__file__).parents[2] / "docs" / "capture.md"
ENGINE = """
import sys
sys.path[:0] = {path!r}
import torch
from tiny_engine import Engine
class MyEngine(Engine):
    def __init__(self, *_, **__):
        super().__init__({fed!r})
    def prefill(self, ids):
        with torch.no_grad():
            self(torch.tensor([ids]))
"""


@pytest.fixture
def run(pytester, tiny):
    def start(body, *more, fed=(0, 3, 6), ckpts=("ckpt",)):
        path = [str(Path(__file__).parents[1] / "identify")]
        (tiny / "my_engine.py").write_text(ENGINE.format(path=path, fed=fed))
        pytester.makepyfile(test_it="from my_engine import MyEngine\n" + body)
        named = [f"--feature-contract={item}" for item in ckpts]
        return pytester.runpytest(*named, "-k", "test_it.py", "--feature-contract-report=r.json", *more)

    return start


def report(folder):
    return json.loads((folder / "r.json").read_text())


def example():
    """Return the test of docs/capture.md as it is written there."""
    (found,) = [b for b in re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL) if "MyEngine" in b]
    return found


def test_the_example_of_the_page_passes_as_written(run, tiny):
    result = run(example())
    assert result.parseoutcomes()["passed"] == 1
    assert result.ret == 0
    (seen,) = report(tiny)["observed"]
    assert (seen["phase"], seen["runtime"]) == ("prefill", "mine==1.0")
    assert report(tiny)["exit_status"] == 0


def test_the_example_of_the_page_fails_with_order_when_slots_are_swapped(run, tiny):
    result = run(example(), fed=(3, 0, 6))
    assert result.parseoutcomes()["failed"] == 1
    text = result.stdout.str()
    assert "error FC303 order: Features are fed in another order than declared" in text
    assert "place:         mine==1.0 prefill, slots 0, 1" in text
    assert "Traceback" not in text
    assert "_shot.py" not in text
    assert [item["slug"] for item in report(tiny)["findings"]] == ["order"]
    assert report(tiny)["exit_status"] == 1


WITH = "def test_it(feature_capture):\n    engine = MyEngine()\n    with feature_capture(engine.fc) as shot:\n        "


NO_SUCH_TAP = """
from featurecontract.capture import Tap
def test_it(feature_capture):
    with feature_capture(Tap.pattern(MyEngine(), "nothing.*")):
        pass
"""


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (WITH + "pass", "FC107 nothing-captured"),
        (WITH + "shot.tag(token_ids=[299] * 9); engine.prefill([299] * 9)", "FC108 nothing-compared"),
        (WITH + "engine.prefill(shot.token_ids[:3])", "FC109 inconclusive"),
        ("def test_it(feature_capture): feature_capture()", "nothing to tap; pass a module or a Tap"),
        (
            NO_SUCH_TAP,
            "could not check (nothing-captured): feature_capture: ",
        ),
    ],
)
def test_what_could_not_be_checked_is_an_error(run, body, said):
    result = run(body)
    assert result.parseoutcomes().get("errors") == 1
    assert "failed" not in result.parseoutcomes()
    assert result.ret == 1
    assert said in result.stdout.str()
    assert "Traceback" not in result.stdout.str()


def test_asking_for_it_and_capturing_nothing_is_an_error(run):
    result = run("def test_it(feature_capture): pass")
    assert result.parseoutcomes()["errors"] == 1
    assert "asked for feature_capture and verified nothing" in result.stdout.str()
    skipped = run("import pytest\ndef test_it(feature_capture): pytest.skip('no engine here')")
    assert skipped.parseoutcomes()["skipped"] == 1
    assert "errors" not in skipped.parseoutcomes()


def test_without_a_probe_and_without_torch(run, tiny):
    file = tiny / "ckpt" / "feature_contract.probe"
    file.rename(tiny / "aside")
    result = run(WITH + "engine.prefill(shot.token_ids)")
    assert result.parseoutcomes()["errors"] == 1
    assert "could not check (probe-missing): " in result.stdout.str()


def test_what_the_engine_raises_is_what_the_test_shows(run):
    result = run(WITH + "raise ZeroDivisionError('mine')")
    assert result.parseoutcomes()["failed"] == 1
    assert "ZeroDivisionError: mine" in result.stdout.str()
    assert "nothing-captured" not in result.stdout.str()


def test_verify_and_save_and_tag(run, tiny):
    body = """
def test_it(feature_capture, tmp_path):
    engine = MyEngine()
    with feature_capture(engine.fc, save="kept") as shot:
        ids = shot.token_ids
        with shot.tag(token_ids=ids[:32], positions=range(32), phase="chunked-prefill"):
            engine.prefill(ids[:32])
        early = shot.save("early")
        shot.tag(token_ids=ids, phase="prefill")
        engine.prefill(ids)
        report = shot.verify()
        engine.prefill([1, 2, 3])
    assert shot.report is report
    assert [item.phase for item in report.observed] == ["chunked-prefill", "prefill"]
    assert early.exists()
"""
    result = run(body)
    result.assert_outcomes(passed=1, deselected=6)
    assert len(list((tiny / "kept").glob("*.json"))) == 1


def test_it_follows_the_checkpoint_of_feature_contract(run, tiny):
    shutil.copytree(tiny / "ckpt", tiny / "other")
    result = run(WITH + "engine.prefill(shot.token_ids)", "-v", ckpts=("ckpt", "other"))
    result.stdout.fnmatch_lines(["test_it.py::test_it[[]ckpt[]] PASSED*", "test_it.py::test_it[[]other[]] PASSED*"])
    assert [len(item["observed"]) for item in report(tiny)] == [1, 1]


def test_xdist(run, tiny):
    pytest.importorskip("xdist")
    body = WITH + "engine.prefill(shot.token_ids)\n\ndef test_not_it(feature_capture):\n    engine = MyEngine()\n"
    result = run(body + "    with feature_capture(engine.fc) as shot: pass\n", "-n", "2")
    assert (result.parseoutcomes()["passed"], result.parseoutcomes()["errors"]) == (1, 1)
    assert len(report(tiny)["observed"]) == 1
    assert report(tiny)["exit_status"] == 2


def test_without_a_checkpoint_it_is_an_error_and_no_skip(pytester):
    pytester.makepyfile("def test_it(feature_capture): pass")
    pytester.runpytest().assert_outcomes(errors=1)


@pytest.mark.parametrize(("fed", "said"), [((0, 3, 6), "cannot be written"), ((0, 6, 3), "order")])
def test_a_capture_that_cannot_be_saved(run, tiny, fed, said):
    """It is could-not-check, unless what was captured violates the contract."""
    body = """
def test_it(feature_capture):
    engine = MyEngine()
    with feature_capture(engine.fc, save="taken") as shot:
        engine.prefill(shot.token_ids)
"""
    (tiny / "taken").write_text("a file")
    result = run(body, fed=fed)
    text = result.stdout.str()
    assert result.parseoutcomes()["errors" if fed == (0, 3, 6) else "failed"] == 1
    assert said in text
    assert "Traceback" not in text
    assert "InputError" not in text
    assert ("could not check" in text) == (fed == (0, 3, 6))
