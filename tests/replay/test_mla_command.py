"""`featurecontract replay` of a drafter with latent attention: wirings, the search, and the contract that it writes."""

from __future__ import annotations

import json

import pytest
from test_replay_command import ALL, DEPTH, HIDDEN, TRUE, VOCAB, run, write_states
from tiny_mla import TinyMla
from written_by import written_by

from featurecontract import contract as fc
from featurecontract.checkpoint import open_checkpoint
from featurecontract.replay import PlaneName, read_drafter

YARN = {"type": "yarn", "factor": 8.0, "original_max_position_embeddings": 16, "mscale": 1.0, "mscale_all_dim": 1.0}


@pytest.fixture
def case(tmp_path):
    TinyMla(pre_norm="per_feature", config={"rope_scaling": YARN}).write(tmp_path / "ckpt")
    drafter = read_drafter(open_checkpoint(tmp_path / "ckpt"))
    assert drafter.spec.mla is not None
    write_states(tmp_path / "states", written_by(drafter, TRUE, depth=DEPTH), [PlaneName(b) for b in range(DEPTH + 1)])
    (tmp_path / "target").mkdir()
    body = {"hidden_size": HIDDEN, "num_hidden_layers": DEPTH, "vocab_size": VOCAB, "rms_norm_eps": 1e-5}
    (tmp_path / "target/config.json").write_text(
        json.dumps({"architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", **body})
    )
    return tmp_path


def test_the_search_the_contract_from_it_and_wirings(case):
    target = str(case / "target")
    states = ("--states", str(case / "states"), "--planes", ALL)
    output = case / "found.json"
    run(
        *("replay", str(case / "ckpt"), *states, "--target", target),
        *("--search", "--confidence", "0.99", "-o", "json", "--output", str(output)),
    )
    assert json.loads(output.read_text())["search"]["wiring"] == "0,2,5"
    run("init", str(case / "ckpt"), "--target", target, "--from-search", str(output))
    assert fc.load(case / "ckpt").wiring.boundaries == (0, 2, 5)
    wirings = ("--wiring", "2,5,8", "--wiring", "5,2,0")
    report = json.loads(run("replay", str(case / "ckpt"), *states, *wirings, "-o", "json"))
    assert report["verdict"] == "pass"
    trained, late, turned = (item["accuracy"][0]["value"] for item in report["replayed"])
    assert trained > 0.6
    assert max(late, turned) < 0.4


def test_a_missing_part_is_one_line_and_exit_2(case):
    from safetensors.torch import load_file, save_file

    tensors = load_file(case / "ckpt/model.safetensors")
    del tensors["midlayer.self_attn.kv_b_proj.weight"]
    save_file(tensors, case / "ckpt/model.safetensors")
    states = ("--states", str(case / "states"), "--planes", ALL, "--target", f"t:{DEPTH},{HIDDEN}")
    line = run("replay", str(case / "ckpt"), *states, "--wiring", "0,2,5", status=2)
    assert "layers.0.self_attn.kv_b_proj.weight: is missing from the checkpoint" in line
    assert "\n" not in line
