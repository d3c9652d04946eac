"""SpecForge 0.2.0: its export carries no ids; the contract carries those of the run, and says what ``fc`` received."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from docs_lines import run_lines
from specforge_run import DEFAULT_IDS, RUN_IDS, draft_config, export, prepare, train
from tiny_target import DRAFT_VOCAB, HIDDEN, LAYERS, probe_tokens

import featurecontract
from featurecontract.gate import audit_data
from featurecontract.states import open_states
from featurecontract.trainers import attach_specforge


def slugs(report):
    return [item.slug for item in report.findings if item.severity != "note"]


@pytest.fixture(scope="module")
def runs(target, tmp_path_factory):
    """Return, by the run's ids, its folder: data, checkpoint, captured."""
    made = {}

    def run(ids):
        if ids not in made:
            folder = tmp_path_factory.mktemp("specforge")
            config = draft_config(folder)
            data = prepare(target, folder / "data", ids)
            checkpoint = train(target, data, config, folder / "run", folder / "captured")
            made[ids] = SimpleNamespace(
                folder=folder, config=config, data=data, checkpoint=checkpoint, captured=folder / "captured"
            )
        return made[ids]

    return run


@pytest.mark.parametrize("to", ["sglang", "hf"])
def test_the_contract_says_what_fc_received(runs, target, tmp_path, to):
    made = runs(RUN_IDS)
    export(made.checkpoint, made.config, tmp_path / "out", to=to, target=target, ids=RUN_IDS)
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    # Its exporter writes no layer ids of any spelling.
    assert "eagle_config" not in config
    assert not any("layer_ids" in key for key in config)
    contract = featurecontract.load(tmp_path / "out")
    assert contract.wiring.boundaries == (1, 3, 6)
    assert contract.provenance.ids == RUN_IDS
    assert contract.provenance.convention == "layer_output"
    assert contract.provenance.ids_key == "model.aux_hidden_state_layer_ids"
    assert (contract.provenance.trainer, contract.provenance.trainer_version) == ("SpecForge", "0.2.0")
    assert contract.projections[0].in_features == 3 * HIDDEN
    assert contract.vocab.draft_vocab_size == DRAFT_VOCAB
    assert contract.vocab.d2t == "offset"

    report = featurecontract.verify(tmp_path / "out", [made.captured])
    assert slugs(report) == []
    assert report.exit_status == 0
    assert report.observed[0].wiring.boundaries == (1, 3, 6)
    # What SGLang would feed without ids is another wiring: the contract catches it before anything is served.
    report = featurecontract.gate.check(str(tmp_path / "out"), target=str(target), runtimes=["sglang==0.5.14"])
    assert report.exit_status == 1


def test_the_template_is_not_the_run(runs, target, tmp_path):
    """A draft config with other ids than the run's: without the run's, the contract is wrong, and verify says so."""
    made = runs(RUN_IDS)
    template = draft_config(tmp_path, ids=DEFAULT_IDS)
    export(made.checkpoint, template, tmp_path / "blind", target=target)
    contract = featurecontract.load(tmp_path / "blind")
    assert contract.provenance.ids == DEFAULT_IDS
    statement = next(item for item in contract.provenance.statements if item.path == "features")
    assert (statement.source, statement.confidence) == ("inferred", 0.5)
    assert "an override of the run, if there was one, is not in the checkpoint" in statement.reason
    assert featurecontract.verify(tmp_path / "blind", [made.captured]).exit_status == 1
    export(made.checkpoint, template, tmp_path / "told", target=target, ids=RUN_IDS)
    assert featurecontract.verify(tmp_path / "told", [made.captured]).exit_status == 0


def test_its_default_where_nothing_else_is_known(runs, target, tmp_path):
    made = runs(DEFAULT_IDS)
    export(made.checkpoint, made.config, tmp_path / "out", target=target)
    contract = featurecontract.load(tmp_path / "out")
    assert contract.wiring.boundaries == (2, 4, 5)
    assert contract.provenance.ids_key == "default"
    assert featurecontract.verify(tmp_path / "out", [made.captured]).exit_status == 0


def test_a_training_process_leaves_the_ids_for_the_exporting_one(runs, target, tmp_path):
    made = runs(RUN_IDS)
    with attach_specforge(target=str(target), ids=RUN_IDS, token_ids=probe_tokens(), strict=True):
        checkpoint = train(target, made.data, made.config, tmp_path / "run", tmp_path / "captured")
    assert featurecontract.load(checkpoint).wiring.boundaries == (1, 3, 6)
    export(checkpoint, made.config, tmp_path / "out", target=target)
    contract = featurecontract.load(tmp_path / "out")
    assert contract.provenance.ids == RUN_IDS
    assert next(item for item in contract.provenance.statements if item.path == "features").source == "recorded"
    assert featurecontract.verify(tmp_path / "out", [tmp_path / "captured"]).exit_status == 0


@pytest.mark.parametrize("mode", ["online", "offline"])
def test_what_it_resolves_in_this_process_is_used(runs, target, tmp_path, mode):
    from specforge.algorithms import model_providers
    from specforge.config.schema import ModelConfig
    from specforge.modeling.auto import AutoDraftModelConfig
    from transformers import AutoConfig

    made = runs(RUN_IDS)
    model = {"target_model_path": str(target), "draft_model_config": str(made.config)}
    config = SimpleNamespace(model=ModelConfig(**model, aux_hidden_state_layer_ids=list(RUN_IDS)))
    with attach_specforge(target=str(target), token_ids=probe_tokens(), strict=True):
        known = (config, AutoDraftModelConfig.from_file(str(made.config)), AutoConfig.from_pretrained(target))
        if mode == "online":
            assert tuple(model_providers.resolve_eagle_capture_layers(*known)) == RUN_IDS
        else:
            from specforge.training import assembly

            assembly._model_resume_provenance(*known, capture_layers=None)
        import specforge.export.to_sglang

        specforge.export.to_sglang.export_to_sglang(str(made.checkpoint), str(made.config), str(tmp_path / "out"))
    assert featurecontract.load(tmp_path / "out").provenance.ids == RUN_IDS


def test_the_capture_layers_of_an_online_run_are_read_from_its_state(runs, target, tmp_path):
    from specforge.config.schema import ModelConfig
    from specforge.modeling.auto import AutoDraftModelConfig
    from specforge.training.provenance import _compute_model_resume_provenance
    from transformers import AutoConfig

    made = runs(RUN_IDS)
    config = SimpleNamespace(
        model=ModelConfig(target_model_path=str(target), draft_model_config=str(made.config), vocab_mapping_path="")
    )
    mapping = _compute_model_resume_provenance(
        config,
        AutoDraftModelConfig.from_file(str(made.config)),
        AutoConfig.from_pretrained(target),
        capture_layers=list(RUN_IDS),
    )
    state = torch.load(made.checkpoint / "training_state.pt", weights_only=False)
    frozen = tuple((key, mapping[key]) for key in sorted(mapping))
    state["resume_contract"] = {"specforge_model_provenance": frozen}
    (tmp_path / "online").mkdir()
    torch.save(state, tmp_path / "online" / "training_state.pt")
    export(tmp_path / "online", made.config, tmp_path / "out", target=target)
    contract = featurecontract.load(tmp_path / "out")
    assert contract.provenance.ids == RUN_IDS
    assert contract.provenance.ids_key == "capture_layers"


def test_its_files_hold_the_contract(runs, target, tmp_path):
    made = runs(RUN_IDS)
    export(made.checkpoint, made.config, tmp_path / "out", target=target, ids=RUN_IDS)
    states = open_states(made.data)
    assert states.format.name == "specforge-eagle3"
    report = audit_data(made.data, tmp_path / "out", target=target)
    assert slugs(report) == []
    last = report.observed[0].wiring.features[3]
    assert (last.boundary, last.state) == (LAYERS, "final_norm")
    other = audit_data(runs(DEFAULT_IDS).data, tmp_path / "out", target=target)
    assert other.exit_status == 1


def test_its_exporter_goes_on_where_no_contract_can_be_written(runs, tmp_path, caplog):
    made = runs(RUN_IDS)
    export(made.checkpoint, made.config, tmp_path / "out", target=tmp_path / "none", strict=False)
    assert (tmp_path / "out" / "model.safetensors").exists()
    assert not (tmp_path / "out" / "feature_contract.json").exists()
    assert sum(item.name == "featurecontract.trainers" for item in caplog.records) == 1


def test_the_lines_of_the_page(runs, target, tmp_path):
    made = runs(RUN_IDS)
    names = {"checkpoint": str(made.checkpoint), "draft_config": str(made.config), "out": str(tmp_path / "out")}
    run_lines("SpecForge", target=str(target), ids=RUN_IDS, **names)["attachment"].detach()
    contract = featurecontract.load(tmp_path / "out")
    assert contract.wiring.boundaries == (1, 3, 6)
    assert contract.provenance.ids == RUN_IDS
    assert contract.target.tokenizer_sha256 is not None


def test_the_launcher(runs, target, tmp_path):
    made = runs(RUN_IDS)
    places = f"--checkpoint {made.checkpoint} --draft-config {made.config} --output-dir {tmp_path / 'out'}"
    theirs = f"export --to sglang {places}"
    ours = ["specforge", "--strict", "--target", str(target), "--ids", "0,2,5"]
    command = [sys.executable, "-m", "featurecontract.trainers", *ours, "--", *theirs.split()]
    done = subprocess.run(
        command,
        env=os.environ | {"TORCHDYNAMO_DISABLE": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert featurecontract.load(tmp_path / "out").wiring.boundaries == (1, 3, 6)
