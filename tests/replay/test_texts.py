"""A live target and stored states give the same texts; names of planes; the target's own answers."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from featurecontract.checkpoint import open_checkpoint
from featurecontract.contract import Feature, Wiring, parse_wiring
from featurecontract.errors import InputError, UsageError
from featurecontract.probe import find_layout
from featurecontract.replay import (
    LiveTexts,
    PlaneName,
    RecordedTexts,
    TargetParts,
    cut,
    names_of,
    parts_of_checkpoint,
    parts_of_model,
    wiring_planes,
)
from featurecontract.states import open_states

_spec = importlib.util.spec_from_file_location(
    "probe_tiny_target", Path(__file__).parents[1] / "probe" / "tiny_target.py"
)
tiny_target = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(tiny_target)
HIDDEN, LAYERS, PATHS, VOCAB = tiny_target.HIDDEN, tiny_target.LAYERS, tiny_target.PATHS, tiny_target.VOCAB
target = tiny_target.target

EVERY = [PlaneName(b) for b in range(LAYERS + 1)]
SEQUENCES = [torch.arange(40).tolist(), torch.arange(60, 85).tolist()]


@pytest.fixture(scope="module")
def live():
    model = target().eval()
    return LiveTexts(model, find_layout(model, **PATHS), SEQUENCES)


def test_a_live_target_records_every_boundary(live):
    assert len(live) == 2
    assert live.planes == (*EVERY, PlaneName(LAYERS, "final_norm"))
    model = live.model
    for text, ids in zip(live, SEQUENCES, strict=True):
        with torch.no_grad():
            rows = model.words(torch.tensor([ids]))
            for boundary, stage in enumerate(model.trunk.stages):
                assert torch.equal(text.planes[PlaneName(boundary)], rows[0])
                rows = stage(rows)
            assert torch.equal(text.planes[PlaneName(LAYERS)], rows[0])
            assert torch.equal(text.planes[PlaneName(LAYERS, "final_norm")], model.trunk.closing(rows)[0])
            assert torch.equal(text.answers, model(torch.tensor([ids])).argmax(-1)[0])
        assert text.token_ids.tolist() == list(ids)


def test_a_live_target_keeps_only_what_is_asked_for(live):
    few = LiveTexts(live.model, live.layout, SEQUENCES, planes=[PlaneName(3), PlaneName(0), PlaneName(3)])
    assert [set(text.planes) for text in few] == [{PlaneName(3), PlaneName(0)}] * 2
    with pytest.raises(UsageError, match=r"h\[6\]"):
        LiveTexts(live.model, live.layout, SEQUENCES, planes=[PlaneName(6)])


@pytest.fixture
def stored(live, tmp_path):
    for number, text in enumerate(live):
        planes = torch.stack([text.planes[name] for name in EVERY], dim=1)
        save_file({"hidden_states": planes, "token_ids": text.token_ids}, tmp_path / f"hs_{number}.safetensors")
    return open_states(tmp_path)


def parts_on_disk(model, directory, **config):
    tensors = {
        "model.embed_tokens.weight": model.words.weight,
        "lm_head.weight": model.answer.weight,
        "model.norm.weight": model.trunk.closing.weight,
        "model.layers.0.input_layernorm.weight": torch.zeros(HIDDEN),
        "vision_tower.norm.weight": torch.zeros(HIDDEN),
    }
    save_file({name: value.detach().clone() for name, value in tensors.items()}, directory / "model.safetensors")
    (directory / "config.json").write_text(json.dumps({"rms_norm_eps": 1e-6, "model_type": "llama"} | config))
    return parts_of_checkpoint(open_checkpoint(directory))


def test_stored_states_are_what_the_live_target_shows(live, stored, tmp_path):
    (tmp_path / "target").mkdir()
    parts = parts_on_disk(live.model, tmp_path / "target")
    texts = RecordedTexts(
        states=stored,
        planes=tuple(EVERY),
        hidden_size=HIDDEN,
        answers=parts.answers,
        logits=parts.logits,
        vocab_size=VOCAB,
    )
    some = torch.tensor([3, 0, 9])
    for mine, theirs in zip(texts, live, strict=True):
        with torch.no_grad():
            logits = live.model(mine.token_ids[None])[0]
        for text in (mine, theirs):
            assert torch.allclose(text.teacher(None), logits, atol=1e-5)
            assert torch.allclose(text.teacher(some), logits[:, some], atol=1e-5)
            assert torch.allclose(text.cut(slice(2, 7)).teacher(some), logits[2:7, some], atol=1e-5)
        assert torch.equal(mine.token_ids, theirs.token_ids)
        assert all(torch.equal(mine.planes[name], theirs.planes[name]) for name in EVERY)
        assert torch.equal(mine.answers, theirs.answers)


def test_answers_from_either_state_and_none_from_an_unknown_one(live, tmp_path):
    parts = parts_on_disk(live.model, tmp_path)
    for text in live:
        last, normed = text.planes[PlaneName(LAYERS)], text.planes[PlaneName(LAYERS, "final_norm")]
        assert torch.equal(parts.answers(last, "residual"), text.answers)
        assert torch.equal(parts.answers(normed, "final_norm"), text.answers)
        assert not torch.equal(parts.answers(last, "final_norm"), text.answers)
        assert parts.answers(last, "unknown") is None
        assert parts.answers(last[:, :5], "residual") is None
    assert TargetParts().answers(last, "residual") is None


def test_logits_only_where_the_head_alone_makes_them(live, tmp_path):
    text = next(iter(live))
    last = text.planes[PlaneName(LAYERS)]
    parts = parts_on_disk(live.model, tmp_path)
    assert parts.logits(last, "residual", None).shape == (len(text.token_ids), VOCAB)
    for state, rows, ids in (
        ("unknown", last, None),
        ("residual", last[:, :5], None),
        ("residual", last, torch.tensor([VOCAB])),
    ):
        assert parts.logits(rows, state, ids) is None
    for key, value in (("final_logit_softcapping", 30.0), ("logits_scaling", 8.0), ("logit_scale", 0.0625)):
        capped = parts_on_disk(live.model, tmp_path, **{key: value})
        assert not capped.plain
        assert capped.logits(last, "residual", None) is None
        assert capped.answers(last, "residual") is not None


def test_a_live_head_with_something_behind_it_teaches_nothing(monkeypatch):
    model = target().eval()
    texts = LiveTexts(model, find_layout(model, **PATHS), SEQUENCES)
    assert texts[0].teacher is not None
    whole = type(model).forward
    monkeypatch.setattr(type(model), "forward", lambda self, *args, **options: whole(self, *args, **options) / 8)
    assert texts[0].teacher is None
    assert texts[0].answers is not None
    with pytest.raises(IndexError):
        texts[2]


def test_parts_of_a_directory(tmp_path):
    model = target(plus_one=True)
    parts = parts_on_disk(model, tmp_path, model_type="gemma2")
    assert torch.equal(parts.norm, 1 + model.trunk.closing.weight.detach())
    assert parts.vocab_size == VOCAB
    mine = parts_of_model(find_layout(model, **PATHS))
    assert torch.equal(mine.embedding, parts.embedding)
    assert torch.equal(mine.head, parts.head)


def test_a_tied_head_is_the_embedding(tmp_path):
    save_file({"model.embed_tokens.weight": torch.ones(4, 2)}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"tie_word_embeddings": True}))
    parts = parts_of_checkpoint(open_checkpoint(tmp_path))
    assert parts.head is parts.embedding
    assert parts.norm is None
    (tmp_path / "config.json").write_text(json.dumps({"tie_word_embeddings": False}))
    assert parts_of_checkpoint(open_checkpoint(tmp_path)).head is None


def test_two_embeddings_are_refused(tmp_path):
    save_file(
        {"a.embed_tokens.weight": torch.ones(4, 2), "b.embed_tokens.weight": torch.ones(4, 2)},
        tmp_path / "model.safetensors",
    )
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(InputError, match="could both be"):
        parts_of_checkpoint(open_checkpoint(tmp_path))


def test_names(stored):
    def names(**options):
        return names_of(stored, hidden_size=HIDDEN, num_hidden_layers=LAYERS, **options)

    assert names(declared=parse_wiring("0,1,2,3,4")) == (*EVERY[:-1], PlaneName(LAYERS))
    assert names(given=parse_wiring("0,1,2,3,4,5")) == tuple(EVERY)
    with pytest.raises(UsageError, match="not known"):
        names()
    with pytest.raises(UsageError, match="has 3"):
        names(declared=parse_wiring("0,1,2"))
    with pytest.raises(UsageError, match="one name"):
        names(given=parse_wiring("0,1,2,3,3"))


@pytest.mark.parametrize(
    "feature",
    [
        Feature(slot=0, source="mask_row"),
        Feature(slot=0, source="drafter_embedding"),
        Feature(slot=0, boundary=3, state="mid_block"),
        Feature(slot=0, boundary=3, scale=2.0),
        Feature(slot=0, boundary=3, row_offset=1),
    ],
)
def test_slots_that_replay_does_not_feed(feature):
    with pytest.raises(UsageError, match="slot 0"):
        wiring_planes(Wiring(features=(feature,)))


def test_cutting():
    assert cut(range(10), 4) == [(0, 1, 2, 3), (4, 5, 6, 7), (8, 9)]
    assert cut(range(9), 4) == [(0, 1, 2, 3), (4, 5, 6, 7)]
    assert cut([], 4) == []
    assert cut(range(3), 10) == [(0, 1, 2)]
