"""Every mutation of a wiring gets the slug of its mutator; where two mutators give equal tensors either slug counts."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wiring_mutators import pairs

from featurecontract.contract import Wiring
from featurecontract.findings import diff
from featurecontract.findings.mutations import shifts, single_mutations, slugs_of

LOW_COST = {"slot-missing", "slot-extra", "layer-mismatch"}  # one for each slot; the others are 1 whatever they touch


def slugs(declared, actual) -> tuple:
    return tuple(sorted(item.slug for item in diff(Wiring.from_boundaries(declared), Wiring.from_boundaries(actual))))


def check_singles(declared, depth) -> int:
    mutations = single_mutations(declared, depth)
    for mutated, expected in mutations.items():
        assert slugs_of(declared, mutated) == expected
        found = slugs(declared, mutated)
        assert len(found) == 1, f"{declared} -> {mutated}: {found}, not one of {expected}"
        assert found[0] in expected, f"{declared} -> {mutated}"
    return len(mutations)


def check_pairs(declared, depth) -> int:
    singles, both = single_mutations(declared, depth), pairs(declared, depth)
    for mutated, expected in both.items():
        if mutated in singles:
            continue  # the two are one
        found = diff(Wiring.from_boundaries(declared), Wiring.from_boundaries(mutated))
        cost = sum(len(item.slots) if item.slug in LOW_COST else 1 for item in found)
        # A single finding of cost 1 is a better explanation than any pair.
        assert tuple(sorted(item.slug for item in found)) in expected or cost < 2, f"{declared} -> {mutated}"
    return len(both)


@pytest.mark.parametrize(("depth", "count"), [(1, 1), (2, 2), (5, 2), (5, 3)])
def test_every_single_mutation_of_every_wiring_of_a_small_target(depth, count):
    every = product(range(depth + 1), repeat=count)
    assert sum(check_singles(declared, depth) for declared in every) > 0


@pytest.mark.parametrize(("depth", "count"), [(4, 4), (8, 3)])
def test_every_ascending_wiring(depth, count):
    for declared in combinations(range(depth + 1), count):
        check_singles(declared, depth)


@pytest.mark.parametrize(("depth", "count"), [(7, 3), (4, 4)])
def test_both_of_two_mutations_are_named(depth, count):
    assert sum(check_pairs(declared, depth) for declared in combinations(range(depth + 1), count)) > 1000


@st.composite
def targets(draw, *, most=4, distinct=True):
    depth = draw(st.integers(8, 96))
    ids = draw(st.lists(st.integers(0, depth), min_size=1, max_size=most, unique=distinct))
    return depth, tuple(sorted(ids) if draw(st.booleans()) else ids)


@given(targets(distinct=False))
def test_equal_wirings_have_no_finding(target):
    wiring = Wiring.from_boundaries(target[1], dim=64)
    assert diff(wiring, wiring) == ()


@given(targets())
def test_the_shift_is_given_with_its_sign(target):
    depth, declared = target
    moving = tuple(slot for slot, b in enumerate(declared) if b)
    for k in (-7, -1, 1, 7):
        mutated = tuple(b + k if b else b for b in declared)
        if len(moving) < 2 or min(mutated) < 0 or sorted(mutated) == sorted(declared):
            continue
        if mutated in single_mutations(declared, depth) and single_mutations(declared, depth)[mutated] != {
            "layer-shift"
        }:
            continue
        (found,) = diff(Wiring.from_boundaries(declared), Wiring.from_boundaries(mutated))
        assert (found.slug, found.slots, found.details) == ("layer-shift", moving, {"shift": k})


@given(targets(most=5))
def test_the_permutation_gives_what_is_fed_from_what_is_declared(target):
    _, declared = target
    actual = declared[::-1]
    if actual != declared:
        (found,) = diff(Wiring.from_boundaries(declared), Wiring.from_boundaries(actual))
        assert tuple(declared[source] for source in found.details["permutation"]) == actual


STATE_MUTATORS = {
    "zero": ("state", "zero"),
    "constant": ("state", "constant"),
    "unidentified": ("state", "unknown"),
    "residual-missing": ("state", "block_output"),
    "mid-block": ("state", "mid_block"),
    "norm-before-fc": ("state", "normed"),
    "scale": ("scale", 2.0),
    "rows-shifted": ("row_offset", 1),
    "width": ("dim", 128),
}


@given(targets(), st.sampled_from(sorted(STATE_MUTATORS)), st.data())
def test_a_state_fault_of_any_slots_is_one_finding_that_lists_them(target, slug, data):
    declared = Wiring.from_boundaries(target[1], dim=64)
    slots = data.draw(st.sets(st.integers(0, len(declared.features) - 1), min_size=1))
    key, value = STATE_MUTATORS[slug]
    actual = replace(
        declared, features=tuple(replace(f, **{key: value}) if f.slot in slots else f for f in declared.features)
    )
    (found,) = diff(declared, actual)
    assert (found.slug, found.slots) == (slug, tuple(sorted(slots)))


@given(targets(), st.sampled_from(sorted(STATE_MUTATORS)), st.data())
def test_a_state_fault_does_not_hide_a_shift_of_the_other_slots(target, slug, data):
    depth, boundaries = target
    singles = single_mutations(boundaries, depth)
    moved = [m for _, _, m in shifts(boundaries, depth, reach=2) if singles.get(m) == {"layer-shift"}]
    if not moved:
        return
    mutated = data.draw(st.sampled_from(moved))
    still = [slot for slot, (a, b) in enumerate(zip(boundaries, mutated, strict=True)) if a == b]
    if not still:
        return
    slot = data.draw(st.sampled_from(still))
    key, value = STATE_MUTATORS[slug]
    fed = Wiring.from_boundaries(mutated, dim=64)
    actual = replace(fed, features=tuple(replace(f, **{key: value}) if f.slot == slot else f for f in fed.features))
    found = diff(Wiring.from_boundaries(boundaries, dim=64), actual)
    assert {item.slug for item in found} == {slug, "layer-shift"}
