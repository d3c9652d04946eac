"""Checkpoints for the plugin's tests: config, sparse safetensors, contract; and short ways to run pytest on them."""

from __future__ import annotations

import json
import shutil
import struct
from math import prod
from pathlib import Path

import pytest

from featurecontract.gate import write_contract

TARGET = "Kimi-K2.5:{layers},{hidden},DeepseekV3ForCausalLM"
SIZES = {"BF16": 2, "I64": 8}


def write_sparse(path: Path, tensors: dict) -> None:
    """Write a safetensors file of name -> (dtype, shape, data or None); what has no data is a hole in the file."""
    header, end, parts = {}, 0, []
    for name, (dtype, shape, data) in tensors.items():
        start, end = end, end + prod(shape) * SIZES[dtype]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}
        parts.append((start, data))
    raw = json.dumps(header).encode()
    with path.open("wb") as stream:
        stream.write(struct.pack("<Q", len(raw)) + raw)
        stream.truncate(8 + len(raw) + end)
        for start, data in parts:
            if data is not None:
                stream.seek(8 + len(raw) + start)
                stream.write(data)


def kimi_config(*, hidden: int = 7168, ids: tuple = (2, 30, 58), **more) -> dict:
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": 2 * hidden,
        "num_attention_heads": 64,
        "num_key_value_heads": 64,
        "num_hidden_layers": 1,
        "vocab_size": 163840,
        "draft_vocab_size": 163840,
        "rms_norm_eps": 1e-6,
        "rope_theta": 50000.0,
        "max_position_embeddings": 262144,
        "torch_dtype": "bfloat16",
        "tie_word_embeddings": False,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": list(ids), "use_aux_hidden_state": True},
        **more,
    }


def kimi_tensors(hidden: int = 7168, planes: int = 3) -> dict:
    return {
        "fc.weight": ("BF16", [hidden, planes * hidden], None),
        "lm_head.weight": ("BF16", [320, hidden], None),
        "norm.weight": ("BF16", [hidden], None),
    }


class Kimi:
    """Writes checkpoints like AQ-MedAI/Kimi-K25-eagle3 into a directory."""

    write_sparse = staticmethod(write_sparse)
    tensors = staticmethod(kimi_tensors)
    config = staticmethod(kimi_config)

    def __call__(
        self,
        path: Path | str,
        *,
        features: str | None = "0,3,31",
        hidden: int = 7168,
        ids: tuple = (2, 30, 58),
        extra: dict | None = None,
        digests: bool = False,
        **config,
    ) -> Path:
        path = Path(path)
        path.mkdir(parents=True, exist_ok=True)
        (path / "config.json").write_text(json.dumps(kimi_config(hidden=hidden, ids=ids, **config)))
        write_sparse(path / "model.safetensors", kimi_tensors(hidden) | (extra or {}))
        if features is not None:
            target = TARGET.format(layers=61, hidden=hidden)
            write_contract(str(path), target=target, features=features, force=True, digests=digests)
        return path

    @staticmethod
    def edit_contract(path: Path, **changes) -> None:
        """Set top-level keys of a contract; a mapping is merged into what is there."""
        file = path / "feature_contract.json"
        value = json.loads(file.read_text("utf-8"))
        for key, new in changes.items():
            value[key] = value.get(key, {}) | new if isinstance(new, dict) else new
        file.write_bytes((json.dumps(value, sort_keys=True, indent=2, ensure_ascii=False) + "\n").encode())


@pytest.fixture
def kimi() -> Kimi:
    return Kimi()


class Outcomes(dict):
    """Node id (without the checkpoint) -> outcome word."""

    def of(self, word: str) -> list[str]:
        return [name for name, outcome in self.items() if outcome == word]


@pytest.fixture
def outcomes():
    def read(result, checkpoint: str = "ckpt") -> Outcomes:
        """Read a ``-v`` run: PASSED, FAILED or ERROR by statement."""
        found = Outcomes()
        for line in result.outlines:
            words = line.split()
            prefix = f"{checkpoint}/feature_contract.json::"
            if len(words) > 1 and words[0].startswith(prefix) and words[1] in ("PASSED", "FAILED", "ERROR"):
                found[words[0].removeprefix(prefix)] = words[1]
        return found

    return read


@pytest.fixture
def collected():
    def read(result) -> list[str]:
        """Return the node ids of a ``--collect-only -q`` run."""
        return [line for line in result.outlines if "::" in line]

    return read


@pytest.fixture(autouse=True)
def as_on_a_desk(monkeypatch):
    """Run the inner pytest as a person would: under CI its short summary repeats whole failure texts."""
    for name in ("CI", "BUILD_NUMBER"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="session")
def _recorded(tmp_path_factory):
    """A drafter of the tiny target, recorded once, and captures of engines that feed it."""
    pytest.importorskip("torch")
    from tiny_engine import capture_tiny, record_tiny
    from tiny_runs import WIDTH

    home = tmp_path_factory.mktemp("recorded")
    ckpt = home / "ckpt"
    ckpt.mkdir()
    (ckpt / "config.json").write_text(
        json.dumps({"architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "hidden_size": WIDTH})
    )
    write_sparse(ckpt / "model.safetensors", {"fc.weight": ("BF16", [WIDTH, 3 * WIDTH], None)})
    record_tiny(ckpt)
    capture_tiny(ckpt, home / "good")
    capture_tiny(ckpt, home / "swapped", (0, 6, 3))
    capture_tiny(ckpt, home / "rolled", change=lambda rows: rows.roll(1, 0))
    capture_tiny(ckpt, home / "phases", phases=("prefill", "decode"))
    return home


@pytest.fixture
def tiny(pytester, _recorded):
    """The tiny drafter ``ckpt`` and captures ``good``, ``swapped``, ``rolled``, ``phases``, to be changed freely."""
    shutil.copytree(_recorded, pytester.path, dirs_exist_ok=True)
    return pytester.path
