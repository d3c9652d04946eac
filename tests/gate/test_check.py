"""What ``check`` compares beside the layers: files, flags, copies, versions, and what it cannot check."""

from __future__ import annotations

import json

import pytest

from featurecontract.contract import load, save
from featurecontract.errors import InputError, UsageError
from featurecontract.gate import check, compare_contracts, predict, write_contract

LLAMA = "Llama:32,64,LlamaForCausalLM"
SGLANG = "sglang==0.5.22"


def declared(path, features="2,16,29", **changes):
    write_contract(str(path), target=LLAMA, features=features, force=True)
    if changes:
        from dataclasses import replace

        save(replace(load(path), **changes), path)
    return path


def found(report):
    return [(item.slug, item.severity) for item in report.findings if item.severity != "note"]


def test_default_ids_pass_with_a_warning(drafter):
    report = check(declared(drafter()), runtimes=[SGLANG])
    assert found(report) == [("ids-defaulted", "warning")]
    assert "by luck" in report.findings[0].message
    assert report.exit_status == 0


def test_a_default_that_is_wrong_replaces_the_layer_findings(drafter):
    report = check(declared(drafter(), "2,9,20"), runtimes=[SGLANG])
    assert found(report) == [("ids-defaulted", "error")]
    assert report.findings[0].details["replaces"] == ["layer-mismatch"]
    assert report.findings[0].next_step == (
        'write "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 8, 19]} in the drafter\'s config.json'
    )


def test_a_sorting_runtime_gives_order_with_its_cause(drafter):
    path = drafter(eagle_config={"eagle_aux_hidden_state_layer_ids": [28, 1, 15]})
    report = check(declared(path, "29,2,16"), runtimes=[SGLANG])
    assert found(report) == [("order", "error")]
    (order,) = [item for item in report.findings if item.slug == "order"]
    assert order.details == {"permutation": [1, 2, 0]}
    assert "in the order in which blocks run" in order.cause
    assert "permute the column blocks" in order.next_step


def test_no_runtime_is_nothing_compared(drafter):
    report = check(declared(drafter()), runtimes=[])
    assert found(report) == [("nothing-compared", "error")]
    assert report.exit_status == 2


def test_the_contracts_own_runtimes_are_used(drafter):
    from featurecontract.contract import Serving

    report = check(declared(drafter(), serving=Serving(runtimes=(SGLANG,))), runtimes=[])
    assert [item.runtime for item in report.predicted] == [SGLANG]


def test_unknown_runtime_and_versions(drafter):
    path = declared(drafter())
    report = check(path, runtimes=["sglangg==1.0"])
    assert found(report) == [("runtime-unknown", "error")]
    assert "did you mean sglang" in report.findings[0].next_step
    assert report.exit_status == 2
    assert check(path, runtimes=["sglang==0.3.0"]).exit_status == 2  # older than the oldest known
    newer = check(path, runtimes=["sglang==99.0"])
    assert ("runtime-newer", "warning") in found(newer)
    assert newer.exit_status == 0
    with pytest.raises(UsageError, match="is not a version"):
        check(path, runtimes=["sglang==banana"])


def test_an_unnamed_architecture_cannot_be_checked(drafter):
    path = drafter(eagle_config={"eagle_aux_hidden_state_layer_ids": [2, 15, 28]})
    write_contract(str(path), target="Llama:32,64", features="3,16,29")
    report = check(path, runtimes=[SGLANG])
    assert found(report) == [("inconclusive", "error")]
    assert report.exit_status == 2
    assert check(path, runtimes=[SGLANG], target=LLAMA).exit_status == 0


def test_another_target_is_a_mismatch(drafter):
    report = check(declared(drafter()), runtimes=[SGLANG], target="other:36,64,Qwen3ForCausalLM")
    keys = [item.details["key"] for item in report.findings if item.slug == "target-mismatch"]
    assert keys == ["num_hidden_layers", "architecture"]
    assert report.exit_status == 1


def test_another_projection_is_a_width_error(drafter):
    path = declared(drafter())
    other = drafter(planes=4, name="other")
    (other / "feature_contract.json").write_bytes((path / "feature_contract.json").read_bytes())
    report = check(other, runtimes=[SGLANG])
    assert ("width", "error") in found(report)
    (width,) = [item for item in report.findings if item.slug == "width"]
    assert "4 planes of 64 in the file, 3 declared" in width.message


def test_missing_tensors(drafter):
    path = declared(drafter())
    (path / "model.safetensors").unlink()
    assert check(path, runtimes=[SGLANG]).exit_status == 2
    report = check(path, runtimes=[SGLANG])
    assert ("checkpoint-unreadable", "error") in found(report)


def test_a_changed_tensor_shows_with_digests_only(drafter):
    path = drafter()
    write_contract(str(path), target=LLAMA, features="2,16,29", digests=True)
    data = bytearray((path / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (path / "model.safetensors").write_bytes(bytes(data))
    assert check(path, runtimes=[SGLANG]).exit_status == 0
    report = check(path, runtimes=[SGLANG], digests=True)
    assert ("tensor-digest", "error") in found(report)


def test_a_norm_flag_that_is_not_read(drafter):
    ids = {"eagle_aux_hidden_state_layer_ids": [1, 15, 28]}
    norm = {"input_norm.weight": ("BF16", [192])}
    path = declared(drafter(norm_before_fc=True, eagle_config=ids, tensors=norm))
    assert load(path).projections[0].pre_norm == "joint"
    assert found(check(path, runtimes=["sglang==0.5.17"])) == []
    report = check(path, runtimes=["sglang==0.5.16"])
    assert found(report) == [("norm-flag-unread", "error")]
    assert report.findings[-1].details["flag"] == "norm_before_fc"


def test_norm_before_residual_is_unread_by_sglang(drafter):
    path = declared(drafter(norm_before_residual=True, eagle_config={"eagle_aux_hidden_state_layer_ids": [1, 15, 28]}))
    assert found(check(path, runtimes=[SGLANG])) == [("norm-flag-unread", "error")]
    assert found(check(path, runtimes=["vllm-v1==0.33.0"]))[-1][0] != "norm-flag-unread"


def test_a_trained_embedding_that_is_replaced(drafter):
    path = drafter(embed_requires_grad=True, eagle_config={"eagle_aux_hidden_state_layer_ids": [1, 15, 28]})
    report = check(declared(path), runtimes=[SGLANG])
    assert found(report) == [("embedding-source", "error")]


def test_rope_of_the_config_against_the_contract(drafter):
    path = declared(drafter(eagle_config={"eagle_aux_hidden_state_layer_ids": [1, 15, 28]}))
    config = json.loads((path / "config.json").read_text("utf-8"))
    (path / "config.json").write_text(json.dumps(config | {"rope_theta": 1000000.0}), "utf-8")
    report = check(path, runtimes=[SGLANG])
    assert found(report) == [("rope", "error")]
    assert (report.findings[0].expected, report.findings[0].actual) == ({"theta": 10000.0}, {"theta": 1000000.0})


def test_conflicting_ids(drafter):
    path = drafter(
        eagle_config={"eagle_aux_hidden_state_layer_ids": [1, 15, 28]}, eagle_aux_hidden_state_layer_ids=[2, 16, 30]
    )
    assert found(check(declared(path), runtimes=[SGLANG])) == [("ids-conflict", "error")]


def test_one_config_for_both_engines_is_no_conflict(drafter):
    path = drafter(
        eagle_config={"eagle_aux_hidden_state_layer_ids": [1, 15, 27]}, eagle_aux_hidden_state_layer_ids=[2, 16, 28]
    )
    write_contract(str(path), target=LLAMA)  # only one reading is left
    report = check(path, runtimes=[SGLANG, "vllm==0.33.0"])
    assert (found(report), report.exit_status) == ([], 0)
    assert load(path).wiring.boundaries == (2, 16, 28)


def test_a_predicted_crash_is_an_error_with_the_text_that_the_user_sees(drafter):
    path = drafter(eagle_config={"eagle_aux_hidden_state_layer_ids": [1, 15, 31]})
    report = check(declared(path, "2,16,32"), runtimes=[SGLANG])
    assert found(report) == [("runtime-crash", "error")]
    assert "mat1 and mat2 shapes cannot be multiplied" in report.findings[-1].message


def test_a_method_that_a_runtime_does_not_have(drafter):
    report = check(declared(drafter()), runtimes=["transformers==5.24.0"])
    assert found(report) == [("method-unsupported", "error")]
    assert "no EAGLE-3" in report.findings[-1].message


def test_init_refuses_what_does_not_fit(drafter):
    with pytest.raises(InputError, match="3 planes of 64; 2 features are 128 columns"):
        write_contract(str(drafter()), target=LLAMA, features="2,16")
    with pytest.raises(UsageError, match="does not exist on a target of 32 layers"):
        write_contract(str(drafter(name="b")), target=LLAMA, features="2,16,40")
    path = declared(drafter(name="c"))
    with pytest.raises(InputError, match="there is a contract already"):
        write_contract(str(path), target=LLAMA, features="2,16,29")


def test_init_lists_both_readings_and_writes_nothing(drafter):
    path = drafter(eagle_config={"eagle_aux_hidden_state_layer_ids": [2, 15, 27]})
    with pytest.raises(UsageError, match=r"2 readings .*--features 3,16,28 .*--features 2,15,27"):
        write_contract(str(path), target=LLAMA)
    assert not (path / "feature_contract.json").exists()
    write_contract(str(path), target=LLAMA, convention="layer_input")
    contract = load(path)
    assert contract.wiring.boundaries == (2, 15, 27)
    assert (contract.provenance.ids, contract.provenance.convention) == ((2, 15, 27), "layer_input")
    assert contract.provenance.statements[0].source == "inferred"


def test_predict_without_a_target_says_what_to_give(drafter):
    with pytest.raises(UsageError, match="give --target"):
        predict(drafter())


def test_contract_diff(drafter):
    old = load(declared(drafter()))
    assert compare_contracts(old, old, paths=("a", "b")).exit_status == 0
    from dataclasses import replace

    renamed = replace(old, name="another name")
    report = compare_contracts(old, renamed, paths=("a", "b"))
    assert (report.exit_status, [item.severity for item in report.findings]) == (0, ["note"])
    moved = load(declared(drafter(name="moved"), "3,17,30"))
    report = compare_contracts(old, replace(moved, name=old.name), paths=("a", "b"))
    assert report.exit_status == 1
    assert ("layer-shift", "error") in found(report)
    wider = replace(old, vocab=replace(old.vocab, draft_vocab_size=100))
    assert compare_contracts(old, wider, paths=("a", "b")).exit_status == 1


@pytest.mark.parametrize("change", [{"reduction": "mean", "streams": 4}, {"streams": 2}, {"dim": 8}, {"scale": 2.0}])
def test_contracts_whose_features_differ_in_anything_are_not_compatible(drafter, change):
    from dataclasses import replace

    old = load(declared(drafter()))
    features = (old.features[0], replace(old.features[1], **change), *old.features[2:])
    report = compare_contracts(old, replace(old, features=features), paths=("a", "b"))
    assert report.exit_status == 1
    assert any(1 in item.slots for item in report.findings if item.severity == "error")


def test_a_method_of_one_vllm_runner_only(drafter):
    config = {"architectures": ["DFlashDraftModel"], "block_size": 16, "draft_vocab_size": None}
    config |= {"dflash_config": {"target_layer_ids": [1, 15, 28], "mask_token_id": 7}}
    path = declared(drafter(**config))
    both = check(path, runtimes=["vllm==0.22.0"])
    assert found(both) == []
    assert both.exit_status == 0
    forced = check(path, runtimes=["vllm-v2==0.22.0"])
    assert ("method-unsupported", "error") in found(forced)
    assert forced.exit_status == 1
