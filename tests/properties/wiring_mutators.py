"""The mutators of boundary lists: each yields (slug, axis, mutated list); what it leaves unchanged is left out."""

from __future__ import annotations

from itertools import chain, combinations, permutations, product


def shifts(declared, depth, *, reach=None):
    """Every slot but the embedding by any k; some slots by one block or two (alias_next is one slot by +1)."""
    moving = [slot for slot, boundary in enumerate(declared) if boundary]
    for k in range(-depth, depth + 1):
        if k and (reach is None or abs(k) <= reach):
            yield from _shifted(declared, depth, k, moving)
    for count in range(1, len(declared) + 1):
        for slots in combinations(range(len(declared)), count):
            for k in (-2, -1, 1, 2):
                yield from _shifted(declared, depth, k, slots)


def _shifted(declared, depth, k, slots):
    out = tuple(b + k if slot in slots else b for slot, b in enumerate(declared))
    if slots and all(0 <= b <= depth for b in out):
        yield "layer-shift", f"shift {k} {tuple(slots)}", out


def strip_first(declared, _depth):
    yield "embedding-missing" if declared[0] == 0 and 0 not in declared[1:] else "slot-missing", "count", declared[1:]


def embed_missing(declared, depth):
    if declared[0] == 0 and len(declared) > 1 and 0 not in declared[1:]:
        for last in range(1, depth + 1):
            yield "embedding-missing", "count", (*declared[1:], last)


def strip_last(declared, _depth):
    yield "slot-missing", "count", declared[:-1]


def collapse_duplicates(declared, _depth):
    yield "slot-missing", "count", tuple(dict.fromkeys(declared))


def permute(declared, _depth):
    for order in permutations(declared):
        yield "order", "order", order


def sort_ids(declared, _depth):
    yield "order", "order", tuple(sorted(declared))


def duplicate(declared, _depth):
    for slot in range(len(declared)):
        for other in range(len(declared)):
            yield "slot-duplicate", f"copy {slot}", (*declared[:slot], declared[other], *declared[slot + 1 :])


MUTATORS = (shifts, strip_first, embed_missing, strip_last, collapse_duplicates, permute, sort_ids, duplicate)


def single_mutations(declared, depth):
    """Return mutated list -> the slugs of all mutators that give it."""
    out: dict[tuple, set] = {}
    for mutator in MUTATORS:
        for slug, _, mutated in mutator(declared, depth):
            if mutated != declared:
                out.setdefault(mutated, set()).add(slug)
    return out


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
        for _, _, moved in _shifted(declared, depth, k, moving) if k and len(moving) > 1 else ():
            whole = (strip_last, permute)
            if (declared[0] == 0) == (moved[0] == 0) and min(moved[1:]) > 0:
                whole = (*whole, strip_first, embed_missing)
            _then(out, "layer-shift", moved, depth, whole)


def _after_one_shift(out, declared, depth):
    slots = range(len(declared))
    for slot, k in product(slots, (-2, -1, 1, 2)):
        for _, _, moved in _shifted(declared, depth, k, (slot,)):
            if len(set(moved)) == len(moved):
                _then(out, "layer-shift", moved, depth, (permute,))
            for kept, other in permutations(set(slots) - {slot}, 2):
                both = (*moved[:kept], declared[other], *moved[kept + 1 :])
                out.setdefault(both, set()).add(("layer-shift", "slot-duplicate"))


def _then(out, first, moved, depth, mutators):
    for mutator in mutators:
        for slug, _, mutated in mutator(moved, depth):
            if mutated != moved:
                out.setdefault(mutated, set()).add(tuple(sorted((first, slug))))
