"""speculators 0.9.0: its ids are layer inputs, and the contract beside its checkpoint says what ``fc`` received."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import speculators_run
from docs_lines import run_lines
from speculators_run import IDS, prepare, train
from tiny_target import HIDDEN, probe_tokens

import featurecontract
from featurecontract.gate import audit_data
from featurecontract.states import open_states
from featurecontract.trainers import attach_speculators


@pytest.fixture(scope="module")
def made(target, tmp_path_factory):
    folder = tmp_path_factory.mktemp("speculators")
    data = prepare(target, folder / "data")
    captured = train(target, data, folder / "run")
    return folder, data, captured


def slugs(report):
    return [item.slug for item in report.findings if item.severity != "note"]


def test_the_contract_says_what_fc_received(made):
    folder, _, captured = made
    contract = featurecontract.load(folder / "run" / "0")
    # The ids of its config are the boundaries: no shift.
    assert contract.wiring.boundaries == IDS
    assert contract.provenance.ids == IDS
    assert contract.provenance.convention == "layer_input"
    assert contract.provenance.ids_key == "eagle_aux_hidden_state_layer_ids"
    assert (contract.provenance.trainer, contract.provenance.trainer_version) == ("speculators", "0.9.0")
    assert contract.probe.token_ids == tuple(probe_tokens())
    assert contract.projections[0].in_features == 3 * HIDDEN
    assert contract.projections[0].pre_norm == "joint"
    assert contract.alignment.position_offset == 1
    assert next(item for item in contract.provenance.statements if item.path == "features").source == "recorded"

    report = featurecontract.verify(folder / "run" / "0", [captured])
    assert slugs(report) == []
    assert report.exit_status == 0
    assert {item.point for item in report.observed} == {"features", "projection_input"}
    assert all(item.wiring.boundaries == IDS for item in report.observed)


def test_the_config_has_no_model_type_for_sglang(made):
    config = json.loads((made[0] / "run" / "0" / "config.json").read_text())
    assert config["eagle_aux_hidden_state_layer_ids"] == list(IDS)
    assert "eagle_config" not in config
    assert "model_type" not in config


def test_its_data_holds_the_contract(made, target):
    folder, data, _ = made
    states = open_states(data)
    assert states.format.name == "speculators"
    assert len(states) == 3
    report = audit_data(data, folder / "run" / "0")
    # One sequence of three begins with the probe's tokens; a target says the same of all.
    assert slugs(report) == ["planes-sampled"]
    assert report.exit_status == 0
    report = audit_data(data, folder / "run" / "0", target=target)
    assert slugs(report) == []
    assert len(report.observed) == 3
    # The plane beside the features is h[L], before the final norm.
    last = [item.wiring.features[3] for item in report.observed]
    assert {(item.boundary, item.state) for item in last} == {(8, "residual")}


def test_data_of_other_layers_is_caught_in_training_and_in_the_data(target, tmp_path):
    data = prepare(target, tmp_path / "data", ids=(3, 5, 6))
    captured = train(target, data, tmp_path / "run")
    report = featurecontract.verify(tmp_path / "run" / "0", [captured])
    assert "layer-shift" in slugs(report)
    assert report.exit_status == 1
    assert audit_data(data, tmp_path / "run" / "0", target=target).exit_status == 1


def test_unsorted_ids_are_fed_in_the_order_of_the_layers(target, tmp_path):
    ids = (5, 2, 4)
    data = prepare(target, tmp_path / "data", ids=ids)
    captured = train(target, data, tmp_path / "run", ids=ids)
    contract = featurecontract.load(tmp_path / "run" / "0")
    assert contract.wiring.boundaries == (2, 4, 5)
    assert contract.provenance.ids == ids
    assert featurecontract.verify(tmp_path / "run" / "0", [captured]).exit_status == 0


def test_training_goes_on_where_no_contract_can_be_written(target, tmp_path, caplog):
    data = prepare(target, tmp_path / "data")
    train(target, data, tmp_path / "run", "--dry-run", attach={"strict": False, "target": str(tmp_path / "none")})
    assert (tmp_path / "run" / "model.safetensors").exists()
    assert not (tmp_path / "run" / "feature_contract.json").exists()
    said = [item for item in caplog.records if item.name == "featurecontract.trainers"]
    assert len(said) == 1
    assert "training goes on" in said[0].message
    assert "featurecontract record TARGET --wiring 2,4,5" in said[0].message


def test_the_line_of_the_page(target, tmp_path):
    data = prepare(target, tmp_path / "data")
    left = run_lines("speculators")
    try:
        speculators_run.run(
            f"train --dry-run --speculator-type eagle3 --verifier-name-or-path {target} --data-path {data} --save-path "
            f"{tmp_path / 'run'} --target-layer-ids 0 4 5".split()
        )
    finally:
        left["attachment"].detach()
    # A dry run leaves one, too, and the embedding is a layer input like any other.
    contract = featurecontract.load(tmp_path / "run")
    assert contract.wiring.boundaries == (0, 4, 5)
    assert contract.target.tokenizer_sha256 is not None


def test_the_launcher(target, tmp_path):
    data = prepare(target, tmp_path / "data")
    theirs = f"train --dry-run --speculator-type eagle3 --verifier-name-or-path {target} --data-path {data} --save-path"
    command = [sys.executable, "-m", "featurecontract.trainers", "speculators", "--strict", "--", *theirs.split()]
    done = subprocess.run([*command, str(tmp_path / "run")], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    # Without ids its default: h[2], h[L // 2], h[L - 3].
    assert featurecontract.load(tmp_path / "run").wiring.boundaries == (2, 4, 5)


def test_detaching_puts_its_functions_back():
    from speculators.model import SpeculatorModel
    from speculators.train.checkpointer import SingleGPUCheckpointer

    before = SpeculatorModel.save_pretrained, SingleGPUCheckpointer.save_checkpoint
    with attach_speculators():
        assert SingleGPUCheckpointer.save_checkpoint is not before[1]
    assert (SpeculatorModel.save_pretrained, SingleGPUCheckpointer.save_checkpoint) == before
    assert speculators_run.IDS == IDS
