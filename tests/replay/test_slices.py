"""Sums of projected slices are the projection of the sum, and a bench scores what the drafter itself says."""

from __future__ import annotations

import pytest
import torch
from tiny_drafters import Tiny
from written_by import written_by

from featurecontract.checkpoint import open_checkpoint
from featurecontract.replay import PlaneName, read_drafter, unroll
from featurecontract.replay._likelihood import Bench
from featurecontract.replay._slices import Slices

WIRING = (PlaneName(4), PlaneName(0), PlaneName(8, "final_norm"))


def drafter_of(tmp_path, **fields):
    Tiny(**fields).write(tmp_path)
    return read_drafter(open_checkpoint(tmp_path), dtype=torch.float64)


@pytest.mark.parametrize("pre_norm", ["none", "joint", "per_feature"])
@pytest.mark.parametrize("fc_bias", [False, True])
def test_slices_add_up_to_the_projection(tmp_path, pre_norm, fc_bias):
    drafter = drafter_of(tmp_path, pre_norm=pre_norm, fc_bias=fc_bias)
    texts = written_by(drafter, WIRING, sequences=3, length=10)
    bench = Bench(drafter, texts)
    planes = bench.planes(tuple(texts[0].planes))
    whole = drafter.project(torch.cat([planes[name] for name in WIRING], dim=-1))
    assert torch.allclose(Slices(drafter, planes).state(WIRING), whole, atol=1e-6)


def test_a_bench_is_the_first_step_of_a_replay(tmp_path):
    drafter = drafter_of(tmp_path)
    texts = written_by(drafter, WIRING, sequences=3, length=14)
    bench = Bench(drafter, texts)
    slices = Slices(drafter, bench.planes(tuple(texts[0].planes)))
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
    from dataclasses import replace

    drafter = drafter_of(tmp_path)
    texts = written_by(drafter, WIRING, sequences=4, length=20)
    middle = Bench(drafter, texts, rows=5)
    assert middle.inputs.tolist() == [text.token_ids[7:12].tolist() for text in texts]
    assert torch.equal(middle.planes([PlaneName(2)])[PlaneName(2)][1], texts[1].planes[PlaneName(2)][6:11].double())
    half = [replace(text, counted=torch.arange(20) >= 10) for text in texts]
    drafted = drafter.to_target.tolist()
    wanted = sum(int(token) in drafted for text in texts for token in text.token_ids[10:])
    assert Bench(drafter, half).tokens == wanted
