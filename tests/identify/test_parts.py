"""What pooled statistics would hide: one rank, one request, some rows of a slot, some of its columns."""

from __future__ import annotations

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from tiny_runs import WIDTH, probe_of, run, tokens, weights  # noqa: E402

from featurecontract.capture import Call, Capture  # noqa: E402
from featurecontract.gate import verify_captures  # noqa: E402
from featurecontract.identify._calibration import scale_tolerance  # noqa: E402

WIRING = (2, 5, 7)


@pytest.fixture(scope="module")
def made():
    ids = tokens()
    target = weights()
    planes = run(target, ids)
    probe, contract = probe_of(planes, WIRING, ids, target.norm)
    return probe, contract, tuple(ids.tolist()), planes.boundary


def call(made, boundaries=WIRING, **how):
    values = torch.cat([made[3][b] for b in boundaries], 1)
    return Call(values=values, phase="prefill", token_ids=made[2], **how)


def found(made, *calls):
    report = verify_captures(made[1], made[0], [Capture(calls=calls)], path="drafter")
    return [(item.slug, item.slots) for item in report.findings if item.severity != "note"], report


def changed(made, change):
    healthy = call(made)
    values = healthy.values.clone()
    change(values)
    return replace(healthy, values=values)


def test_healthy_ranks_requests_and_passes_have_no_finding(made):
    listed, report = found(made, call(made), call(made, rank=1), call(made, requests=("a",) * len(made[2])), call(made))
    assert (listed, report.exit_status) == ([], 0)


@pytest.mark.parametrize("others", [1, 7])
def test_one_rank_that_is_wrong_alone_is_found(made, others):
    ranks = [call(made, rank=rank) for rank in range(others)]
    listed, report = found(made, *ranks, call(made, (2, 4, 7), rank=others))
    assert listed == [("layer-shift", (1,))]
    assert len(report.observed) == others + 1


def test_one_rank_that_is_scaled_is_found(made):
    listed, _ = found(made, call(made), changed_rank(made))
    assert {slug for slug, _ in listed} == {"scale"}


def changed_rank(made):
    return replace(changed(made, lambda values: values.mul_(1.5)), rank=1)


@pytest.mark.parametrize("others", [1, 5])
def test_one_request_that_is_wrong_alone_is_found_and_named(made, others):
    count = len(made[2])
    calls = [call(made, requests=(f"r{number}",) * count) for number in range(others)]
    listed, report = found(made, *calls, call(made, (2, 4, 7), requests=("bad",) * count))
    assert ("layer-shift", (1,)) in listed
    assert any(item.phase == "prefill request bad" for item in report.observed)


def test_a_later_pass_in_another_order_is_found(made):
    listed, _ = found(made, call(made), call(made), call(made), call(made, (5, 2, 7)))
    assert "order" in {slug for slug, _ in listed}


@pytest.mark.parametrize(
    "change",
    [
        lambda part: part[32:].copy_(part[32:].roll(1, 0)),
        lambda part: part[48:].copy_(torch.randn(part[48:].shape, generator=torch.Generator().manual_seed(2))),
        lambda part: part[40:].mul_(3),
        lambda part: part[44:].copy_(part[24:44].clone()),
    ],
    ids=["rolled", "noise", "three times as large", "an older chunk"],
)
def test_rows_of_one_slot_alone_are_found(made, change):
    listed, report = found(made, changed(made, lambda values: change(values[:, WIDTH : 2 * WIDTH])))
    assert listed == [("rows-corrupt", (1,))]
    (item,) = (item for item in report.findings if item.slug == "rows-corrupt")
    assert all(start >= 32 for start, _ in item.rows)
    assert "of slot 1" in item.message


@pytest.mark.parametrize(
    "change",
    [
        lambda part: part.copy_(part.flip(1)),
        lambda part: part.zero_(),
        lambda part: part.copy_(torch.randn(part.shape, generator=torch.Generator().manual_seed(2))),
    ],
    ids=["shards in another order", "zero", "noise"],
)
def test_columns_of_one_slot_alone_are_found(made, change):
    quarter = slice(WIDTH + WIDTH // 4, WIDTH + WIDTH // 2)
    listed, report = found(made, changed(made, lambda values: change(values[:, quarter])))
    assert [item for item in listed if item[0] != "scale"] == [("unidentified", (1,))]
    (item,) = (item for item in report.findings if item.slug == "unidentified")
    ((start, stop),) = item.details["columns"]
    # Blocks do not end where the fault does: half a block may pass for noise.
    assert start < quarter.stop <= stop
    assert quarter.start - WIDTH // 6 <= start <= quarter.start + WIDTH // 6


def test_a_capture_that_ends_early_says_so(made):
    whole = call(made)
    half = replace(whole, values=whole.values[:24], token_ids=whole.token_ids[:24])
    listed, report = found(made, half)
    assert listed == []
    assert [(item.slug, item.severity, item.rows) for item in report.findings] == [
        ("rows-missing", "note", ((24, len(made[2])),))
    ]


def test_the_quieter_a_slice_the_smaller_a_scale_is_seen():
    assert scale_tolerance(1.0)[1] < 1.04
    assert scale_tolerance(0.999)[1] < 1.05
    assert scale_tolerance(0.98)[1] > 1.054
    low, high = scale_tolerance(0.65)
    assert low < 0.8
    assert 1.25 < high < 1.35
