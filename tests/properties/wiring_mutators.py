"""Two mutations of a boundary list at once: the pairs of slugs that such a list must be explained by."""

from __future__ import annotations

from itertools import chain, permutations, product

from featurecontract.findings.mutations import (
    duplicate,
    embed_missing,
    permute,
    shifted,
    shifts,
    strip_first,
    strip_last,
)


def pairs(declared, depth):
    """Return mutated list -> the pairs of slugs that give it, of mutations on different axes or slots.

    Left out, because the result of two is the result of one, of none, or of nothing in particular: permutation after
    permutation (they compose), removal after removal, shifts of the same slots (they add up or cancel), a copy of or
    over the slot that a partial shift moves. Ids are translated before they are moved, so the shift comes first.
    """
    out: dict[tuple, set] = {}
    _after_whole_shifts(out, declared, depth)
    _after_one_shift(out, declared, depth)
    lost = (strip_first, embed_missing) if declared[0] == 0 else ()
    for slug, _, moved in chain(shifts(declared, depth, reach=2), duplicate(declared, depth), permute(declared, depth)):
        if lost and moved != declared and moved[0] == 0 and 0 not in moved[1:]:
            _then(out, slug, moved, depth, lost)
    for slug, _, moved in chain(duplicate(declared, depth), permute(declared, depth)):
        if moved != declared:
            copies = (duplicate, permute) if slug == "slot-duplicate" else ()
            _then(out, slug, moved, depth, (*copies, strip_last))
    out.pop(declared, None)
    return out


def _after_whole_shifts(out, declared, depth):
    moving = tuple(slot for slot, b in enumerate(declared) if b)
    for k in range(-depth, depth + 1):
        for moved in some(shifted(declared, depth, k, moving)) if k and len(moving) > 1 else ():
            whole = (strip_last, permute)
            if (declared[0] == 0) == (moved[0] == 0) and min(moved[1:]) > 0:
                whole = (*whole, strip_first, embed_missing)
            _then(out, "layer-shift", moved, depth, whole)


def _after_one_shift(out, declared, depth):
    slots = range(len(declared))
    for slot, k in product(slots, (-2, -1, 1, 2)):
        for moved in some(shifted(declared, depth, k, (slot,))):
            if len(set(moved)) == len(moved):
                _then(out, "layer-shift", moved, depth, (permute,))
            for kept, other in permutations(set(slots) - {slot}, 2):
                both = (*moved[:kept], declared[other], *moved[kept + 1 :])
                out.setdefault(both, set()).add(("layer-shift", "slot-duplicate"))


def some(moved):
    return () if moved is None else (moved,)


def _then(out, first, moved, depth, mutators):
    for mutator in mutators:
        for slug, _, mutated in mutator(moved, depth):
            if mutated != moved:
                out.setdefault(mutated, set()).add(tuple(sorted((first, slug))))
