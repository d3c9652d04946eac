"""``--feature-contract-states DIR`` and ``--feature-contract-planes LIST``: the weights on stored states, as items."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import save_file
from tiny_drafters import Tiny
from written_by import written_by

from featurecontract import contract as fc
from featurecontract.checkpoint import open_checkpoint
from featurecontract.gate import write_contract
from featurecontract.replay import PlaneName, read_drafter

TRUE = (PlaneName(0), PlaneName(3), PlaneName(5))
DEPTH = 8
ALL = "embedding,1,2,3,4,5,6,7,final_norm"


@pytest.fixture
def case(pytester):
    """A drafter, its contract, and two folders of states: the declared planes alone, and every one."""
    root = pytester.path
    Tiny().write(root / "ckpt")
    texts = written_by(read_drafter(open_checkpoint(root / "ckpt")), TRUE, depth=DEPTH)
    every = [*(PlaneName(b) for b in range(DEPTH)), PlaneName(DEPTH, "final_norm")]
    for name, planes in (("three", [*TRUE, PlaneName(DEPTH)]), ("every", every)):
        (root / name).mkdir()
        for number, text in enumerate(texts):
            stacked = torch.stack([text.planes[plane] for plane in planes], dim=1)
            save_file({"hidden_states": stacked, "token_ids": text.token_ids}, root / name / f"hs_{number}.safetensors")
    write_contract(str(root / "ckpt"), target=f"target:{DEPTH},32,LlamaForCausalLM", features="0,3,5")
    return root


def quality(root, **figures):
    fc.save(replace(fc.load(root / "ckpt"), quality=fc.Quality(**figures)), root / "ckpt")


def run(pytester, *options):
    result = pytester.runpytest("--feature-contract=ckpt", "--feature-contract-report=r.json", "-v", *options)
    found = {}
    for line in result.outlines:
        name, _, rest = line.partition(" ")
        if "::replayed::" in name and rest.split()[:1]:
            found[name.rpartition("::")[2]] = rest.split()[0]
    return result, found, json.loads((pytester.path / "r.json").read_text("utf-8"))


def test_the_declared_order_holds_and_nothing_else_is_stated(pytester, case):
    assert case
    result, found, report = run(pytester, "--feature-contract-states=three")
    assert found == {"wiring": "PASSED"}
    assert result.ret == 0
    assert (report["verdict"], len(report["replayed"])) == ("pass", 3)


def test_the_default_is_a_rival_where_its_planes_are_stored(pytester, case):
    assert case
    _, found, report = run(pytester, "--feature-contract-states=every", f"--feature-contract-planes={ALL}")
    assert found == {"wiring": "PASSED"}
    assert [f["boundary"] for f in report["replayed"][-1]["features"]] == [2, 4, 5]


@pytest.mark.parametrize(("stated", "word"), [(0.7, "PASSED"), (0.95, "FAILED"), (0.3, "FAILED")])
def test_the_stated_accuracy_is_an_item_of_its_own(pytester, case, stated, word):
    quality(case, step_accuracies=(stated,))
    result, found, _ = run(pytester, "--feature-contract-states=three")
    assert found == {"accuracy": word, "wiring": "PASSED"}
    assert result.ret == (word == "FAILED")


def test_an_order_that_the_weights_refute_fails_the_wiring(pytester, case):
    write_contract(str(case / "ckpt"), target=f"target:{DEPTH},32,LlamaForCausalLM", features="3,0,5", force=True)
    result, found, report = run(pytester, "--feature-contract-states=every", f"--feature-contract-planes={ALL}", "-n0")
    assert found == {"wiring": "FAILED"}
    assert {item["slug"] for item in report["findings"] if not item["unchecked"]} == {"wiring-disagrees"}
    assert "--features 0,3,5" in result.stdout.str()


def test_states_that_cannot_be_used_are_errors(pytester, case):
    quality(case, step_accuracies=(0.7,))
    for file in (case / "three").iterdir():
        file.write_bytes(b"\x10" + bytes(7) + b"not a header at all")
    result, found, report = run(pytester, "--feature-contract-states=three")
    assert set(found.values()) == {"ERROR"}
    assert report["exit_status"] == 2
    assert "Traceback" not in result.stdout.str()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--feature-contract-states=nowhere",), "--feature-contract-states: 'nowhere' does not exist"),
        (("--feature-contract-planes=0,1",), "give --feature-contract-states DIR"),
        (("--feature-contract-states=three", "--feature-contract-planes=first"), "--feature-contract-planes:"),
    ],
)
def test_values_that_cannot_be_used_are_usage_errors(pytester, case, options, said):
    assert case
    result = pytester.runpytest("--feature-contract=ckpt", *options)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"*{said}*"])
