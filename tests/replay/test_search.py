"""The search finds what a drafter was trained with, says how sure it is, and names nobody where it cannot know."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tiny_drafters import Tiny
from written_by import written_by

from featurecontract.checkpoint import open_checkpoint
from featurecontract.errors import InputError, UsageError
from featurecontract.replay import PlaneName, Text, read_drafter, search, unroll
from featurecontract.replay._search import _top
from featurecontract.replay._texts import Teacher

TRUE = (PlaneName(0), PlaneName(2), PlaneName(5))


def tiny(tmp_path, **fields):
    Tiny(**fields).write(tmp_path)
    return read_drafter(open_checkpoint(tmp_path))


@pytest.mark.parametrize("pre_norm", ["none", "joint", "per_feature"])
@pytest.mark.parametrize("wiring", [TRUE, (PlaneName(5), PlaneName(0), PlaneName(8, "final_norm"))], ids=str)
def test_the_trained_wiring_is_found(tmp_path, pre_norm, wiring):
    drafter = tiny(tmp_path, pre_norm=pre_norm)
    texts = written_by(drafter, wiring)
    found = search(drafter, texts, tuple(texts[0].planes), confidence=0.99)
    assert found.winner == wiring == found.ranking[0].wiring
    assert found.possible == 10 * 9 * 8
    assert 2 <= found.full_replays <= 12 + 8 < found.screened < found.possible
    assert found.confidence >= 0.99
    assert found.margin == min(item.behind.margin for item in found.ranking[1:]) > 3
    assert found.tied == (wiring,)
    values = [item.log_likelihood for item in found.ranking]
    assert values == sorted(values, reverse=True)


def test_four_slots_and_two(tmp_path):
    for planes, wiring in ((2, TRUE[:2]), (4, (PlaneName(1), PlaneName(7), PlaneName(3), PlaneName(4)))):
        drafter = tiny(tmp_path / str(planes), planes=planes)
        texts = written_by(drafter, wiring)
        assert search(drafter, texts, tuple(texts[0].planes)).winner == wiring


def test_equal_planes_leave_it_open(tmp_path):
    drafter = tiny(tmp_path)
    texts = [
        Text(t.token_ids, {**t.planes, PlaneName(3): t.planes[PlaneName(2)]}, source=t.source)
        for t in written_by(drafter, TRUE)
    ]
    found = search(drafter, texts, tuple(texts[0].planes))
    assert found.winner is None
    assert set(found.tied) == {TRUE, (PlaneName(0), PlaneName(3), PlaneName(5))}
    assert found.confidence < 0.95


def test_a_drafter_that_never_saw_these_features_has_no_winner(tmp_path):
    drafter = tiny(tmp_path)
    texts = written_by(drafter, TRUE, follow=0.0, sequences=30)
    found = search(drafter, texts, tuple(texts[0].planes), confidence=0.99)
    assert found.winner is None


def test_too_little_is_refused(tmp_path):
    drafter = tiny(tmp_path)
    texts = written_by(drafter, TRUE)
    for few in (texts[:7], [Text(t.token_ids[:12], {k: v[:12] for k, v in t.planes.items()}) for t in texts], []):
        with pytest.raises(InputError, match="too few to rank on"):
            search(drafter, few, tuple(texts[0].planes))
    with pytest.raises(UsageError, match="nothing to choose from"):
        search(drafter, texts, TRUE[:2])


class Reading(list):
    """Texts that remember which of them were read."""

    def __init__(self, texts):
        super().__init__(texts)
        self.read = []

    def __getitem__(self, index):
        self.read.append(index)
        return super().__getitem__(index)


def test_only_as_many_tokens_as_asked(tmp_path):
    drafter = tiny(tmp_path)
    texts = Reading(written_by(drafter, TRUE, sequences=30))
    found = search(drafter, texts, tuple(texts[0].planes), max_tokens=615)
    # 40 tokens each are cut to 615 / 16, and the last is what is left: each replayed but for its last two tokens.
    assert found.sequences == 17 == len(set(texts.read[1:])) == len(texts.read) - 1
    assert found.tokens <= 615 - 2 * 17
    assert found.winner == TRUE


def test_the_seed_draws_the_sequences_and_does_not_change_the_answer(tmp_path):
    drafter = tiny(tmp_path, seed=5)
    texts = written_by(drafter, TRUE, seed=5, sequences=40)
    drawn = set()
    for seed in (0, 1, 2, 3, 4, 0):
        reading = Reading(texts)
        assert search(drafter, reading, tuple(texts[0].planes), seed=seed, max_tokens=700).winner == TRUE
        drawn.add(tuple(reading.read))
    assert len(drawn) == 5


def test_the_targets_distribution_tells_more_than_its_draws(tmp_path):
    drafter = tiny(tmp_path)
    texts = written_by(drafter, TRUE)
    names = tuple(texts[0].planes)

    def knowing(text):
        # The target of this drafter says what it says, softened.
        (first,) = unroll(drafter, drafter.project(text.features(TRUE)[None]), text.token_ids[None], steps=1)
        logits = torch.full((len(text.token_ids), 64), -20.0)
        logits[1:, drafter.to_target] = 0.3 * drafter.logits(first.output)[0, :-1]
        return replace(text, teacher=Teacher(making, logits, "final_norm"))

    asked = []

    def making(rows, _state, ids):
        asked.append(len(rows))
        return rows[:, ids]

    told = [knowing(text) for text in texts]
    plain, taught = (search(drafter, some, names) for some in (texts, told))
    assert (plain.expected, taught.expected) == (False, True)
    assert plain.winner == taught.winner == TRUE
    assert taught.margin > plain.margin
    # Sequences that are cut are cut before their logits are made.
    asked.clear()
    search(drafter, told, names, max_tokens=16 * 25)
    assert asked == [25] * 16


def test_a_feature_that_overflows_is_impossible_not_missing(tmp_path):
    drafter = tiny(tmp_path)
    texts = written_by(drafter, TRUE)
    broken = [
        Text(t.token_ids, {**t.planes, PlaneName(6): torch.full_like(t.planes[PlaneName(6)], torch.inf)}) for t in texts
    ]
    found = search(drafter, broken, tuple(texts[0].planes))
    assert found.ranking[0].wiring == TRUE


def test_no_winner_where_features_between_two_planes_do_better(tmp_path):
    drafter = tiny(tmp_path)
    wiring = (PlaneName(0), PlaneName(3), PlaneName(6))
    whole = written_by(drafter, wiring, sequences=40, step=0.3)
    assert search(drafter, whole, tuple(whole[0].planes)).winner == wiring
    # Nobody recorded h[3]: h[2] and h[4] lie beside it, and h[2] is made to lead beyond chance.
    texts = []
    for text in whole:
        planes = {name: plane for name, plane in text.planes.items() if name != PlaneName(3)}
        planes[PlaneName(2)] = torch.lerp(text.planes[PlaneName(3)], text.planes[PlaneName(2)], 0.8)
        texts.append(replace(text, planes=planes))
    found = search(drafter, texts, tuple(texts[0].planes))
    assert found.ranking[0].wiring == (PlaneName(0), PlaneName(2), PlaneName(6))
    assert found.confidence > 0.95
    assert found.winner is None
    assert (PlaneName(0), PlaneName(4), PlaneName(6)) in found.pulls
    assert found.tied == (found.ranking[0].wiring, *found.pulls)


@pytest.mark.parametrize(
    ("height", "place"),
    [(lambda x: -((x - 0.4) ** 2), 0.4), (lambda x: -(x**2), 0.0), (lambda x: -((x + 1) ** 2), -1.0)],
)
def test_the_place_where_a_parabola_is_highest(height, place):
    gains = (height(at) - height(0) for at in (0.3, 1.0))
    assert _top(*gains) == pytest.approx(place, abs=1e-9)
    assert _top(-0.5, -1.0) == 0.0
