"""Identification on a tiny random target: every fault gets its slug, healthy runs nothing above a note."""

from __future__ import annotations

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from tiny_runs import DEPTH, ROWS, WIDTH, probe_of, run, tokens, weights  # noqa: E402

from featurecontract.capture import Call, Capture  # noqa: E402
from featurecontract.contract import Projection  # noqa: E402
from featurecontract.findings import diff  # noqa: E402
from featurecontract.gate import verify_captures  # noqa: E402
from featurecontract.identify import identify  # noqa: E402
from featurecontract.identify.mutators import capture_of, mutators, with_dtype  # noqa: E402

WIRINGS = [(2, 5, 7), (0, 3, 6), (3, 6, DEPTH)]
NOISE = [None, 8, 6]

# The suite runs in several processes; threads of one would only wait for those of the others.
torch.set_num_threads(1)


@pytest.fixture(scope="module")
def target():
    return weights()


@pytest.fixture(scope="module")
def ids():
    return tokens()


@pytest.fixture(scope="module")
def made(target, ids):
    """Return (probe, contract) for a wiring, recorded without noise."""
    reference = run(target, ids)
    return lambda wiring: probe_of(reference, wiring, ids, target.norm)


def slugs(probe, contract, capture):
    """Return what is found above a note, each slug once."""
    out = []
    for item in identify(probe, contract, capture):
        out += [found for found in item.findings if found.severity != "note"]
        out += diff(contract.wiring, item.wiring, origin="observed") if item.rows else []
    return sorted({found.slug for found in out})


@pytest.mark.parametrize("bits", NOISE)
@pytest.mark.parametrize("wiring", WIRINGS, ids=str)
def test_a_healthy_run_is_what_it_declares(target, ids, made, wiring, bits):
    probe, contract = made(wiring)
    planes = run(target.quantised(bits), ids)
    capture = capture_of([planes.boundary[b] for b in wiring], token_ids=tuple(ids.tolist()))
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        (found,) = identify(probe, contract, with_dtype(capture, dtype))
        assert found.wiring.boundaries == wiring
        assert [item.severity for item in found.findings if item.severity != "note"] == []
        assert diff(contract.wiring, found.wiring, origin="observed") == ()
        assert all(item.confidence >= 0.9 for item in found.slots)


@pytest.mark.parametrize("bits", NOISE)
@pytest.mark.parametrize("wiring", WIRINGS, ids=str)
def test_every_fault_gets_its_slug(target, ids, made, wiring, bits):
    probe, contract = made(wiring)
    planes = run(target.quantised(bits), ids)
    base = [planes.boundary[b] for b in wiring]
    wrong = {}
    for item in mutators(planes, wiring):
        found = slugs(probe, contract, capture_of(item.apply(list(base))))
        if found != [item.slug]:
            wrong[item.name] = (item.slug, found)
    assert wrong == {}


def test_every_boundary_is_named_and_no_other_plane_is_taken_for_one(target, ids, made):
    for bits in NOISE:
        planes = run(target.quantised(bits), ids)
        for b in range(DEPTH + 1):
            probe, contract = made((b,))
            (found,) = identify(probe, contract, capture_of([planes.boundary[b]]))
            assert found.wiring.boundaries == (b,), (bits, b)
        for b in range(DEPTH):
            probe, contract = made((b,))
            (found,) = identify(probe, contract, capture_of([planes.mid_block[b]]))
            sure = found.slots[0].confidence >= 0.9
            assert found.wiring.features[0].state == "mid_block" or not sure, (bits, b)


def test_chunks_and_batches_and_rejected_rows_are_healthy(target, ids, made):
    wiring = WIRINGS[0]
    probe, contract = made(wiring)
    planes = run(target, ids)
    values = torch.cat([planes.boundary[b] for b in wiring], dim=1)
    names, count = tuple(ids.tolist()), len(values)
    chunks = Capture(
        calls=tuple(
            Call(values=values[a:b], phase="chunked-prefill", token_ids=names[a:b], positions=tuple(range(a, b)))
            for a, b in ((0, 24), (24, 48), (48, 64))
        )
    )
    batch = Capture(
        calls=(
            Call(
                values=torch.cat([values, torch.randn(8, values.shape[1]), values]),
                phase="batch",
                token_ids=(*names, *[299] * 8, *names),
                positions=(*range(count), *range(count, count + 8), *range(count)),
                requests=("a",) * count + ("pad",) * 8 + ("b",) * count,
            ),
        )
    )
    rejected = Capture(
        calls=(
            Call(
                values=torch.cat([values, torch.randn(3, values.shape[1])]),
                phase="decode",
                accepted=(True,) * count + (False,) * 3,
            ),
        )
    )
    cached = Capture(
        calls=(
            Call(
                values=values[16:],
                phase="prefix-hit",
                token_ids=names[16:],
                positions=tuple(range(16, count)),
                cached={"": 16},
            ),
        )
    )
    for capture in (chunks, batch, rejected, cached):
        assert slugs(probe, contract, capture) == []
    (found,) = identify(probe, contract, cached)
    assert [(item.slug, item.severity) for item in found.findings] == [("rows-missing", "note")]
    undeclared = replace(cached, calls=tuple(replace(call, cached={}) for call in cached.calls))
    assert slugs(probe, contract, undeclared) == ["rows-missing"]


def test_another_prompt_that_shares_tokens_with_the_probe_is_not_the_probe(target, ids, made):
    """A row depends on all tokens before it: one equal token at one position proves nothing."""
    wiring = WIRINGS[0]
    probe, contract = made(wiring)
    other = tokens(seed=9)
    other[::4] = ids[::4]
    values = [torch.cat([run(target, item).boundary[b] for b in wiring], dim=1) for item in (ids, other)]
    names = [tuple(item.tolist()) for item in (ids, other)]
    calls = tuple(
        Call(values=rows, phase="prefill", token_ids=said, positions=tuple(range(ROWS)), requests=(label,) * ROWS)
        for rows, said, label in zip(values, names, "ab", strict=True)
    )
    assert slugs(probe, contract, Capture(calls=calls)) == []
    (found,) = identify(probe, contract, Capture(calls=calls))
    # Row 0 of the other prompt has the probe's token and nothing before it: that one is the probe's.
    assert found.rows == ROWS + 1


def test_a_second_pass_over_the_probe_is_found_without_positions(target, ids, made):
    wiring = WIRINGS[0]
    probe, contract = made(wiring)
    planes = run(target, ids)
    (call,) = capture_of([planes.boundary[b] for b in wiring], token_ids=tuple(ids.tolist())).calls
    (found,) = identify(probe, contract, Capture(calls=(call, call, call)))
    assert (found.rows, found.findings) == (3 * ROWS, ())
    shifted = replace(call, values=call.values.roll(1, 0))
    assert slugs(probe, contract, Capture(calls=(call, shifted))) == ["rows-shifted"]


@pytest.mark.parametrize("bits", [4, 3, 2])
def test_strong_noise_is_never_called_a_bad_row_or_a_rotated_basis(target, ids, made, bits):
    for wiring in WIRINGS:
        probe, contract = made(wiring)
        planes = run(target.quantised(bits), ids)
        found = slugs(probe, contract, capture_of([planes.boundary[b] for b in wiring], token_ids=tuple(ids.tolist())))
        assert set(found) <= {"inconclusive", "unidentified", "noise-above-floor"}, wiring


def test_two_faults_are_both_named(target, ids, made):
    wiring = WIRINGS[0]
    probe, contract = made(wiring)
    planes = run(target, ids)
    base = [planes.boundary[b] for b in wiring]
    listed = mutators(planes, wiring)
    named = {item.name: item for item in listed}
    pairs = [
        ("roll rows +1", "scale 0 x1.5"),
        ("reverse", "roll rows -1"),
        ("shift all +1", "every 8th row zero"),
        ("mlp only 0", "mid block 1"),
        ("zero 0", "scale 2 x0.5"),
        ("normalise 0", "block only 2"),
    ]
    for first, second in pairs:
        slots = named[second].apply(named[first].apply(list(base)))
        wanted = sorted({named[first].slug, named[second].slug})
        assert slugs(probe, contract, capture_of(slots)) == wanted, (first, second)


def test_a_stale_buffer_shows_with_two_prompts(target, ids, made):
    wiring = WIRINGS[0]
    probe, contract = made(wiring)
    planes = run(target, ids)
    other = run(target, tokens(seed=9))
    values = torch.cat([planes.boundary[b] for b in wiring], dim=1)
    second = torch.cat([other.boundary[b] for b in wiring], dim=1)
    second[:, :WIDTH] = values[:, :WIDTH]
    capture = Capture(
        calls=(
            Call(values=values, phase="prefill", token_ids=tuple(ids.tolist())),
            Call(values=second, phase="prefill", token_ids=tuple(tokens(seed=9).tolist())),
        )
    )
    assert "stale" in slugs(probe, contract, capture)


def test_random_rows_are_unidentified_and_never_a_plane(made):
    probe, contract = made(WIRINGS[0])
    values = torch.randn(ROWS, 3 * WIDTH, generator=torch.Generator().manual_seed(3))
    (found,) = identify(probe, contract, Capture(calls=(Call(values=values),)))
    assert {item.slug for item in found.findings} & {"unidentified", "inconclusive"}
    assert all(item.confidence < 0.9 for item in found.slots)


def test_too_few_rows_cannot_be_checked(target, ids, made):
    probe, contract = made(WIRINGS[0])
    planes = run(target, ids)
    capture = capture_of([planes.boundary[b][:5] for b in WIRINGS[0]])
    report = verify_captures(contract, probe, [capture], path="x")
    assert report.verdict == "could-not-check"
    assert "inconclusive" in {item.slug for item in report.findings}


def test_nothing_captured_and_a_hook_that_failed(target, ids, made):
    probe, contract = made(WIRINGS[0])
    assert verify_captures(contract, probe, [Capture(calls=())], path="x").exit_status == 2
    planes = run(target, ids)
    good = capture_of([planes.boundary[b] for b in WIRINGS[0]])
    assert verify_captures(contract, probe, [good], path="x").exit_status == 0
    failed = replace(good, failure="RuntimeError: out of memory")
    assert verify_captures(contract, probe, [failed], path="x").exit_status == 2


def test_another_width_is_a_finding(made):
    probe, contract = made(WIRINGS[0])
    report = verify_captures(contract, probe, [Capture(calls=(Call(values=torch.randn(ROWS, 100)),))], path="x")
    assert [item.slug for item in report.findings] == ["width"]
    assert report.exit_status == 1


@pytest.mark.parametrize("kind", ["joint", "per_feature"])
@pytest.mark.parametrize("bits", NOISE)
def test_a_norm_before_the_projection_is_seen_behind_it(target, ids, made, kind, bits):
    """speculators trains behind one norm over the whole row: no slot is scaled by it, and leaving it out is seen."""
    wiring = (0, 3, 6)
    probe, contract = made(wiring)
    hidden = 3 * WIDTH
    projection = Projection(
        tensor="fc.weight", role="fc", slots=(0, 1, 2), in_features=hidden, out_features=WIDTH, pre_norm=kind
    )
    contract = replace(contract, projections=(projection,))
    planes = run(target.quantised(bits), ids)
    weight = 0.8 + 0.4 * torch.rand(hidden, generator=torch.Generator().manual_seed(2))

    def normed(boundaries):
        slots = [planes.boundary[b] for b in boundaries]
        rows = torch.cat(slots, dim=1)
        unit = _unit(rows) if kind == "joint" else torch.cat([_unit(item) for item in slots], dim=1)
        return Capture(calls=(Call(values=unit * weight, point="projection_input", token_ids=tuple(ids.tolist())),))

    assert slugs(probe, contract, normed(wiring)) == []
    (found,) = identify(probe, contract, normed(wiring))
    assert found.wiring.pre_norm == kind
    assert found.wiring.boundaries == wiring
    assert slugs(probe, contract, normed((0, 4, 7))) == ["layer-shift"]
    raw = capture_of([planes.boundary[b] for b in wiring], token_ids=tuple(ids.tolist()))
    bare = replace(raw, calls=tuple(replace(call, point="projection_input") for call in raw.calls))
    assert slugs(probe, contract, bare) == ["norm-before-fc"]


def _unit(values):
    return values / values.square().mean(dim=1, keepdim=True).add(1e-6).sqrt()
