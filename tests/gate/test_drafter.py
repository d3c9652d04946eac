"""The contract against the drafter that lies beside it: method, sizes, norms, projection, vocabulary map, rope."""

from __future__ import annotations

import json
from array import array
from dataclasses import replace

import pytest
from make_checkpoint import write_sparse

from featurecontract.contract import Block, Rope, load, save
from featurecontract.errors import InputError
from featurecontract.gate import check, write_contract

LLAMA = "Llama:32,64,LlamaForCausalLM"
SGLANG, LLAMA_CPP = "sglang==0.5.22", "llama.cpp==2026.10.1"
IDS = {"eagle_aux_hidden_state_layer_ids": [1, 15, 28]}


@pytest.fixture
def eagle3(drafter):
    """Build and declare an EAGLE-3 drafter for h[2], h[16], h[29]; nothing is wrong with it."""

    def make(**given):
        path = drafter(**{"eagle_config": IDS} | given)
        write_contract(str(path), target=LLAMA, features="2,16,29", force=True)
        return path

    return make


def change(path, *drop, **changes):
    """Change the config; the contract stays."""
    file = path / "config.json"
    config = json.loads(file.read_text("utf-8")) | changes
    file.write_text(json.dumps({key: value for key, value in config.items() if key not in drop}), "utf-8")
    return path


def restate(path, **changes):
    """Change the contract; the files stay."""
    save(replace(load(path), **changes), path)
    return path


def found(path, *runtimes):
    report = check(path, runtimes=runtimes or [SGLANG])
    return [
        (item.slug, item.severity, item.details.get("key") or item.details.get("tensor"))
        for item in report.findings
        if item.severity != "note" and item.slug != "runtime-crash"
    ]


def test_a_contract_beside_its_own_drafter_holds(eagle3):
    assert found(eagle3()) == []


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({"hidden_size": 32}, ("drafter-mismatch", "error", "hidden_size")),
        ({"architectures": ["Eagle3LlamaForCausalLM"]}, ("drafter-mismatch", "warning", "architecture")),
        ({"draft_vocab_size": 160}, ("vocab-map", "error", "draft_vocab_size")),
        ({"target_hidden_size": 128}, ("target-mismatch", "error", "target_hidden_size")),
    ],
)
def test_another_drafter_in_the_directory(eagle3, changes, wanted):
    assert wanted in found(change(eagle3(), **changes))


@pytest.mark.parametrize("changes", [{"architectures": []}, {"architectures": [""]}, {"target_hidden_size": 64}])
def test_what_is_not_stated_or_the_same_is_no_difference(eagle3, changes):
    assert not [
        item for item in found(change(eagle3(), **changes)) if item[0] in ("drafter-mismatch", "target-mismatch")
    ]


def test_another_block(drafter):
    config = {"architectures": ["DFlashDraftModel"], "block_size": 16, "draft_vocab_size": None}
    config |= {"dflash_config": {"target_layer_ids": [1, 15, 28], "mask_token_id": 7}}
    path = drafter(**config)
    write_contract(str(path), target=LLAMA, features="2,16,29")
    assert load(path).drafter.block == Block(size=16, mask_token_id=7)
    assert found(path, "vllm-v1==0.33.0") == []
    mismatches = [
        item
        for item in found(change(path, block_size=8, dflash_config=config["dflash_config"] | {"mask_token_id": 9}))
        if item[0] == "drafter-mismatch"
    ]
    assert mismatches == [
        ("drafter-mismatch", "error", "block.size"),
        ("drafter-mismatch", "error", "block.mask_token_id"),
    ]


@pytest.mark.parametrize("method", ["eagle", "dflash", "p_eagle", "medusa", "mtp"])
def test_a_method_that_the_config_contradicts(eagle3, method):
    path = restate(eagle3(), method=method)
    assert ("drafter-mismatch", "error", "method") in found(path)


def test_methods_that_are_no_contradiction(eagle3, drafter):
    assert not [item for item in found(restate(eagle3(), method="other")) if item[2] == "method"]
    plain = drafter(name="plain", planes=2, architectures=["LlamaForCausalLM"], draft_vocab_size=None)
    write_contract(str(plain), target=LLAMA)
    assert load(plain).method == "eagle"
    assert not [item for item in found(restate(plain, method="hass")) if item[2] == "method"]
    # Recognised by what is absent, so a contradiction is only worth a look.
    assert ("drafter-mismatch", "warning", "method") in found(restate(plain, method="eagle3"))
    state = {"eagle_config": {"use_aux_hidden_state": False}}
    alone = change(plain, "rope_theta", **state)
    assert not [item for item in found(restate(alone, method="hass")) if item[2] == "method"]


def test_p_eagle_needs_its_mask(drafter):
    config = {"architectures": ["PEagleDraftModel"], "eagle_aux_hidden_state_layer_ids": [2, 16, 29]}
    path = drafter(**config)
    write_contract(str(path), target=LLAMA, features="2,16,29")
    assert ("tensor-missing", "error", "mask_hidden") in found(path)
    masked = drafter(**config, name="masked", tensors={"mask_hidden": ("BF16", [1, 64])})
    write_contract(str(masked), target=LLAMA, features="2,16,29")
    assert not [item for item in found(masked) if item[0] == "tensor-missing"]


def without_projection(path):
    write_sparse(path / "model.safetensors", {"lm_head.weight": ("BF16", [320, 64])}, {})
    return path


def test_a_checkpoint_without_its_projection(eagle3, drafter):
    path = without_projection(drafter(name="other", eagle_config=IDS))
    with pytest.raises(InputError, match=r"no fc\.weight") as refused:
        write_contract(str(path), target=LLAMA, features="2,16,29")
    assert refused.value.slug == "tensor-missing"
    assert not (path / "feature_contract.json").exists()
    declared = without_projection(eagle3())
    assert ("tensor-missing", "error", "fc.weight") in found(declared)
    restate(declared, projections=())
    assert ("tensor-missing", "error", "fc.weight") in found(declared)


@pytest.mark.parametrize("name", ["fc.weight_packed", "model.fc.qweight", "main_proj.0.weight"])
def test_a_projection_under_another_name_is_none_missing(drafter, name):
    path = drafter(eagle_config=IDS)
    write_sparse(path / "model.safetensors", {name: ("BF16", [64, 12])}, {})
    write_contract(str(path), target=LLAMA, features="2,16,29")
    assert not [item for item in found(path) if item[0] == "tensor-missing"]


def test_one_last_state_needs_no_projection(drafter):
    path = without_projection(drafter(eagle_config={"use_aux_hidden_state": False}))
    write_contract(str(path), target=LLAMA)
    assert not [item for item in found(path) if item[0] == "tensor-missing"]


# --- vocabulary map -----------------------------------------------------------------------------------------------


def mapped(path, values, marked=()):
    tensors = {"fc.weight": ("BF16", [64, 192]), "lm_head.weight": ("BF16", [160, 64])}
    data = {}
    if values is not None:
        tensors |= {"d2t": ("I64", [len(values)]), "t2d": ("BOOL", [320])}
        data = {"d2t": array("q", values).tobytes(), "t2d": bytes(index in marked for index in range(320))}
    write_sparse(path / "model.safetensors", tensors, data)
    return path


def test_a_map_of_target_ids_is_wrong_where_a_runtime_adds_it(drafter):
    path = drafter(eagle_config=IDS, draft_vocab_size=160)
    ids = range(0, 320, 2)
    mapped(path, ids, set(ids))
    write_contract(str(path), target=LLAMA, features="2,16,29")
    assert load(path).vocab.d2t == "absolute"
    report = check(path, runtimes=[SGLANG, "vllm==0.33.0", LLAMA_CPP])
    wrong = [item for item in report.findings if item.slug == "vocab-map"]
    assert [(item.runtime, item.severity) for item in wrong] == [
        (SGLANG, "error"),
        ("vllm-v1==0.33.0", "error"),
        ("vllm-v2==0.33.0", "error"),
    ]
    mapped(path, [item - index for index, item in enumerate(ids)], set(ids))
    write_contract(str(path), target=LLAMA, features="2,16,29", force=True)
    assert not [item for item in check(path, runtimes=[SGLANG]).findings if item.slug == "vocab-map"]


def test_a_part_of_the_vocabulary_without_a_map(drafter):
    path = mapped(drafter(eagle_config=IDS, draft_vocab_size=160), None)
    write_contract(str(path), target=LLAMA, features="2,16,29")
    report = check(path, runtimes=[SGLANG])
    assert [item.slug for item in report.findings if item.severity == "error"] == ["vocab-map"]
    assert "160 of the target's 320 tokens" in next(i.message for i in report.findings if i.slug == "vocab-map")
    contract = load(path)
    restate(path, vocab=replace(contract.vocab, d2t="identity"))
    (only,) = [item for item in check(path, runtimes=[SGLANG]).findings if item.slug == "vocab-map"]
    assert "names a d2t" in only.message


# --- norms --------------------------------------------------------------------------------------------------------

JOINT, EACH = {"input_norm.weight": ("BF16", [192])}, {f"fc_norm.{slot}.weight": ("BF16", [64]) for slot in range(3)}


@pytest.mark.parametrize(
    ("flags", "tensors", "missing"),
    [
        ({"norm_before_fc": True}, {}, ["input_norm.weight"]),
        ({"norm_before_fc": True}, JOINT, []),
        ({"norm_before_fc": True}, {"pre_fc_norm.weight": ("BF16", [192])}, []),
        ({"fc_norm": True}, {}, ["fc_norm.0.weight"]),
        ({"fc_norm": True}, EACH, []),
        ({"fc_norm": True, "norm_before_fc": True}, EACH, ["input_norm.weight"]),
        ({"fc_norm": False, "norm_before_fc": False}, {}, []),
    ],
)
def test_a_norm_that_was_asked_for_and_not_saved(eagle3, flags, tensors, missing):
    path = eagle3(tensors=tensors, **flags)
    assert [item[2] for item in found(path) if item[0] == "tensor-missing"] == missing


def test_both_norms_at_once(drafter):
    both = {"fc_norm": True, "norm_before_fc": True, "eagle_config": IDS}
    for name, tensors in (("neither", {}), ("both", JOINT | EACH)):
        with pytest.raises(InputError, match="both set") as refused:
            write_contract(str(drafter(name=name, tensors=tensors, **both)), target=LLAMA, features="2,16,29")
        assert refused.value.slug == "norm-before-fc"
    for kind, tensors in (("joint", JOINT), ("per_feature", EACH)):
        path = drafter(name=kind, tensors=tensors, **both)
        write_contract(str(path), target=LLAMA, features="2,16,29")
        assert load(path).projections[0].pre_norm == kind
        assert ("norm-before-fc", "warning", "norm_before_fc") in found(path)


# --- rope ---------------------------------------------------------------------------------------------------------

YARN = {"factor": 8.0, "original_max_position_embeddings": 4096}


def roped(path, **rope):
    return [item for item in found(restate(path, rope=Rope(**rope))) if item[0] == "rope"]


def test_a_theta_that_is_not_stated_is_the_default(eagle3):
    path = change(eagle3(), "rope_theta")
    assert roped(path, theta=10000.0) == []
    assert roped(path, theta=500000.0) == [("rope", "error", "theta")]
    assert roped(change(path, model_type="gpt_oss"), theta=500000.0) == [("rope", "warning", "theta")]


def test_a_scaling_that_is_not_stated_is_none(eagle3):
    path = eagle3()
    assert roped(path, scaling={"type": "yarn", **YARN}, type="yarn") == [("rope", "error", "scaling")]
    assert roped(path, type="llama3") == [("rope", "error", "type")]
    assert roped(path, type="default") == []
    assert roped(path, scaling={"rope_type": "default"}) == []


@pytest.mark.parametrize(
    "config",
    [
        {"rope_scaling": {"rope_type": "yarn", **YARN}},
        {"rope_scaling": {"type": "yarn", **YARN}},
        {"rope_scaling": {"type": "yarn", "rope_type": "yarn", **YARN, "beta_fast": 32.0}},
        {"rope_parameters": {"rope_type": "yarn", "rope_theta": 10000, **YARN}},
        {"rope_parameters": {"full_attention": {"rope_type": "yarn", "rope_theta": 10000, **YARN}}},
        {"rope_scaling": {"type": "yarn", "factor": 8}, "max_position_embeddings": 4096},
    ],
)
@pytest.mark.parametrize("spelling", ["type", "rope_type"])
def test_the_spelling_of_a_rope_is_no_difference(eagle3, config, spelling):
    path = change(eagle3(), **config)
    assert roped(path, theta=10000.0, scaling={spelling: "yarn", **YARN}, type="yarn") == []
    assert roped(path, scaling={spelling: "yarn", **YARN, "factor": 4.0}) == [("rope", "error", "scaling")]
    assert roped(path, scaling={spelling: "linear", **YARN}) == [("rope", "error", "scaling")]
    write_contract(str(path), target=LLAMA, features="2,16,29", force=True)
    assert [item for item in found(path) if item[0] == "rope"] == []


def test_a_rope_of_another_kind_of_value_is_no_traceback(eagle3):
    path = change(eagle3(), rope_theta="x", rope_scaling=[1], rope_parameters="y", max_position_embeddings="many")
    assert roped(path, theta=10000.0, max_position_embeddings=2048) == []
