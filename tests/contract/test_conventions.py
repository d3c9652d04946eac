from __future__ import annotations

import pytest

from featurecontract.contract import CONVENTIONS, from_boundary, parse_wiring, spell, spellings, to_boundary
from featurecontract.errors import UsageError


@pytest.mark.parametrize(
    ("layer_id", "convention", "boundary"),
    [
        (-1, "layer_output", 0),
        (0, "layer_output", 1),
        (29, "layer_output", 30),
        (60, "layer_output", 61),
        (0, "layer_input", 0),
        (30, "layer_input", 30),
        (61, "layer_input", 61),
    ],
)
def test_ids_become_boundaries_and_back(layer_id, convention, boundary):
    assert to_boundary(layer_id, convention) == boundary
    assert from_boundary(boundary, convention) == layer_id


def test_there_are_two_conventions():
    assert CONVENTIONS == ("layer_output", "layer_input")


def test_spell_gives_the_words_of_every_tool():
    assert spell(30) == (
        "h[30] = output of layer 29 = SGLang/SpecForge/TRT-LLM id 29 = vLLM/speculators/llama.cpp id 30 = "
        "HF hidden_states[30]"
    )
    assert spell(0) == (
        "h[0] (embedding) = SGLang/SpecForge/TRT-LLM id -1 = vLLM/speculators/llama.cpp id 0 = HF hidden_states[0]"
    )


def test_the_last_state_is_not_in_the_tuple_of_transformers():
    assert "hidden_states[60]" in spell(60, num_hidden_layers=61)
    assert "hidden_states" not in spell(61, num_hidden_layers=61)
    assert spellings(61, num_hidden_layers=61)[0].tools == "output of layer"


@pytest.mark.parametrize(
    ("text", "boundaries"),
    [
        ("0,3,31", (0, 3, 31)),
        ("embedding,3,31", (0, 3, 31)),
        (" embedding , 3,31 ", (0, 3, 31)),
        ("7", (7,)),
        ("31,3,0", (31, 3, 0)),
        ("5,5", (5, 5)),
    ],
)
def test_a_wiring_is_read_from_a_comma_list(text, boundaries):
    wiring = parse_wiring(text, num_hidden_layers=61, dim=16)
    assert wiring.boundaries == boundaries
    assert {item.dim for item in wiring.features} == {16}
    assert {item.state for item in wiring.features} == {"residual"}


def test_final_norm_is_the_norm_of_the_last_state():
    last = parse_wiring("3,final_norm", num_hidden_layers=61).features[1]
    assert (last.boundary, last.state) == (61, "final_norm")
    with pytest.raises(UsageError, match="final_norm needs the target's depth; give --target"):
        parse_wiring("3,final_norm")


@pytest.mark.parametrize(
    "item",
    ["", "-1", "+3", "3.0", "h[3]", "1e3", "\u0663", "\u00b2", "1234567", "Embedding", "final norm", "0x1", "3 4"],
)
def test_what_is_no_boundary_is_named(item):
    with pytest.raises(UsageError) as caught:
        parse_wiring(f"2,{item},5", num_hidden_layers=61)
    assert f"{item!r} is not a boundary" in str(caught.value)
    assert "0..L, embedding and final_norm" in str(caught.value)


def test_a_boundary_beyond_the_target_is_refused_when_the_depth_is_known():
    assert parse_wiring("61", num_hidden_layers=61).boundaries == (61,)
    with pytest.raises(UsageError, match=r"h\[62\] does not exist on a target of 61 layers"):
        parse_wiring("62", num_hidden_layers=61)
    assert parse_wiring("62").boundaries == (62,)
