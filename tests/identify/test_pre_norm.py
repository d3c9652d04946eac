"""A declared norm before the projection: healthy behind it, missing, and scaled in front of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from tiny_runs import WIDTH, probe_of, rms, run, tokens, weights  # noqa: E402

from featurecontract.capture import Call, Capture  # noqa: E402
from featurecontract.contract import Projection  # noqa: E402
from featurecontract.gate import verify_captures  # noqa: E402

WIRING = (2, 5, 7)


@pytest.fixture(scope="module")
def fed():
    ids = tokens()
    target = weights()
    planes = run(target, ids)
    probe, contract = probe_of(planes, WIRING, ids, target.norm)
    return probe, contract, tuple(ids.tolist()), [planes.boundary[boundary] for boundary in WIRING]


def normed(slots, kind, seed=5):
    """Return what enters the projection behind an RMSNorm with uneven weights."""
    weight = 1 + 0.4 * torch.randn(3 * WIDTH, generator=torch.Generator().manual_seed(seed))
    if kind == "joint":
        return rms(torch.cat(slots, 1)) * weight
    return torch.cat([rms(slot) for slot in slots], 1) * weight


def declared(contract, kind):
    projection = Projection(
        tensor="fc.weight",
        role="fc",
        slots=(0, 1, 2),
        in_features=3 * WIDTH,
        out_features=WIDTH,
        pre_norm=kind,
    )
    return replace(contract, projections=(projection,))


def report(fed, kind, *, features=None, projected):
    probe, contract, ids, slots = fed
    points = {"features": torch.cat(features or slots, 1), "projection_input": projected}
    calls = tuple(Call(values=values, point=point, token_ids=ids) for point, values in points.items())
    return verify_captures(declared(contract, kind), probe, [Capture(calls=calls)], path="drafter")


def errors(found):
    return {item.slug for item in found.findings if item.severity == "error"}


@pytest.mark.parametrize("kind", ["joint", "per_feature"])
def test_what_the_norm_makes_of_the_features_is_no_fault(fed, kind):
    found = report(fed, kind, projected=normed(fed[3], kind))
    assert (found.verdict, errors(found)) == ("pass", set())
    assert [item.wiring.pre_norm for item in found.observed] == ["unknown", kind]


@pytest.mark.parametrize("kind", ["joint", "per_feature"])
def test_a_norm_that_is_missing_is_named(fed, kind):
    found = report(fed, kind, projected=torch.cat(fed[3], 1))
    assert errors(found) == {"norm-before-fc"}


def test_a_scaled_feature_shows_in_front_of_the_norm(fed):
    scaled = [fed[3][0] * 3, *fed[3][1:]]
    found = report(fed, "per_feature", features=scaled, projected=normed(scaled, "per_feature"))
    assert errors(found) == {"scale"}


def test_another_layer_shows_behind_the_norm(fed):
    other = [*fed[3][:2], fed[3][1]]
    found = report(fed, "joint", projected=normed(other, "joint"))
    assert errors(found) == {"slot-duplicate"}


@pytest.mark.parametrize("kind", ["joint", "per_feature"])
@pytest.mark.parametrize("rows", [8, 12])
def test_too_few_rows_tell_no_missing_norm(fed, kind, rows):
    probe, contract, ids, slots = fed
    for values in (normed(slots, kind), torch.cat(slots, 1)):
        call = Call(values=values[:rows], point="projection_input", token_ids=ids[:rows])
        found = verify_captures(declared(contract, kind), probe, [Capture(calls=(call,))], path="drafter")
        assert "norm-before-fc" not in {item.slug for item in found.findings}
        assert found.observed[0].wiring.pre_norm == "unknown"
