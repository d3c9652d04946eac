"""What looked like a sound input to `replay`, `init --from-search` and `diagnose`, and is none."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import pytest
from safetensors.torch import load_file, save_file
from test_diagnose_command import PLANES, captured, case, diagnose, invoke, replayed
from tiny_drafters import Tiny

from featurecontract import contract as fc

__all__ = ["case"]  # the fixture


def changed(case, directory, change, *, copies=1):
    directory.mkdir()
    for number, file in enumerate(sorted((case / "states").iterdir())):
        content = change(number, load_file(file))
        for copy in range(copies):
            save_file(
                {key: value.contiguous() for key, value in content.items()},
                directory / f"hs_{number}_{copy}.safetensors",
            )
    return directory


def replay(case, states, *arguments, status=0):
    shown = invoke(
        "replay",
        str(case / "ckpt"),
        "--states",
        str(states),
        "--planes",
        PLANES,
        *arguments,
        "-o",
        "json",
        status=status,
    )
    return json.loads(shown)


def test_copies_of_one_sequence_are_one_sample(case, tmp_path):
    first = load_file(min((case / "states").iterdir()))
    states = changed(case, tmp_path / "copies", lambda _number, _content: first)
    report = replay(case, states, "--wiring", "3,6,9", status=2)
    assert report["replayed"][0]["sequences"] == 1
    assert [item["slug"] for item in report["findings"]] == ["inconclusive"]
    report = replay(case, states, "--search", status=2)
    assert "in 1 sequences: too few to rank on" in report["findings"][0]["message"]


def test_sequences_that_are_stored_three_times_give_the_figures_of_one(case, tmp_path):
    once = replay(case, case / "states", "--wiring", "3,6,9")
    thrice = replay(
        case, changed(case, tmp_path / "thrice", lambda _n, content: content, copies=3), "--wiring", "3,6,9"
    )
    assert thrice["replayed"][0]["accuracy"] == once["replayed"][0]["accuracy"]
    assert thrice["replayed"][0]["sequences"] == once["replayed"][0]["sequences"] == 16


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_row_that_is_not_finite_is_no_fault_of_the_drafter(case, tmp_path, value):
    def change(number, content):
        planes = content["hidden_states"].clone()
        planes[3, 6, 5] = value if number == 7 else 0.0
        return {**content, "hidden_states": planes}

    states = changed(case, tmp_path / "torn", change)
    shown = invoke("replay", str(case / "ckpt"), "--states", str(states), "--planes", PLANES, status=2)
    assert "h[6] holds NaN or infinity" in shown
    report = diagnose(case, "--states", str(states), "--planes", PLANES, status=2)
    assert report["diagnosis"]["cause"] == "undecided"


def test_a_plane_of_zeros_is_no_fault_of_the_drafter(case, tmp_path):
    def change(number, content):
        planes = content["hidden_states"].clone()
        if number == 9:
            planes[:, 3] = 0.0
        return {**content, "hidden_states": planes}

    states = changed(case, tmp_path / "zero", change)
    shown = invoke("replay", str(case / "ckpt"), "--states", str(states), "--planes", PLANES, status=2)
    assert "h[3] is zero in every row" in shown
    report = diagnose(case, "--states", str(states), "--planes", PLANES, status=2)
    assert report["diagnosis"]["cause"] == "undecided"


def test_a_negative_token_is_one_line(case, tmp_path):
    states = changed(case, tmp_path / "n", lambda _n, content: {**content, "token_ids": content["token_ids"] - 200})
    shown = invoke("replay", str(case / "ckpt"), "--states", str(states), "--planes", PLANES, status=2)
    assert "is negative" in shown


def test_a_token_beyond_the_drafters_embedding_is_one_line(case, tmp_path):
    shutil.copytree(case / "ckpt", tmp_path / "ckpt")
    tensors = load_file(tmp_path / "ckpt" / "model.safetensors")
    tensors["embed_tokens.weight"] = tensors["embed_tokens.weight"][:150].contiguous()
    save_file(tensors, tmp_path / "ckpt" / "model.safetensors")
    shown = invoke("replay", str(tmp_path / "ckpt"), *replayed(case), status=2)
    assert "has 150 rows, and token" in shown
    invoke("diagnose", str(tmp_path / "ckpt"), *replayed(case), status=2)


def test_states_of_another_vocabulary_are_no_fault_of_the_checkpoint(case, tmp_path):
    def change(_number, content):
        return {**content, "token_ids": content["token_ids"] + 10_000}

    report = diagnose(case, "--states", str(changed(case, tmp_path / "other", change)), "--planes", PLANES, status=2)
    assert report["diagnosis"]["cause"] == "undecided"
    assert "another target's states" in report["diagnosis"]["sentence"]


@pytest.mark.parametrize("device", ["nope", "cuda:99"])
def test_a_device_that_is_not_there_is_one_line(case, device):
    shown = invoke("replay", str(case / "ckpt"), *replayed(case), "--device", device, status=2)
    assert f"--device '{device}' cannot be used" in shown
    report = diagnose(case, *replayed(case), "--device", device, status=2)
    assert f"--device '{device}' cannot be used" in report["findings"][0]["message"]


def test_an_acceptance_length_of_other_steps_is_not_compared_with_these(case):
    path = case / "ckpt"
    before = (path / fc.CONTRACT_FILE).read_bytes()
    found = fc.load(path)
    try:
        right = replay(case, case / "states", "--wiring", "3,6,9")["replayed"][0]["accuracy"][0]["value"]
        serving = fc.Serving(num_steps=7)
        fc.save(replace(found, quality=fc.Quality(acceptance_length=2.9), serving=serving), path)
        report = replay(case, case / "states", status=2)
        assert [item["slug"] for item in report["findings"]] == ["inconclusive"]
        assert report["findings"][0]["next_step"] == "replay with --steps 7"
        assert [item["slug"] for item in replay(case, case / "states", "--steps", "7", status=1)["findings"]] == [
            "accuracy-below"
        ]
        fc.save(replace(found, quality=fc.Quality(acceptance_length=4.9)), path)
        assert replay(case, case / "states", status=2)["findings"][0]["slug"] == "inconclusive"
        # One step is stated, three are replayed: the figure is that of one.
        fc.save(replace(found, quality=fc.Quality(step_accuracies=(right,), acceptance_length=1 + right)), path)
        assert replay(case, case / "states", "--tolerance", "0")["findings"] == []
    finally:
        (path / fc.CONTRACT_FILE).write_bytes(before)


def test_the_report_of_a_search_is_of_its_own_weights(case, tmp_path):
    file = tmp_path / "found.json"
    arguments = ("--states", str(case / "states"), "--planes", PLANES, "--search", "-o", "json", "--output", str(file))
    invoke("replay", str(case / "ckpt"), *arguments)
    target = str(case / "target")
    other = Tiny(hidden=96, target_hidden=96, vocab=300, draft_vocab=120, heads=6, kv_heads=6, seed=9)
    other.write(tmp_path / "other")
    shown = invoke("init", str(tmp_path / "other"), "--target", target, "--from-search", str(file), status=2)
    assert "is of another drafter" in shown
    report = json.loads(file.read_text())
    report["search"]["wiring"] = "1,2,3"
    file.write_text(json.dumps(report))
    shown = invoke("init", str(case / "ckpt"), "--target", target, "--from-search", str(file), "--force", status=2)
    assert "another winner than its ranking" in shown


def test_undecided_never_ends_in_the_status_of_a_violation(case, tmp_path):
    """The capture is of the newest SGLang, the rules were asked about an old one."""
    report = diagnose(case, captured(case, tmp_path / "c"), *replayed(case), "--runtime", "sglang==0.5.12", status=2)
    assert report["diagnosis"]["cause"] == "undecided"
    assert report["verdict"] == "could-not-check"
