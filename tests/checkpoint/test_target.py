from __future__ import annotations

import json

import pytest
from checkpoint_files import write_checkpoint

from featurecontract.checkpoint import TargetFacts, read_target
from featurecontract.errors import InputError

FORMS = (
    "name a model directory, its config.json, or "
    "NAME:LAYERS,WIDTH[,ARCHITECTURE] (such as Kimi-K2.5:61,7168,DeepseekV3ForCausalLM)"
)


def from_config(tmp_path, config: dict) -> TargetFacts:
    return read_target(str(write_checkpoint(tmp_path, config=config)))


@pytest.mark.parametrize(
    ("text", "name", "layers", "width", "architecture"),
    [
        ("Kimi-K2.5:61,7168,DeepseekV3ForCausalLM", "Kimi-K2.5", 61, 7168, "DeepseekV3ForCausalLM"),
        ("meta-llama/Llama-3.1-8B:32,4096", "meta-llama/Llama-3.1-8B", 32, 4096, None),
        ("a:b:c/d:1,1", "a:b:c/d", 1, 1, None),
        ("x:32,4096:61,7168", "x:32,4096", 61, 7168, None),
        ("C:\\models\\x:2,8", "C:\\models\\x", 2, 8, None),
    ],
)
def test_the_short_form(text, name, layers, width, architecture):
    assert read_target(text) == TargetFacts(
        source=text,
        name=name,
        num_hidden_layers=layers,
        hidden_size=width,
        architecture=architecture,
        architectures=(architecture,) if architecture else (),
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nope",
        "x:61",
        "x:61,",
        ":61,7168",
        "x:61,7168,",
        "x:61,7168,A,B",
        "x:-1,7168",
        "x:61.0,7168",
        "x:61, 7168",
        "x:61,7168,3D",
        "a\nb:61,7168",
        "a\0b:61,7168",
        "x:" + "9" * 5000 + ",1",
        "y" * 100_000,
        "x:٦١,7168",
    ],
)
def test_a_text_that_is_no_target_shows_the_three_forms(text):
    with pytest.raises(InputError) as caught:
        read_target(text)
    message = str(caught.value)
    assert message.endswith(f": is no target: nothing has this path; {FORMS}")
    assert message.isprintable()
    assert len(message) < 300


def test_the_short_form_names_every_number_out_of_range():
    with pytest.raises(InputError) as caught:
        read_target("x:0,99999999")
    assert [(problem.place, problem.message) for problem in caught.value.problems] == [
        ("num_hidden_layers", "is 0, not in 1..10000"),
        ("hidden_size", "is 99999999, not in 1..1048576"),
    ]


def test_a_directory_and_its_config_give_the_same(tmp_path):
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "num_hidden_layers": 32,
        "hidden_size": 4096,
        "vocab_size": 128256,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "torch_dtype": "bfloat16",
        "rope_theta": 500000,
        "tie_word_embeddings": False,
        "hc_mult": 4,
        "num_loops": 2,
        "quantization_config": {"quant_method": "fp8"},
    }
    directory = write_checkpoint(tmp_path / "llama", config=config)
    (directory / "model.safetensors").write_bytes(b"never read")
    for text in (str(directory), str(directory / "config.json")):
        assert read_target(text) == TargetFacts(
            source=text,
            name="llama",
            num_hidden_layers=32,
            hidden_size=4096,
            vocab_size=128256,
            architecture="LlamaForCausalLM",
            architectures=("LlamaForCausalLM",),
            model_type="llama",
            outer_model_type="llama",
            num_attention_heads=32,
            num_key_value_heads=8,
            dtype="bfloat16",
            quantization="fp8",
            rope_theta=500000.0,
            tie_word_embeddings=False,
            hc_mult=4,
            num_loops=2,
        )


def test_a_path_comes_before_the_short_form(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_checkpoint(tmp_path / "x:61,7168", config={"num_hidden_layers": 2, "hidden_size": 8})
    assert read_target("x:61,7168").num_hidden_layers == 2


def test_a_config_of_another_name_is_read(tmp_path):
    (tmp_path / "kimi.json").write_text('{"num_hidden_layers": 61, "hidden_size": 7168}')
    assert read_target(str(tmp_path / "kimi.json")).hidden_size == 7168


def test_the_name_of_a_model_in_a_cache(tmp_path):
    snapshot = tmp_path / "models--moonshotai--Kimi-K2.5" / "snapshots" / "0123abc"
    assert from_config(snapshot, {"num_hidden_layers": 61, "hidden_size": 7168}).name == "moonshotai/Kimi-K2.5"


TEXT = {
    "num_hidden_layers": 61,
    "hidden_size": 7168,
    "vocab_size": 163840,
    "model_type": "kimi_k2",
    "architectures": ["DeepseekV3ForCausalLM"],
    "dtype": "bfloat16",
    "quantization_config": {"quant_method": "compressed-tensors"},
}


@pytest.mark.parametrize(
    "nest",
    [
        lambda text: {"text_config": text},
        lambda text: {"llm_config": text},
        lambda text: {"language_config": text},
        lambda text: {"language_model": text},
        lambda text: {"thinker_config": {"text_config": text}, "hidden_size": 1},
        lambda text: {"text_config": text, "num_hidden_layers": 3, "hidden_size": 5, "vocab_size": 7},
        lambda text: {"vision_config": {"num_hidden_layers": 27, "hidden_size": 1152}, "text_config": text},
    ],
)
def test_the_text_model_of_a_multimodal_config(tmp_path, nest):
    outer = {
        "architectures": ["KimiK25ForConditionalGeneration"],
        "model_type": "kimi_k25",
        "tie_word_embeddings": True,
    }
    target = from_config(tmp_path, outer | nest(TEXT))
    assert (target.num_hidden_layers, target.hidden_size, target.vocab_size) == (61, 7168, 163840)
    assert target.architecture == "KimiK25ForConditionalGeneration"
    assert target.architectures == ("KimiK25ForConditionalGeneration", "DeepseekV3ForCausalLM")
    assert (target.model_type, target.outer_model_type) == ("kimi_k2", "kimi_k25")
    assert (target.dtype, target.quantization) == ("bfloat16", "compressed-tensors")
    assert target.tie_word_embeddings is True


@pytest.mark.parametrize("inner", [{}, {"vocab_size": 5}, [], "x", None])
def test_a_flat_config_with_an_empty_section(tmp_path, inner):
    target = from_config(tmp_path, {"num_hidden_layers": 2, "hidden_size": 8, "text_config": inner})
    assert (target.num_hidden_layers, target.hidden_size) == (2, 8)


def test_older_spellings(tmp_path):
    assert from_config(tmp_path, {"n_layer": 12, "n_embd": 768}).num_hidden_layers == 12
    assert from_config(tmp_path, {"num_layers": 28, "hidden_size": 4096}).num_hidden_layers == 28


@pytest.mark.parametrize(
    ("extra", "field", "value"),
    [
        ({"rope_parameters": {"rope_theta": 10000.0}}, "rope_theta", 10000.0),
        ({"rope_parameters": {"full_attention": {"rope_theta": 1000000}}}, "rope_theta", 1000000.0),
        ({"rope_parameters": {"rope_theta": "x"}}, "rope_theta", None),
        ({"rope_theta": True}, "rope_theta", None),
        ({"quantization_config": {"quant_algo": "NVFP4"}}, "quantization", "NVFP4"),
        ({"quantization_config": {}}, "quantization", "unnamed"),
        ({"compression_config": {"quant_method": "x"}}, "quantization", "x"),
        ({"quantization_config": None}, "quantization", None),
        ({"num_key_value_heads": [1, 2]}, "num_key_value_heads", None),
        ({"num_attention_heads": True}, "num_attention_heads", None),
        ({"tie_word_embeddings": 1}, "tie_word_embeddings", None),
        ({"architectures": "X"}, "architecture", None),
        ({"architectures": [1, "X"]}, "architecture", "X"),
        ({"model_type": 3}, "model_type", None),
        ({"vocab_size": None}, "vocab_size", None),
    ],
)
def test_optional_facts(tmp_path, extra, field, value):
    assert getattr(from_config(tmp_path, {"num_hidden_layers": 2, "hidden_size": 8} | extra), field) == value


@pytest.mark.parametrize(
    ("config", "place", "message"),
    [
        ({"hidden_size": 8}, "num_hidden_layers", "is missing"),
        ({"num_hidden_layers": 2}, "hidden_size", "is missing"),
        ({"num_hidden_layers": None, "hidden_size": 8}, "num_hidden_layers", "is missing"),
        ({"text_config": {"hidden_size": 8}}, "text_config.num_hidden_layers", "is missing"),
        ({"num_hidden_layers": True, "hidden_size": 8}, "num_hidden_layers", "is True, not a whole number in 1..10000"),
        ({"num_hidden_layers": 0, "hidden_size": 8}, "num_hidden_layers", "is 0, not a whole number in 1..10000"),
        ({"num_hidden_layers": 2.0, "hidden_size": 8}, "num_hidden_layers", "is 2.0, not a whole number in 1..10000"),
        ({"num_hidden_layers": "2", "hidden_size": 8}, "num_hidden_layers", "is '2', not a whole number in 1..10000"),
        ({"num_hidden_layers": 2, "hidden_size": -8}, "hidden_size", "is -8, not a whole number in 1..1048576"),
        (
            {"num_hidden_layers": 2, "hidden_size": 2**60},
            "hidden_size",
            f"is {2**60}, not a whole number in 1..1048576",
        ),
        ({"num_hidden_layers": 2, "hidden_size": [8]}, "hidden_size", "is [8], not a whole number in 1..1048576"),
        ({"num_hidden_layers": 2, "hidden_size": 8, "vocab_size": -1}, "vocab_size", "is -1, not a whole number in"),
        ({"text_config": TEXT | {"hidden_size": 0}}, "text_config.hidden_size", "is 0, not a whole number in"),
    ],
)
def test_an_unusable_config_names_the_key(tmp_path, config, place, message):
    with pytest.raises(InputError) as caught:
        from_config(tmp_path, config)
    (problem,) = caught.value.problems
    assert caught.value.source == str(tmp_path / "config.json")
    assert problem.place == place
    assert problem.message.startswith(message)
    assert problem.next_step


def test_every_problem_is_named(tmp_path):
    with pytest.raises(InputError) as caught:
        from_config(tmp_path, {"num_hidden_layers": "x" * 10_000, "vocab_size": 0})
    assert [problem.place for problem in caught.value.problems] == ["num_hidden_layers", "hidden_size", "vocab_size"]
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize("path", [".", "notes.txt", "model.safetensors"])
def test_a_path_that_is_no_model(tmp_path, path):
    (tmp_path / "notes.txt").touch()
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(InputError, match=r"has no config\.json|is no target; name a model directory"):
        read_target(str(tmp_path / path))


def test_a_hostile_config_is_one_line(tmp_path):
    (tmp_path / "config.json").write_text('{"text_config": ' * 1000)
    with pytest.raises(InputError, match="is nested deeper than 64"):
        read_target(str(tmp_path))
    (tmp_path / "config.json").write_text(json.dumps({"num_hidden_layers": "\x1b[2J\n", "hidden_size": 8}))
    with pytest.raises(InputError) as caught:
        read_target(str(tmp_path))
    assert str(caught.value).isprintable()
