from __future__ import annotations

import json

import pytest
from make_checkpoint import build, write_sparse

from featurecontract.gate import write_contract

KIMI = "Kimi-K2.5:61,7168,DeepseekV3ForCausalLM"


class Kimi:
    """The published AQ-MedAI/Kimi-K25-eagle3 config with a sparse safetensors file, in a folder of its own."""

    def __init__(self, path):
        self.path = build(path)

    def config(self, **changes):
        """Rewrite config.json: a None takes the key away."""
        file = self.path / "config.json"
        config = json.loads(file.read_text("utf-8"))
        for key, value in changes.items():
            if value is None:
                config.pop(key, None)
            else:
                config[key] = value
        file.write_text(json.dumps(config), "utf-8")
        return self

    def declare(self, features):
        write_contract(str(self.path), target=KIMI, features=features, force=True)
        return self


@pytest.fixture
def kimi(tmp_path):
    return Kimi(tmp_path / "ckpt")


@pytest.fixture
def drafter(tmp_path):
    """Build a small EAGLE-3 drafter for a 32-layer Llama of width 64."""

    def make(*, planes=3, tensors=None, name="drafter", **config):
        path = tmp_path / name
        path.mkdir()
        full = {"architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "hidden_size": 64}
        full |= {"num_hidden_layers": 1, "vocab_size": 320, "draft_vocab_size": 320, "rope_theta": 10000.0}
        (path / "config.json").write_text(json.dumps(full | config), "utf-8")
        header = {"fc.weight": ("BF16", [64, planes * 64]), "lm_head.weight": ("BF16", [320, 64])}
        write_sparse(path / "model.safetensors", header | (tensors or {}), {})
        return path

    return make
