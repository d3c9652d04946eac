from __future__ import annotations

import time
from dataclasses import replace
from random import Random

import pytest

from featurecontract.contract import Feature, Wiring
from featurecontract.findings import diff


def wiring(*boundaries, **flags) -> Wiring:
    """Boundaries, or (boundary, state) pairs, 8 columns each."""
    pairs = [item if isinstance(item, tuple) else (item, "residual") for item in boundaries]
    return Wiring(
        features=tuple(Feature(slot=s, boundary=b, state=state, dim=8) for s, (b, state) in enumerate(pairs)), **flags
    )


def brief(declared, actual) -> list[tuple]:
    return [(item.slug, item.slots, item.details) for item in diff(declared, actual)]


ALL = (0, 1, 2)
# declared, actual -> slug, slots, details; the first four are the examples of the design.
STRUCTURE = [
    ((0, 3, 31), (3, 31, 59), [("embedding-missing", (0,), {"appended": [59]})]),
    (
        (0, 3, 31),
        (2, 30, 58),
        [("embedding-missing", (0,), {"appended": [58]}), ("layer-shift", (1, 2), {"shift": -1})],
    ),
    ((3, 31, 59), (2, 30, 58), [("layer-shift", ALL, {"shift": -1})]),
    ((2, 30, 58), (58, 2, 30), [("order", ALL, {"permutation": [2, 0, 1]})]),
    # nothing
    ((), (), []),
    ((0, 3, 31), (0, 3, 31), []),
    # order: same multiset, also of equal boundaries
    ((2, 30, 58), (30, 2, 58), [("order", (0, 1), {"permutation": [1, 0, 2]})]),
    ((58, 30, 2), (2, 30, 58), [("order", (0, 2), {"permutation": [2, 1, 0]})]),
    ((4, 4, 9), (4, 9, 4), [("order", (1, 2), {"permutation": [0, 2, 1]})]),
    # order wins a tie with a shift: two slots one block apart, exchanged
    ((2, 3, 9), (3, 2, 9), [("order", (0, 1), {"permutation": [1, 0, 2]})]),
    # embedding: what is appended behind is part of it; one uniform shift may come with it
    ((0, 3, 31), (3, 31), [("embedding-missing", (0,), {"appended": []})]),
    ((0, 3, 31), (3, 31, 59, 60), [("embedding-missing", (0,), {"appended": [59, 60]})]),
    ((0, 1, 2), (1, 2, 3), [("embedding-missing", (0,), {"appended": [3]})]),
    ((0, 9), (9,), [("embedding-missing", (0,), {"appended": []})]),
    # h[0] is somewhere in what is fed: it is not missing
    ((0, 3, 31), (3, 31, 0), [("order", ALL, {"permutation": [1, 2, 0]})]),
    # missing and extra cost 1 for each slot
    ((2, 30, 58), (2, 30), [("slot-missing", (2,), {})]),
    ((2, 30, 58), (30, 58), [("slot-missing", (0,), {})]),
    ((2, 30, 58), (2, 58), [("slot-missing", (1,), {})]),
    ((2, 5, 9), (9,), [("slot-missing", (0, 1), {})]),
    ((2, 5, 9), (), [("slot-missing", ALL, {})]),
    ((2, 30, 58), (2, 30, 58, 61), [("slot-extra", (3,), {})]),
    ((2, 30, 58), (0, 2, 30, 58), [("slot-extra", (0,), {})]),
    ((2, 30, 58), (0, 2, 30, 58, 61), [("slot-extra", (0, 4), {})]),
    ((2, 30, 58), (1, 57), [("slot-missing", (1,), {}), ("layer-shift", (0, 2), {"shift": -1})]),
    # duplicate before shift
    ((2, 30, 58), (2, 2, 58), [("slot-duplicate", (1,), {"copy_of": 0})]),
    ((2, 30, 58), (2, 58, 58), [("slot-duplicate", (1,), {"copy_of": 2})]),
    ((2, 3, 9), (3, 3, 9), [("slot-duplicate", (0,), {"copy_of": 1})]),
    ((0, 2, 9), (2, 2, 9), [("slot-duplicate", (0,), {"copy_of": 1})]),
    # shift of every slot: any k; the embedding does not move with it
    ((3, 31, 59), (8, 36, 64), [("layer-shift", ALL, {"shift": 5})]),
    ((1, 2, 3), (2, 3, 4), [("layer-shift", ALL, {"shift": 1})]),
    ((0, 3, 31), (0, 2, 30), [("layer-shift", (1, 2), {"shift": -1})]),
    ((0, 3, 31), (0, 13, 41), [("layer-shift", (1, 2), {"shift": 10})]),
    ((0, 3, 31), (1, 4, 32), [("layer-shift", ALL, {"shift": 1})]),
    # shift of some slots: two blocks at most
    ((2, 30, 58), (2, 31, 58), [("layer-shift", (1,), {"shift": 1})]),
    ((2, 30, 58), (2, 28, 56), [("layer-shift", (1, 2), {"shift": -2})]),
    ((2, 30, 58), (2, 33, 58), [("layer-mismatch", (1,), {})]),
    ((2, 30, 58), (3, 30, 57), [("layer-shift", (2,), {"shift": -1}), ("layer-shift", (0,), {"shift": 1})]),
    # two findings on different axes
    ((2, 30, 58), (31, 3, 59), [("order", (0, 1), {"permutation": [1, 0, 2]}), ("layer-shift", ALL, {"shift": 1})]),
    (
        (2, 30, 58),
        (58, 30, 3),
        [("order", (0, 2), {"permutation": [2, 1, 0]}), ("layer-shift", (0,), {"shift": 1})],
    ),
    # nothing simpler: one mismatch that lists its slots
    ((2, 30, 58), (5, 47, 9), [("layer-mismatch", ALL, {})]),
    ((2, 30, 58), (1, 59, 33), [("layer-shift", (0,), {"shift": -1}), ("layer-mismatch", (1, 2), {})]),
]


@pytest.mark.parametrize(("declared", "actual", "expected"), STRUCTURE)
def test_boundaries(declared, actual, expected):
    assert brief(wiring(*declared), wiring(*actual)) == expected


def test_more_than_three_structural_findings_are_one_mismatch():
    declared, actual = (5, 15, 25, 35), (6, 14, 27, 33)
    assert brief(wiring(*declared), wiring(*actual)) == [("layer-mismatch", (0, 1, 2, 3), {})]


EMBEDDING = Feature(slot=0, boundary=0, dim=8)
# declared, actual -> slug, slots, details
STATES = [
    ((2, 30), ((2, "zero"), 30), [("zero", (0,), {"state": "zero"})]),
    ((2, 30), ((None, "zero"), (None, "zero")), [("zero", (0, 1), {"state": "zero"})]),
    ((2, 30), (2, (None, "constant")), [("constant", (1,), {"state": "constant"})]),
    ((2, 30), (2, (30, "unknown")), [("unidentified", (1,), {"state": "unknown"})]),
    ((2, 30), (2, (30, "block_output")), [("residual-missing", (1,), {"state": "block_output"})]),
    ((2, 30), (2, (30, "mlp_output")), [("residual-missing", (1,), {"state": "mlp_output"})]),
    ((2, 30), ((2, "mid_block"), 30), [("mid-block", (0,), {"state": "mid_block"})]),
    ((2, 30), ((2, "normed"), (30, "normed")), [("norm-before-fc", (0, 1), {"state": "normed"})]),
    ((2, 32), (2, (32, "final_norm")), [("final-norm", (1,), {"state": "final_norm"})]),
    ((2, (32, "final_norm")), (2, 32), [("final-norm", (1,), {"state": "residual"})]),
    # one finding for each kind and parameter
    (
        (2, 16, 30),
        ((2, "block_output"), (16, "mlp_output"), (30, "block_output")),
        [
            ("residual-missing", (0, 2), {"state": "block_output"}),
            ("residual-missing", (1,), {"state": "mlp_output"}),
        ],
    ),
    # state faults first, then what is left of the boundaries
    ((2, 30), (3, (31, "mid_block")), [("mid-block", (1,), {"state": "mid_block"}), ("layer-shift", (0, 1), None)]),
    ((2, 30, 58), (3, (None, "zero"), 58), [("zero", (1,), None), ("layer-shift", (0,), {"shift": 1})]),
    # a permuted final norm is an order, no state fault
    ((2, (32, "final_norm")), ((32, "final_norm"), 2), [("order", (0, 1), {"permutation": [1, 0]})]),
]


@pytest.mark.parametrize(("declared", "actual", "expected"), STATES)
def test_states_come_off_first(declared, actual, expected):
    found = diff(wiring(*declared), wiring(*actual), origin="observed")
    assert [(item.slug, item.slots) for item in found] == [(slug, slots) for slug, slots, _ in expected]
    for item, (_, _, details) in zip(found, expected, strict=True):
        assert details is None or item.details == details


def one(**change) -> Wiring:
    base = wiring(2, 30)
    return replace(base, features=(base.features[0], replace(base.features[1], **change)))


@pytest.mark.parametrize(
    ("change", "slug", "details"),
    [
        ({"scale": 2.0}, "scale", {"factor": 2.0}),
        ({"scale": 0.0}, "scale", {"factor": 0.0}),
        ({"row_offset": 1}, "rows-shifted", {"offset": 1}),
        ({"dim": 16}, "width", {"declared": 8, "actual": 16}),
    ],
)
def test_parameters_of_one_slot(change, slug, details):
    (found,) = diff(wiring(2, 30), one(**change))
    assert (found.slug, found.slots, found.details) == (slug, (1,), details)
    assert found.columns == ((8, 16),)


def test_a_declared_scale_is_the_reference():
    (found,) = diff(one(scale=4.0), one(scale=2.0))
    assert found.details == {"factor": 0.5}
    assert diff(one(scale=0.1 + 0.2), one(scale=0.3)) == ()


def test_a_width_that_nobody_stated_is_no_difference():
    assert diff(wiring(2, 30), wiring(2, 30).with_dim(None)) == ()
    assert diff(wiring(2, 30).with_dim(None), wiring(2, 30)) == ()


@pytest.mark.parametrize(
    ("key", "declared", "actual", "slug"),
    [
        ("pre_norm", "none", "joint", "norm-before-fc"),
        ("pre_norm", "joint", "none", "norm-before-fc"),
        ("pre_norm", "joint", "per_feature", "norm-before-fc"),
        ("pre_norm", "joint", "unknown", None),
        ("pre_norm", "unknown", "none", None),
        ("recurrent_state", "pre_norm", "post_norm", "recurrent-state"),
        ("recurrent_state", "post_norm", "pre_norm", "recurrent-state"),
        ("recurrent_state", "pre_norm", "unknown", None),
        ("recurrent_state", "none", "post_norm", None),
        ("norm_before_residual", True, False, "norm-before-residual"),
        ("norm_before_residual", False, True, "norm-before-residual"),
        ("norm_before_residual", None, True, None),
        ("norm_before_residual", True, None, None),
        ("bias", True, False, "bias-unread"),
        ("bias", False, True, None),
        ("bias", True, None, None),
        ("bias", None, False, None),
    ],
)
def test_flags_differ_only_where_both_are_stated(key, declared, actual, slug):
    found = diff(wiring(2, 30, **{key: declared}), wiring(2, 30, **{key: actual}))
    assert [item.slug for item in found] == ([slug] if slug else [])
    for item in found:
        assert (item.expected, item.actual) == (declared, actual)


def test_wiring_and_flags_are_all_reported():
    declared = wiring(0, 3, 31, pre_norm="joint", recurrent_state="pre_norm", bias=True)
    actual = wiring(3, 31, 59, pre_norm="none", recurrent_state="post_norm", bias=False)
    slugs = ["embedding-missing", "norm-before-fc", "recurrent-state", "bias-unread"]
    assert [item.slug for item in diff(declared, actual)] == slugs


def test_a_finding_holds_both_wirings_and_its_place():
    (found,) = diff(wiring(0, 3, 31), wiring(3, 31, 59))
    assert found.rule == "FC304"
    assert found.severity == "error"
    assert found.columns == ((0, 8),)
    assert [item["boundary"] for item in found.expected] == [0, 3, 31]
    assert [item["boundary"] for item in found.actual] == [3, 31, 59]
    assert "h[3], h[31], h[59]" in found.message


def test_words_say_whether_it_was_seen():
    declared, actual = wiring(2, 30), wiring(3, 31)
    assert "would feed" in diff(declared, actual)[0].message
    assert "would feed" not in diff(declared, actual, origin="observed")[0].message


def test_another_source_is_no_plane_of_the_target():
    drafter = Wiring(features=(Feature(slot=0, source="drafter_embedding", dim=8), Feature(slot=1, boundary=4, dim=8)))
    assert diff(drafter, drafter) == ()
    (found,) = diff(drafter, wiring(3, 4))
    assert (found.slug, found.slots) == ("layer-mismatch", (0,))


@pytest.mark.parametrize("count", [100, 10_000])
def test_long_lists_take_no_longer_than_they_must(count):
    """A contract may be hostile; a search over every shift and every slot left out took minutes for 100 slots."""
    random = Random(count)
    declared = [random.randrange(1, 10_000) for _ in range(count)]
    start = time.process_time()
    for actual in (
        [random.randrange(1, 10_000) for _ in range(count)],
        declared[::-1],
        declared[: count // 2],
        [*declared, *declared],
        [b + 1 for b in declared],
    ):
        assert diff(wiring(0, *declared), wiring(*actual))
    assert time.process_time() - start < 20  # seconds; about 2 when nothing else runs


def test_columns_end_where_a_width_is_unknown():
    declared = Wiring(features=tuple(Feature(slot=s, boundary=s + 2, dim=None if s == 1 else 8) for s in range(3)))
    (found,) = diff(declared, wiring(7, 8, 9))
    assert (found.slots, found.columns) == ((0, 1, 2), ((0, 8),))


@pytest.mark.parametrize(
    ("declared", "fed", "expected"),
    [
        (((5, "residual"), (5, "final_norm")), ((5, "final_norm"), (5, "residual")), [("order", ALL[:2])]),
        (((5, "residual"), (5, "final_norm")), ((5, "final_norm"), (5, "final_norm")), [("final-norm", (0,))]),
        (((5, "residual"), 3, (5, "final_norm")), ((5, "residual"), 3, (5, "residual")), [("final-norm", (2,))]),
    ],
)
def test_a_boundary_and_its_norm_are_told_apart_where_both_are_declared(declared, fed, expected):
    assert [(item.slug, item.slots) for item in diff(wiring(*declared), wiring(*fed))] == expected


def test_a_copy_among_more_slices_than_declared_has_a_name():
    found = diff(wiring(0, 3, 31), wiring(0, 0, 31, 31))
    assert [(item.slug, item.slots) for item in found] == [("slot-extra", (0,)), ("slot-duplicate", (2,))]
    assert "[embedding, embedding, h[31], h[31]]: h[31] twice" in found[1].message


def test_the_drafters_embedding_in_place_of_a_plane_is_noticed():
    fed = Wiring(features=(Feature(slot=0, source="drafter_embedding", dim=8), Feature(slot=1, boundary=3, dim=8)))
    assert [item.slug for item in diff(wiring(0, 3), fed)] == ["layer-mismatch"]
    assert diff(fed, fed) == ()
