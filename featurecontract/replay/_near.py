"""Wirings near one: by an edit of one slot, by order, by blocks."""

from __future__ import annotations

from itertools import permutations, product
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from featurecontract.replay._texts import PlaneName

__all__ = ["Chosen", "around", "blocks_beside", "edits", "edits_of"]

Chosen = tuple["PlaneName", ...]

# With more slots, all orders and all combinations of offsets are too many.
_MANY, _FEW = 5, 3
_NEAR = 2


def edits_of(wiring: Chosen, slot: int, planes: Sequence[PlaneName]) -> list[Chosen]:
    """Return the wirings with another plane in one slot, or with that slot swapped with another.

    Two planes may sit in each other's slot: an ascent that never swaps would stop there.
    """
    others = wiring[:slot] + wiring[slot + 1 :]
    changed = [(*wiring[:slot], name, *wiring[slot + 1 :]) for name in planes if name not in others]
    return [*changed, *(_swapped(wiring, slot, other) for other in range(len(wiring)) if other != slot)]


def edits(wiring: Chosen, planes: Sequence[PlaneName]) -> list[Chosen]:
    """Return every wiring that differs in one slot, or by a swap of two; the wiring itself is among them."""
    return list(dict.fromkeys(other for slot in range(len(wiring)) for other in edits_of(wiring, slot, planes)))


def blocks_beside(wiring: Chosen, planes: Sequence[PlaneName]) -> list[Chosen]:
    """Return the wirings that have the plane before or after in one slot."""
    index = {name: at for at, name in enumerate(planes)}
    return [
        (*wiring[:slot], planes[at], *wiring[slot + 1 :])
        for slot, name in enumerate(wiring)
        for at in (index[name] - 1, index[name] + 1)
        if 0 <= at < len(planes) and planes[at] not in wiring
    ]


def around(wiring: Chosen, planes: Sequence[PlaneName]) -> list[Chosen]:
    """Return the orders of a wiring, and those whose slots lie at most two planes off; each plane once."""
    slots = len(wiring)
    orders = list(permutations(wiring)) if slots <= _MANY else []
    index = {name: at for at, name in enumerate(planes)}
    spread = range(-_NEAR, _NEAR + 1) if slots <= _FEW else range(-1, 2)
    near = []
    for offsets in product(spread, repeat=slots) if slots <= _MANY else ():
        places = [index[name] + offset for name, offset in zip(wiring, offsets, strict=True)]
        if all(0 <= at < len(planes) for at in places):
            near.append(tuple(planes[at] for at in places))
    return [other for other in dict.fromkeys([*orders, *near]) if len(set(other)) == slots]


def _swapped(wiring: Chosen, first: int, second: int) -> Chosen:
    out = list(wiring)
    out[first], out[second] = out[second], out[first]
    return tuple(out)
