"""Neighbours of a wiring: each differs as it should, none holds a plane twice, and none is left out."""

from __future__ import annotations

from itertools import permutations

from featurecontract.replay import PlaneName
from featurecontract.replay._near import around, blocks_beside, edits, edits_of

PLANES = tuple(PlaneName(b) for b in range(9))


def wiring(*boundaries):
    return tuple(PlaneName(b) for b in boundaries)


def differences(one, other):
    return sum(a != b for a, b in zip(one, other, strict=True))


def test_edits_of_one_slot_and_its_swaps():
    found = edits_of(wiring(0, 3, 6), 1, PLANES)
    assert set(found) == {wiring(0, b, 6) for b in (1, 2, 3, 4, 5, 7, 8)} | {wiring(3, 0, 6), wiring(0, 6, 3)}
    assert len(found) == 9


def test_all_edits():
    found = edits(wiring(0, 3, 6), PLANES)
    assert len(found) == len(set(found)) == 1 + 3 * 6 + 3
    assert all(len(set(item)) == 3 for item in found)
    assert {differences(item, wiring(0, 3, 6)) for item in found} == {0, 1, 2}


def test_orders_and_near_planes():
    found = around(wiring(0, 3, 6), PLANES)
    assert len(found) == len(set(found))
    assert set(permutations(wiring(0, 3, 6))) <= set(found)
    near = {wiring(a, b, c) for a in (0, 1, 2) for b in (1, 2, 3, 4, 5) for c in (4, 5, 6, 7, 8)}
    assert {item for item in near if len(set(item)) == 3} <= set(found)
    assert len(around(wiring(0, 1, 2, 3, 4, 5), PLANES)) == 0


def test_the_planes_beside():
    assert set(blocks_beside(wiring(0, 1, 8), PLANES)) == {wiring(0, 2, 8), wiring(0, 1, 7)}
