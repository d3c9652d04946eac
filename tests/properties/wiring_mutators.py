"""The mutators of boundary lists: each yields (slug, axis, mutated list); what it leaves unchanged is left out."""

from __future__ import annotations

from itertools import combinations, permutations


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
    """Return mutated list -> the pairs of slugs that give it, of mutations on different axes.

    Left out, because the result of two is the result of one or of none: permutation after permutation (they
    compose), removal after removal, a copy after a copy, shifts of the same slots (they add up or cancel), and a
    shift of the very slot that was overwritten by a copy. A shift comes first: ids are translated before they move.
    """
    out: dict[tuple, set] = {}

    def note(slugs, mutated):
        if mutated != declared:
            out.setdefault(mutated, set()).add(tuple(sorted(slugs)))

    moving = tuple(slot for slot, b in enumerate(declared) if b)
    for slug, axis, first in shifts(declared, depth):
        uniform = axis.endswith(str(moving)) and len(moving) > 1
        if first == declared or not (uniform or axis.count(",") <= 1):
            continue
        for mutator in (strip_first, strip_last, permute, embed_missing) if uniform else (permute,):
            for other, _, second in mutator(first, depth):
                if second != first:
                    note((slug, other), second)
        for other, where, second in duplicate(declared, depth):
            if not uniform and second != declared and where.split()[1] not in axis.split("(")[1]:
                moved = tuple(s + f - d for s, f, d in zip(second, first, declared, strict=True))
                note((slug, other), moved)
    for slug, _, first in permute(declared, depth):
        for other, _, second in duplicate(declared, depth):
            if first != declared and second != declared:
                order = [declared.index(b) for b in first]
                note((slug, other), tuple(second[source] for source in order))
    return out
