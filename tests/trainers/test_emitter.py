"""The emitter: one contract with its probe for each checkpoint, written by one process, and never the end of a run."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from tiny_engine import PATHS, Engine  # noqa: E402
from tiny_runs import DEPTH, WIDTH  # noqa: E402

import featurecontract  # noqa: E402
from featurecontract.contract import save  # noqa: E402
from featurecontract.errors import InputError, UsageError  # noqa: E402
from featurecontract.trainers import Emitter, LayerIds, emit  # noqa: E402
from featurecontract.trainers import _emitter as module  # noqa: E402

IDS = torch.randperm(300, generator=torch.Generator().manual_seed(0))[:64].tolist()


def emitter(target=None, **options):
    target = Engine((0,)) if target is None else target
    given = {"wiring": "0,3,6"} if "ids" not in options and "wiring" not in options else {}
    return Emitter(target=target, token_ids=IDS, **PATHS, **given, **options)


def folder(parent, name="step-1"):
    (parent / name).mkdir()
    return parent / name


def test_every_checkpoint_gets_one_and_the_target_runs_once(tmp_path, monkeypatch):
    calls = []
    real = module.record_target
    monkeypatch.setattr(module, "record_target", lambda *args, **kwargs: calls.append(1) or real(*args, **kwargs))
    writer = emitter(trainer="ours", trainer_version="1.2")
    made = [writer.emit(folder(tmp_path, f"step-{number}")) for number in range(3)]
    assert calls == [1]
    for number, contract in enumerate(made):
        held = featurecontract.load(tmp_path / f"step-{number}")
        assert held == contract
        assert held.wiring.boundaries == (0, 3, 6)
        assert (held.provenance.trainer, held.provenance.trainer_version) == ("ours", "1.2")
        assert held.probe is not None
    assert len({item.probe.sha256 for item in made}) == 1


def test_what_is_there_is_not_written_again(tmp_path):
    out = folder(tmp_path)
    emitter().emit(out)
    before = {item.name: item.stat().st_mtime_ns for item in out.iterdir()}
    assert emitter().emit(out) == featurecontract.load(out)
    assert {item.name: item.stat().st_mtime_ns for item in out.iterdir()} == before


def test_a_contract_without_a_probe_gets_one_and_keeps_its_words(tmp_path):
    out = folder(tmp_path)
    made = emitter().emit(out)
    for item in out.iterdir():
        item.unlink()
    save(replace(made, probe=None, name="by hand"), out / "feature_contract.json")
    contract = emitter().emit(out)
    assert contract.name == "by hand"
    assert contract.probe is not None


def test_another_runs_contract_is_not_replaced(tmp_path, caplog):
    out = folder(tmp_path)
    emitter().emit(out)
    before = (out / "feature_contract.json").read_bytes()
    writer = emitter(wiring="0,4,7")
    with caplog.at_level(logging.WARNING, "featurecontract.trainers"):
        assert writer.emit(out) is None
    assert "declares [embedding, h[3], h[6]], this run trains on [embedding, h[4], h[7]]" in writer.failure
    assert (out / "feature_contract.json").read_bytes() == before
    with pytest.raises(InputError, match="remove the old contract"):
        emitter(wiring="0,4,7", strict=True).emit(out)


class Broken(torch.nn.Module):
    """A target that cannot be run."""

    def __init__(self):
        super().__init__()
        self.inner = Engine((0,))

    def forward(self, _ids):
        raise RuntimeError("no kernel\nfor this")


def test_a_failure_is_logged_once_and_training_goes_on(tmp_path, caplog):
    calls = []
    broken = Broken()
    broken.register_forward_pre_hook(lambda *_args: calls.append(1))
    paths = {name: f"inner.{path}" for name, path in PATHS.items()}
    writer = Emitter(target=broken, wiring="0,3,6", token_ids=IDS, **paths)
    with caplog.at_level(logging.WARNING, "featurecontract.trainers"):
        assert [writer.emit(folder(tmp_path, f"step-{number}")) for number in range(3)] == [None, None, None]
    assert len(caplog.records) == 1
    line = caplog.records[0].getMessage()
    assert "\n" not in line
    assert "no kernel for this" in line
    assert "training goes on" in line
    assert f"featurecontract record TARGET --wiring 0,3,6 --out {tmp_path / 'step-0'}" in line
    assert len(calls) == 1  # what failed once is not tried again
    assert not list(tmp_path.glob("*/feature_contract.*"))
    with pytest.raises(InputError, match="no kernel"):
        Emitter(target=broken, wiring="0,3,6", token_ids=IDS, strict=True, **paths).emit(tmp_path / "step-0")


def test_a_full_disk_is_no_end_of_a_run(tmp_path):
    writer = emitter()
    assert writer.emit(tmp_path / "never-made") is None
    assert "is no directory" in writer.failure
    assert writer.emit(folder(tmp_path)) is not None  # the target was recorded; only that place was bad


def test_training_is_not_disturbed(tmp_path):
    target = Engine((0,)).train()
    torch.manual_seed(4)
    before = torch.random.get_rng_state()
    values = {name: value.clone() for name, value in target.state_dict().items()}
    kept = {name: value.data_ptr() for name, value in target.named_parameters()}
    dtypes = set()
    hook = target.register_forward_pre_hook(lambda module, _args: dtypes.update(p.dtype for p in module.parameters()))
    emitter(target).emit(folder(tmp_path))
    hook.remove()
    assert dtypes == {torch.float32}  # never cast while an optimizer may hold them
    assert torch.equal(torch.random.get_rng_state(), before)
    assert all(item.training for item in target.modules())
    assert all(torch.equal(values[name], value) for name, value in target.state_dict().items())
    assert {name: value.data_ptr() for name, value in target.named_parameters()} == kept
    assert not any(item._forward_hooks or item._forward_pre_hooks for item in target.modules())


def test_other_processes_write_nothing(tmp_path, monkeypatch):
    out = folder(tmp_path)
    assert emitter().emit(out, main_process=False) is None
    monkeypatch.setenv("RANK", "3")
    assert emitter().emit(out) is None
    assert not list(out.iterdir())
    monkeypatch.setenv("RANK", "0")
    assert emitter().emit(out) is not None


def test_a_target_that_is_spread_over_processes_is_refused(tmp_path):
    target = Engine((0,))
    next(target.parameters()).ds_id = 0  # how DeepSpeed's stage 3 marks a parameter
    writer = emitter(target)
    assert writer.emit(folder(tmp_path)) is None
    assert "target='DIR'" in writer.failure


def test_two_processes_write_one_contract(tmp_path):
    script = tmp_path / "run.py"
    script.write_text(
        "import sys, torch, torch.distributed as dist\n"
        "from pathlib import Path\n"
        "from tiny_engine import PATHS, Engine\n"
        "from featurecontract.trainers import Emitter\n"
        "rank, out = int(sys.argv[1]), Path(sys.argv[2])\n"
        "dist.init_process_group('gloo', init_method=f'file://{out}/meet', rank=rank, world_size=2)\n"
        f"ours = Emitter(target=Engine((0,)), wiring='0,3,6', token_ids={IDS}, strict=True, **PATHS)\n"
        "made = ours.emit(out / 'ckpt')\n"
        "assert (made is not None) == (rank == 0)\n"
        "dist.barrier()\n"
        "assert (out / 'ckpt' / 'feature_contract.json').exists()\n"
    )
    (tmp_path / "ckpt").mkdir()
    here = Path(__file__).parents[1]
    path = os.pathsep.join([str(here / "identify"), str(here.parent)])
    running = [
        subprocess.Popen([sys.executable, str(script), str(rank), str(tmp_path)], env=os.environ | {"PYTHONPATH": path})
        for rank in range(2)
    ]
    assert [item.wait(timeout=300) for item in running] == [0, 0]
    assert sorted(item.name for item in (tmp_path / "ckpt").iterdir()) == sorted(
        ["feature_contract.json", featurecontract.load(tmp_path / "ckpt").probe.file]
    )


def test_ids_are_translated_and_kept(tmp_path):
    ids = LayerIds.of([5, -1, 2], "layer_output", ascending=True, key="their.key", reason="of the run")
    contract = emitter(ids=ids).emit(folder(tmp_path))
    assert contract.wiring.boundaries == (0, 3, 6)
    assert contract.provenance.ids == (5, -1, 2)
    assert (contract.provenance.convention, contract.provenance.ids_key) == ("layer_output", "their.key")
    said = next(item for item in contract.provenance.statements if item.path == "features")
    assert said.reason == "layer outputs [5, -1, 2] (their.key), fed in the order of the layers; of the run"
    document = json.loads((tmp_path / "step-1" / "feature_contract.json").read_text())
    assert document["provenance"]["ids"] == [5, -1, 2]


@pytest.mark.parametrize(
    ("ids", "convention", "ascending", "boundaries"),
    [
        ((2, 4, 5), "layer_input", False, (2, 4, 5)),
        ((0, 4, 5), "layer_input", False, (0, 4, 5)),
        ((1, 3, 4), "layer_output", False, (2, 4, 5)),
        ((4, 1, 3), "layer_output", False, (5, 2, 4)),
        ((4, 1, 3), "layer_output", True, (2, 4, 5)),
        ((3, 3, 5), "layer_output", True, (4, 6)),
        ((-1, 2, 6), "layer_output", True, (0, 3, 7)),
    ],
)
def test_the_two_conventions(ids, convention, ascending, boundaries):
    assert LayerIds.of(ids, convention, ascending=ascending).boundaries == boundaries


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({}, "either wiring="),
        ({"wiring": "0,3", "ids": [1]}, "either wiring="),
        ({"wiring": "0,x"}, "'x' is not a boundary"),
        ({"ids": [1, 2]}, "ids need a convention"),
        ({"ids": [1, 2], "convention": "x"}, "write layer_output or layer_input"),
        ({"ids": [-1, 2], "convention": "layer_input"}, "write whole numbers from 0"),
        ({"ids": [], "convention": "layer_output"}, "at least one"),
        ({"ids": [True], "convention": "layer_output"}, "write whole numbers"),
    ],
)
def test_arguments_that_cannot_be_meant(options, match):
    with pytest.raises(UsageError, match=match):
        Emitter(target=None, **options)


def test_one_call_after_training(tmp_path):
    config = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_size": WIDTH,
        "vocab_size": 300,
        "_torchspec_version": "0.1",
    }
    out = folder(tmp_path)
    (out / "config.json").write_text(json.dumps(config))
    contract = emit(
        out,
        target=Engine((0,)),
        ids=[-1, 2, 5],
        convention="layer_output",
        trainer="TorchSpec",
        token_ids=IDS,
        **PATHS,
    )
    assert contract.wiring.boundaries == (0, 3, 6)
    assert contract.provenance.trainer == "TorchSpec"
    assert contract.target.num_hidden_layers == DEPTH
    with pytest.raises(InputError, match="is no directory"):
        emit(tmp_path / "none", target=Engine((0,)), wiring="0,3,6", token_ids=IDS, **PATHS)
