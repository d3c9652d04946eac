"""Mutations of a list of boundaries, each with the slug that the diff must give it. Pure and exhaustive.

What a runtime, a trainer or a person does to a list of layer ids, enumerated: for tests of everything that ends in the
diff. `featurecontract.strategies` draws from the same mutations for property tests.
"""

from __future__ import annotations

from itertools import combinations, permutations
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

__all__ = [
    "MUTATORS",
    "PARTIAL",
    "Boundaries",
    "duplicate",
    "embed_missing",
    "permute",
    "shifted",
    "shifts",
    "single_mutations",
    "slugs_of",
    "strip_first",
    "strip_last",
]

Boundaries: TypeAlias = tuple[int, ...]
# Slug, axis, mutated list: mutations of two axes, or of two slots, may be combined.
Mutated: TypeAlias = tuple[str, str, Boundaries]

# A shift of some slots only is told from other ids for one block or two; of every slot, for any number.
PARTIAL = (-2, -1, 1, 2)


def shifted(declared: Boundaries, depth: int, k: int, slots: Sequence[int]) -> Boundaries | None:
    """Return the list with some slots k blocks later; None where that leaves 0..depth or moves nothing."""
    out = tuple(b + k if slot in slots else b for slot, b in enumerate(declared))
    return out if slots and all(0 <= b <= depth for b in out) else None


def shifts(declared: Boundaries, depth: int, *, reach: int | None = None) -> Iterator[Mutated]:
    """Every slot but the embedding by any k; some slots by one block or two (one slot by +1 is a runtime's alias)."""
    moving = [slot for slot, boundary in enumerate(declared) if boundary]
    for k in range(-depth, depth + 1):
        if k and (reach is None or abs(k) <= reach):
            yield from _shift(declared, depth, k, moving)
    for count in range(1, len(declared) + 1):
        for slots in combinations(range(len(declared)), count):
            for k in PARTIAL:
                yield from _shift(declared, depth, k, slots)


def _shift(declared: Boundaries, depth: int, k: int, slots: Sequence[int]) -> Iterator[Mutated]:
    out = shifted(declared, depth, k, slots)
    if out is not None:
        yield "layer-shift", f"shift {k} {tuple(slots)}", out


def strip_first(declared: Boundaries, _depth: int) -> Iterator[Mutated]:
    """The first slot left out."""
    yield "embedding-missing" if _only_first(declared) else "slot-missing", "count", declared[1:]


def embed_missing(declared: Boundaries, depth: int) -> Iterator[Mutated]:
    """The embedding left out, and any boundary appended behind."""
    if _only_first(declared) and len(declared) > 1:
        for last in range(1, depth + 1):
            yield "embedding-missing", "count", (*declared[1:], last)


def strip_last(declared: Boundaries, _depth: int) -> Iterator[Mutated]:
    """The last slot left out."""
    yield "slot-missing", "count", declared[:-1]


def collapse_duplicates(declared: Boundaries, _depth: int) -> Iterator[Mutated]:
    """Every boundary once."""
    yield "slot-missing", "count", tuple(dict.fromkeys(declared))


def permute(declared: Boundaries, _depth: int) -> Iterator[Mutated]:
    """Every other order; sorting is one of them."""
    for order in permutations(declared):
        yield "order", "order", order


def duplicate(declared: Boundaries, _depth: int) -> Iterator[Mutated]:
    """One slot copied over another."""
    for slot in range(len(declared)):
        for other in range(len(declared)):
            yield "slot-duplicate", f"copy {slot}", (*declared[:slot], declared[other], *declared[slot + 1 :])


MUTATORS: tuple[Callable[[Boundaries, int], Iterator[Mutated]], ...] = (
    shifts,
    strip_first,
    embed_missing,
    strip_last,
    collapse_duplicates,
    permute,
    duplicate,
)


def single_mutations(declared: Boundaries, depth: int) -> dict[Boundaries, set[str]]:
    """Return every mutated list -> the slugs of all mutators that give it; what stays the same is left out."""
    out: dict[Boundaries, set[str]] = {}
    for mutator in MUTATORS:
        for slug, _, mutated in mutator(declared, depth):
            if mutated != declared:
                out.setdefault(mutated, set()).add(slug)
    return out


def slugs_of(declared: Boundaries, mutated: Boundaries) -> frozenset[str]:
    """Return the slugs of all single mutations that lead from one list to the other, without enumerating them.

    Where two mutations give equal lists either slug is right. Empty where no single mutation does.
    """
    if declared == mutated:
        return frozenset()
    out = set()
    if mutated == declared[1:]:
        out.add("embedding-missing" if _only_first(declared) else "slot-missing")
    if mutated in (declared[:-1], tuple(dict.fromkeys(declared))):
        out.add("slot-missing")
    if len(mutated) != len(declared):
        return frozenset(out)
    if _only_first(declared) and len(declared) > 1 and mutated[:-1] == declared[1:] and mutated[-1] > 0:
        out.add("embedding-missing")
    changed = [slot for slot, (a, b) in enumerate(zip(declared, mutated, strict=True)) if a != b]
    steps = {mutated[slot] - declared[slot] for slot in changed}
    whole = changed == [slot for slot, boundary in enumerate(declared) if boundary]
    if len(steps) == 1 and (whole or steps <= set(PARTIAL)):
        out.add("layer-shift")
    if sorted(declared) == sorted(mutated):
        out.add("order")
    if len(changed) == 1 and mutated[changed[0]] in declared:
        out.add("slot-duplicate")
    return frozenset(out)


def _only_first(declared: Boundaries) -> bool:
    return declared[0] == 0 and 0 not in declared[1:]
