"""Sums of projected slices are the projection of the sum, and a bench scores what the drafter itself says."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tiny_drafters import Tiny
from written_by import written_by

from featurecontract.checkpoint import open_checkpoint
from featurecontract.replay import PlaneName, read_drafter, unroll
from featurecontract.replay._labels import labelled
from featurecontract.replay._likelihood import Bench
from featurecontract.replay._slices import Slices

WIRING = (PlaneName(4), PlaneName(0), PlaneName(8, "final_norm"))


def drafter_of(tmp_path, **fields):
    Tiny(**fields).write(tmp_path)
    return read_drafter(open_checkpoint(tmp_path), dtype=torch.float64)


def bench_of(drafter, texts, **options):
    return Bench(drafter, labelled(drafter, texts)[0], **options)


def slices_of(bench, texts):
    return Slices(bench.drafter, {name: bench.plane(name) for name in texts[0].planes})


@pytest.mark.parametrize("pre_norm", ["none", "joint", "per_feature"])
@pytest.mark.parametrize("fc_bias", [False, True])
def test_slices_add_up_to_the_projection(tmp_path, pre_norm, fc_bias):
    drafter = drafter_of(tmp_path, pre_norm=pre_norm, fc_bias=fc_bias)
    texts = written_by(drafter, WIRING, sequences=3, length=10)
    bench = bench_of(drafter, texts)
    whole = drafter.project(torch.cat([bench.plane(name) for name in WIRING], dim=-1))
    assert torch.allclose(slices_of(bench, texts).state(WIRING), whole, atol=1e-6)


def test_a_bench_is_the_first_step_of_a_replay(tmp_path):
    drafter = drafter_of(tmp_path)
    texts = written_by(drafter, WIRING, sequences=3, length=14)
    bench = bench_of(drafter, texts)
    slices = slices_of(bench, texts)
    other = (PlaneName(1), PlaneName(2), PlaneName(3))
    both = bench.of_slices(slices, [WIRING, other])
    for index, wiring in enumerate((WIRING, other)):
        assert torch.allclose(both[index], bench.replay(wiring), atol=1e-4)
        for number, text in enumerate(texts):
            states = drafter.project(text.features(wiring).double()[None])
            (first,) = unroll(drafter, states, text.token_ids[None], steps=1)
            logp = drafter.logits(first.output)[0].log_softmax(-1)
            wanted = 0.0
            for row in range(len(text.token_ids) - 2):
                label = (drafter.to_target == text.token_ids[row + 2]).nonzero()
                wanted += float(logp[row, label[0, 0]]) if len(label) else 0.0
            assert float(both[index][number]) == pytest.approx(wanted, abs=1e-4)


def test_rows_from_the_middle_and_uncounted_tokens(tmp_path):
    drafter = drafter_of(tmp_path)
    texts = written_by(drafter, WIRING, sequences=4, length=20)
    middle = bench_of(drafter, texts, rows=5)
    assert middle.inputs.tolist() == [text.token_ids[7:12].tolist() for text in texts]
    assert torch.equal(middle.plane(PlaneName(2))[1], texts[1].planes[PlaneName(2)][6:11].double())
    half = [replace(text, counted=torch.arange(20) >= 10) for text in texts]
    drafted = drafter.to_target.tolist()
    wanted = sum(int(token) in drafted for text in texts for token in text.token_ids[10:])
    assert bench_of(drafter, half).tokens == wanted


def taught(text, seed=0):
    """A text whose target's logits are known: noise, and the text's own tokens likely."""
    logits = torch.randn(len(text.token_ids), 64, generator=torch.Generator().manual_seed(seed))
    logits[torch.arange(len(text.token_ids) - 1), text.token_ids[1:]] += 4
    return logits, replace(text, teacher=lambda ids: logits if ids is None else logits[:, ids])


@pytest.mark.parametrize("mapped", [True, False])
def test_the_mean_over_the_targets_distribution_is_one_more_row_of_the_head(tmp_path, mapped):
    drafter = drafter_of(tmp_path, draft_vocab=24 if mapped else 64)
    assert (drafter.to_target is not None) is mapped
    texts = written_by(drafter, WIRING, sequences=3, length=14)
    logits, texts = zip(*(taught(text, seed) for seed, text in enumerate(texts)), strict=True)
    samples, expected = labelled(drafter, texts)
    assert expected
    assert all(sample.text.teacher is None for sample in samples)
    bench = Bench(drafter, samples)
    # Every row has a label, also where the text's token is none of the drafter's.
    assert bench.tokens == 3 * 12
    kept = slice(None) if drafter.to_target is None else drafter.to_target
    for number, (text, known) in enumerate(zip(texts, logits, strict=True)):
        states = drafter.project(text.features(WIRING).double()[None])
        (first,) = unroll(drafter, states, text.token_ids[None], steps=1)
        log = drafter.logits(first.output)[0].log_softmax(-1)
        # Row t drafts token t + 2, whose distribution the target gives after token t + 1.
        wanted = (known[1:-1, kept].double().softmax(-1) * log[:12]).sum()
        assert float(bench.replay(WIRING)[number]) == pytest.approx(float(wanted), abs=1e-3)


def test_without_the_targets_logits_everywhere_the_texts_tokens_are_scored(tmp_path):
    drafter = drafter_of(tmp_path)
    plain = written_by(drafter, WIRING, sequences=3, length=14)
    wanted = bench_of(drafter, plain)
    known = [taught(text)[1] for text in plain]
    nobody = replace(plain[1], teacher=lambda _ids: None)
    # Logits that make the text less likely than chance are another target's.
    foreign = [replace(text, teacher=lambda ids, text=text: -taught(text)[0][:, ids]) for text in plain]
    for texts in ([known[0], plain[1], known[2]], [known[0], nobody, known[2]], foreign):
        samples, expected = labelled(drafter, texts)
        assert not expected
        assert torch.equal(Bench(drafter, samples).replay(WIRING), wanted.replay(WIRING))


def test_rows_whose_logits_are_not_finite_are_not_scored(tmp_path):
    drafter = drafter_of(tmp_path)
    (text,) = written_by(drafter, WIRING, sequences=1, length=14)
    logits, _ = taught(text)
    logits[5] = torch.nan
    logits[6] = torch.inf
    # A token that the target never says has no logit, and takes no part.
    logits[7, ::3] = -torch.inf
    samples, expected = labelled(drafter, [replace(text, teacher=lambda ids: logits[:, ids])])
    assert expected
    assert Bench(drafter, samples).tokens == 10
    assert torch.isfinite(Bench(drafter, samples).replay(WIRING)).all()
