"""Loading a target: what is not all there, or not a model, is one line."""

from __future__ import annotations

import json

import pytest
from safetensors.torch import load_file, save_file

from featurecontract.cli import main
from featurecontract.errors import InputError
from featurecontract.probe import load_target

transformers = pytest.importorskip("transformers", reason="no target is loaded without transformers")
pytestmark = pytest.mark.filterwarnings("ignore")  # other people's deprecations


@pytest.fixture(params=[False, True], ids=["own head", "tied head"])
def directory(tmp_path, request):
    config = transformers.LlamaConfig(
        hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=96, tie_word_embeddings=request.param,
    )  # fmt: skip
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path)
    return tmp_path


def rewrite(directory, keep):
    file = directory / "model.safetensors"
    save_file({name: value for name, value in load_file(file).items() if keep(name)}, file, {"format": "pt"})


def refused(directory, match):
    with pytest.raises(InputError, match=match) as caught:
        load_target(str(directory), device="cpu")
    assert len(str(caught.value).splitlines()) == 1


def test_a_whole_target_is_loaded(directory):
    assert load_target(str(directory), device="cpu").model.config.num_hidden_layers == 3


def test_missing_weights_are_refused_with_their_names(directory):
    rewrite(directory, lambda name: ".layers.1." not in name)
    refused(directory, r"no weights for (model\.layers\.1\.\S+, ){2}model\.layers\.1\.\S+ and 6 more; .* at random")


def test_a_missing_embedding_is_refused(directory):
    rewrite(directory, lambda name: "embed_tokens" not in name)
    refused(directory, r"no weights for .*model\.embed_tokens\.weight")


def test_weights_of_another_model_are_refused(directory):
    save_file({"other.weight": load_file(directory / "model.safetensors")["model.norm.weight"]},
              directory / "model.safetensors", {"format": "pt"})  # fmt: skip
    refused(directory, "holds no weights for .* more")


def test_the_command_says_it(directory, tmp_path, capsys):
    rewrite(directory, lambda name: "norm" not in name)
    (tmp_path / "out").mkdir()
    with pytest.raises(SystemExit) as stop:
        main(["record", str(directory), "--wiring", "0,1,2", "--out", str(tmp_path / "out")])
    assert stop.value.code == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith(f"error: {directory}: holds no weights for ")
    assert not list(tmp_path.glob("out/*"))


@pytest.mark.parametrize("size", [0, 4, 100, 5000])
def test_truncated_weights(directory, size):
    file = directory / "model.safetensors"
    file.write_bytes(file.read_bytes()[:size])
    refused(directory, "transformers cannot load the target")


@pytest.mark.parametrize(
    "change", [{"num_attention_heads": 0}, {"num_attention_heads": "x"}, {"hidden_size": -1}, {"rope_parameters": 3}]
)
def test_configs_that_are_none(directory, change):
    file = directory / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    refused(directory, "transformers cannot load the target")


def test_a_file_that_is_no_gguf(tmp_path):
    (tmp_path / "x.gguf").write_bytes(b"GGUF\x03\x00")
    refused(tmp_path / "x.gguf", "transformers cannot load the target")
