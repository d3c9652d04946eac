"""ModelOpt 0.47.0: ids are layer outputs, the list's order is ignored, and the exported contract says what was fed."""

from __future__ import annotations

import json

import pytest
import torch
from docs_lines import run_lines
from modelopt_run import IDS, converted, export, offline_outputs, train
from tiny_target import DRAFT_VOCAB, HIDDEN, LAYERS, sequences

import featurecontract
from featurecontract.capture import load
from featurecontract.gate import audit_data
from featurecontract.states import open_states
from featurecontract.trainers import attach_modelopt, trainer_callback


def slugs(report):
    return [item.slug for item in report.findings if item.severity != "note"]


@pytest.fixture(scope="module")
def fed(target, tmp_path_factory):
    """Return, by ids, the folder of the exported drafter; what ``fc`` received lies in ``captured`` beside it."""
    made = {}

    def run(ids):
        if ids not in made:
            folder = tmp_path_factory.mktemp("modelopt")
            model = converted(target, ids)
            train(model, folder / "captured")
            assert not model._aux_hidden_states
            export(model, folder / "drafter")
            made[ids] = folder
        return made[ids]

    return run


@pytest.mark.parametrize(
    ("ids", "boundaries"),
    [
        (IDS, (2, 4, 5)),
        ((), (2, 4, 5)),  # its default
        ((4, 1, 3), (2, 4, 5)),  # in the order of the layers, whatever the list says
        ((0, 3, 7), (1, 4, 8)),  # the last layer's output, before the final norm
    ],
)
def test_the_contract_says_what_fc_received(fed, ids, boundaries):
    folder = fed(ids)
    contract = featurecontract.load(folder / "drafter")
    assert contract.wiring.boundaries == boundaries
    assert {item.state for item in contract.features} == {"residual"}
    assert contract.provenance.convention == "layer_output"
    assert contract.provenance.ids == (ids or IDS)
    assert contract.provenance.ids_key == "eagle_config.eagle_aux_hidden_state_layer_ids"
    assert (contract.provenance.trainer, contract.provenance.trainer_version) == ("ModelOpt", "0.47.0")
    assert contract.vocab.draft_vocab_size == DRAFT_VOCAB
    assert contract.vocab.d2t == "offset"
    assert contract.projections[0].in_features == 3 * HIDDEN
    config = json.loads((folder / "drafter" / "config.json").read_text())
    assert config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == list(ids or IDS)

    report = featurecontract.verify(folder / "drafter", [folder / "captured"])
    assert slugs(report) == []
    assert report.exit_status == 0
    assert report.observed[0].wiring.boundaries == boundaries


def test_a_permuted_list_feeds_bit_for_bit_the_same(fed):
    first, second = (load([str(fed(ids) / "captured")])[0].calls[0].values for ids in (IDS, (4, 1, 3)))
    assert torch.equal(first, second)


def test_another_drafters_capture_is_caught(fed):
    report = featurecontract.verify(fed(IDS) / "drafter", [fed((0, 3, 7)) / "captured"])
    assert report.exit_status == 1


def test_offline_files_feed_the_same_and_hold_the_contract(target, fed, tmp_path):
    from modelopt.torch.speculative.eagle.utils import EagleOfflineDataCollator, OfflineSupervisedDataset

    (tmp_path / "data").mkdir()
    for number, tokens in enumerate(sequences()):
        torch.save(offline_outputs(target, tokens, IDS), tmp_path / "data" / f"conversation-{number}.pt")
    # Its own dataset reads the files.
    dataset = OfflineSupervisedDataset([str(item) for item in sorted((tmp_path / "data").iterdir())])
    batch = EagleOfflineDataCollator(train_len=len(sequences()[0]))([dataset[0]])
    states = open_states(tmp_path / "data")
    assert states.format.name == "modelopt"
    sample = states.read(0)
    assert torch.equal(batch["base_model_outputs"]["aux_hidden_states"][0], sample.features)
    assert torch.equal(batch["base_model_outputs"]["base_model_hidden_states"][0], sample.last)

    report = audit_data(tmp_path / "data", fed(IDS) / "drafter", target=target)
    assert slugs(report) == []
    assert (report.observed[0].wiring.features[3].boundary, report.observed[0].wiring.features[3].state) == (
        LAYERS,
        "final_norm",
    )
    model = converted(target, IDS, offline=True)
    outputs = {"hidden_states": sample.last, "aux_hidden_states": sample.features}
    train(model, tmp_path / "captured", base_outputs=outputs)
    # Its base has no layers any more, so the target is named.
    export(model, tmp_path / "drafter", target=target)
    report = featurecontract.verify(tmp_path / "drafter", [tmp_path / "captured"])
    assert slugs(report) == []
    assert report.exit_status == 0


def test_an_export_that_cannot_be_recorded_is_still_an_export(target, tmp_path, caplog):
    model = converted(target, IDS, offline=True)
    export(model, tmp_path / "drafter", strict=False)
    assert (tmp_path / "drafter" / "model.safetensors").exists()
    assert not (tmp_path / "drafter" / "feature_contract.json").exists()
    assert sum(item.name == "featurecontract.trainers" for item in caplog.records) == 1


def test_recording_leaves_the_model_as_it_was(target, tmp_path):
    model = converted(target)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    model.train()
    torch.manual_seed(5)
    state = torch.random.get_rng_state()
    export(model, tmp_path / "drafter")
    assert torch.equal(torch.random.get_rng_state(), state)
    assert model.training
    after = model.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_detaching_puts_its_function_back():
    from modelopt.torch.export.plugins.hf_spec_export import EagleExporter

    before = EagleExporter.export
    with attach_modelopt():
        assert EagleExporter.export is not before
    assert EagleExporter.export is before


def test_the_callback_in_transformers_own_trainer(target, tmp_path):
    """A home-made drafter in the real Trainer: every checkpoint gets a contract, the target runs once."""
    from transformers import Trainer, TrainingArguments

    from featurecontract.gate import _record

    class Drafter(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = torch.nn.Linear(3 * HIDDEN, HIDDEN, bias=False)

        def forward(self, labels=None):
            return {"loss": self.fc(labels.float()).square().mean()}

    callback = trainer_callback(target=str(target), wiring="0,3,6", strict=True)
    arguments = TrainingArguments(
        output_dir=str(tmp_path), max_steps=4, save_steps=2, per_device_train_batch_size=1, use_cpu=True, report_to=[]
    )
    rows = [{"labels": torch.randn(3 * HIDDEN)} for _ in range(4)]
    calls = []
    original = _record.record_target

    def counted(*args, **kwargs):
        calls.append(1)
        return original(*args, **kwargs)

    import featurecontract.trainers._emitter as emitter

    emitter.record_target = counted
    try:
        trainer = Trainer(model=Drafter(), args=arguments, train_dataset=rows, callbacks=[callback])
        trainer.train()
    finally:
        emitter.record_target = original
    trainer.save_model(str(tmp_path / "final"))
    callback.emit(tmp_path / "final")
    for name in ("checkpoint-2", "checkpoint-4", "final"):
        contract = featurecontract.load(tmp_path / name)
        assert contract.wiring.boundaries == (0, 3, 6)
        assert contract.provenance.trainer == "transformers"
        assert contract.probe is not None
        assert contract.target.num_hidden_layers == LAYERS
    assert len(calls) == 1


def test_the_lines_of_the_page(target, tmp_path):
    run_lines("ModelOpt", model=converted(target), out=tmp_path / "export")["attachment"].detach()
    assert featurecontract.load(tmp_path / "export").wiring.boundaries == (2, 4, 5)
    (tmp_path / "converted").mkdir()
    left = run_lines("transformers' Trainer", target=str(target), out=tmp_path / "converted")
    assert left["callback"].emitter.trainer == "AngelSlim"
    assert featurecontract.load(tmp_path / "converted").wiring.boundaries == (2, 4, 5)
    for step in (100, 200):
        (tmp_path / f"step-{step}").mkdir()
    run_lines("Your own loop", target=str(target), out=tmp_path)
    assert featurecontract.load(tmp_path / "step-200").provenance.trainer == "mine"
