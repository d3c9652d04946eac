"""The search behind the diff: declared boundaries -> actual boundaries, in the fewest structural steps.

Costs and ties (docs/architecture.md): each finding costs 1, `slot-missing`, `slot-extra` and `layer-mismatch` 1 for
each slot; ties go to the order of `PRIORITY`; more than three findings become one `layer-mismatch`.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from itertools import combinations, islice, product
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

__all__ = ["PRIORITY", "Explanation", "explain_boundaries"]

PRIORITY = (
    "order",
    "embedding-missing",
    "slot-missing",
    "slot-extra",
    "slot-duplicate",
    "layer-shift",
    "layer-mismatch",
)
MAX_FINDINGS = 3
# A shift of some slots only is believable for one or two blocks; of every slot, for any number.
MAX_PARTIAL_SHIFT = 2
# Beyond this many ways to leave slots out, the answer would be arbitrary anyway; of long lists, fewer.
MAX_ALIGNMENTS = 512
MAX_WORK = 200_000
# The shifts of every slot that are tried, those that most pairs of boundaries suggest.
MAX_SHIFTS = 16
MAX_PAIRS = 10_000


@dataclass(frozen=True, slots=True)
class Explanation:
    """One structural step: a slug, what it costs, the actual slots it touches, and its details."""

    slug: str
    cost: int
    slots: tuple[int, ...]
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Aligned:
    """Declared and actual boundaries of the slots that stand for each other."""

    steps: tuple[Explanation, ...]
    declared: tuple[int, ...]
    actual: tuple[int, ...]
    slots: tuple[int, ...]  # the declared slot of each pair, for places
    uniform_only: bool = False


def explain_boundaries(declared: Sequence[int], actual: Sequence[int]) -> tuple[Explanation, ...]:
    """Return the cheapest explanation, empty for equal sequences; boundary 0 is the embedding."""
    wanted, fed = tuple(declared), tuple(actual)
    if wanted == fed:
        return ()
    best: tuple[Explanation, ...] | None = None
    for aligned in _alignments(wanted, fed):
        for rest in _residuals(aligned):
            steps = aligned.steps + rest
            if len(steps) <= MAX_FINDINGS and (best is None or _rank(steps) < _rank(best)):
                best = steps
    if best is None or _cost(best) > len(fed) + abs(len(wanted) - len(fed)):
        different = tuple(s for s in range(len(fed)) if s >= len(wanted) or wanted[s] != fed[s])
        return (Explanation("layer-mismatch", len(different), different),)
    return tuple(sorted(best, key=lambda step: PRIORITY.index(step.slug)))


def _cost(steps: tuple[Explanation, ...]) -> int:
    return sum(step.cost for step in steps)


def _rank(steps: tuple[Explanation, ...]) -> tuple[Any, ...]:
    order = tuple(sorted(PRIORITY.index(step.slug) for step in steps))
    # A mismatch explains nothing: it comes last, whatever stands beside it.
    unexplained = any(step.slug == "layer-mismatch" for step in steps)
    # Among equal explanations the smaller shift, then the fewer slots, then the later slots kept in place.
    size = sum(abs(step.details.get("shift", 0)) for step in steps)
    touched = sum(len(step.slots) for step in steps)
    return (_cost(steps), unexplained, order, size, touched)


def _alignments(wanted: tuple[int, ...], fed: tuple[int, ...]) -> Iterator[_Aligned]:
    yield from _without_embedding(wanted, fed)
    missing = len(wanted) - len(fed)
    if missing == 0:
        yield _Aligned((), wanted, fed, tuple(range(len(wanted))))
    elif missing > 0:
        for gone in islice(combinations(range(len(wanted)), missing), _most(wanted, fed)):
            left_out = frozenset(gone)
            kept = tuple(slot for slot in range(len(wanted)) if slot not in left_out)
            step = Explanation("slot-missing", missing, gone, {"declared_slots": gone})
            yield _Aligned((step,), tuple(wanted[s] for s in kept), fed, kept)
    else:
        for more in islice(combinations(range(len(fed)), -missing), _most(wanted, fed)):
            added = frozenset(more)
            kept = tuple(slot for slot in range(len(fed)) if slot not in added)
            step = Explanation("slot-extra", -missing, more)
            yield _Aligned((step,), wanted, tuple(fed[s] for s in kept), kept)


def _most(wanted: tuple[int, ...], fed: tuple[int, ...]) -> int:
    return max(1, min(MAX_ALIGNMENTS, MAX_WORK // (len(wanted) * len(fed) + 1)))


def _without_embedding(wanted: tuple[int, ...], fed: tuple[int, ...]) -> Iterator[_Aligned]:
    """Yield the reading in which only the embedding is gone, and what is appended behind is part of that."""
    rest = wanted[1:]
    if len(wanted) < 2 or wanted[0] != 0 or 0 in fed or len(fed) < len(rest):  # noqa: PLR2004
        return
    kept = tuple(range(1, len(wanted)))
    step = Explanation("embedding-missing", 1, (0,), {"appended": list(fed[len(rest) :])})
    yield _Aligned((step,), rest, fed[: len(rest)], kept, uniform_only=True)


def _residuals(aligned: _Aligned) -> Iterator[tuple[Explanation, ...]]:
    """Yield ways to get from the aligned declared boundaries to the actual ones."""
    wanted, fed = aligned.declared, aligned.actual
    if wanted == fed:
        yield ()
        return
    whole = _whole_shifts(aligned)
    yield from ((step,) for step in whole if _shifted(wanted, step.details["shift"]) == fed)
    if aligned.uniform_only:
        if Counter(wanted) == Counter(fed):
            yield (_permutation(aligned, wanted, fed),)
        yield from _partial(aligned, wanted, fed, leave_one=True)
        return
    yield from _orders(aligned, wanted, fed)
    yield from _partial(aligned, wanted, fed)
    for step in whole:
        moved = _shifted(wanted, step.details["shift"])
        yield from ((step, *more) for more in _orders(aligned, moved, fed))
        if _carries(wanted, moved, fed):
            yield from ((step, *more) for more in _partial(aligned, moved, fed))


def _whole_shifts(aligned: _Aligned) -> list[Explanation]:
    """Return the shifts of all non-embedding slots that some pair of boundaries suggests."""
    moving = tuple(slot for slot, b in zip(aligned.slots, aligned.declared, strict=True) if b > 0)
    if not moving:
        return []
    pairs: Iterable[tuple[int, int]] = product(aligned.declared, aligned.actual)
    if len(aligned.declared) * len(aligned.actual) > MAX_PAIRS:
        pairs = zip(aligned.declared, aligned.actual, strict=True)
    votes = Counter(a - d for d, a in pairs if d > 0 and a >= 0 and a != d)
    shifts = sorted(votes, key=lambda shift: (-votes[shift], abs(shift), shift))[:MAX_SHIFTS]
    return [Explanation("layer-shift", 1, moving, {"shift": shift}) for shift in sorted(shifts, key=abs)]


def _shifted(boundaries: tuple[int, ...], shift: int) -> tuple[int, ...]:
    return tuple(b + shift if b > 0 else b for b in boundaries)


def _carries(wanted: tuple[int, ...], moved: tuple[int, ...], fed: tuple[int, ...]) -> bool:
    """Whether a shift of every slot explains most slots; one slot alone would fit a shift by chance."""
    moving = sum(b > 0 for b in wanted)
    explained = sum(b > 0 and m == a for b, m, a in zip(wanted, moved, fed, strict=True))
    return explained >= 2 and 2 * explained >= moving  # noqa: PLR2004


def _orders(aligned: _Aligned, wanted: tuple[int, ...], fed: tuple[int, ...]) -> Iterator[tuple[Explanation, ...]]:
    """Yield a permutation, alone or with one slot off by a block or two, or copied from another."""
    lost = list((Counter(wanted) - Counter(fed)).elements())
    gained = list((Counter(fed) - Counter(wanted)).elements())
    if not lost:
        if wanted != fed:
            yield (_permutation(aligned, wanted, fed),)
        return
    if len(lost) != 1:
        return
    source = len(wanted) - 1 - wanted[::-1].index(lost[0])
    changed = (*wanted[:source], gained[0], *wanted[source + 1 :])
    if changed == fed:
        return  # no permutation in it: `_partial` says it with one finding less
    place = (aligned.slots[source],)
    permutation = _permutation(aligned, changed, fed)
    if gained[0] in wanted:
        yield (permutation, Explanation("slot-duplicate", 1, place, _copy_of(aligned, wanted, gained[0])))
    shift = gained[0] - lost[0]
    if abs(shift) <= MAX_PARTIAL_SHIFT and lost[0] >= 0:
        yield (permutation, Explanation("layer-shift", 1, place, {"shift": shift}))


def _permutation(aligned: _Aligned, wanted: tuple[int, ...], fed: tuple[int, ...]) -> Explanation:
    """Return the order finding; ``permutation[i]`` is the declared slot that is fed at position i."""
    # Slots that stayed where they were keep their place, also when two slots hold the same boundary.
    free: dict[int, deque[int]] = {}
    for index, boundary in enumerate(wanted):
        if fed[index] != boundary:
            free.setdefault(boundary, deque()).append(index)
    permutation = [i if wanted[i] == boundary else free[boundary].popleft() for i, boundary in enumerate(fed)]
    moved = tuple(aligned.slots[i] for i, source in enumerate(permutation) if i != source)
    return Explanation("order", 1, moved, {"permutation": [aligned.slots[i] for i in permutation]})


def _copy_of(aligned: _Aligned, wanted: tuple[int, ...], boundary: int) -> dict[str, int]:
    return {"copy_of": aligned.slots[wanted.index(boundary)]}


def _partial(
    aligned: _Aligned, wanted: tuple[int, ...], fed: tuple[int, ...], *, leave_one: bool = False
) -> Iterator[tuple[Explanation, ...]]:
    """Yield slot by slot explanations: copies of other slots, shifts of a block or two, and mismatches."""
    pairs = [(i, d, a) for i, (d, a) in enumerate(zip(wanted, fed, strict=True)) if d != a]
    if not pairs or (leave_one and len(pairs) == len(wanted)):
        return
    kept = {a for d, a in zip(wanted, fed, strict=True) if d == a}
    for use_copies in (True, False):
        shifts: dict[int, list[int]] = {}
        copies: list[int] = []
        other: list[int] = []
        for index, before, after in pairs:
            if use_copies and after in kept:
                copies.append(index)
            elif before >= 0 and after >= 0 and abs(after - before) <= MAX_PARTIAL_SHIFT:
                shifts.setdefault(after - before, []).append(index)
            else:
                other.append(index)
        if use_copies and not copies:
            continue
        steps = [
            Explanation("layer-shift", 1, tuple(aligned.slots[i] for i in indices), {"shift": shift})
            for shift, indices in sorted(shifts.items())
        ]
        steps += [
            Explanation("slot-duplicate", 1, (aligned.slots[i],), _copy_of(aligned, wanted, fed[i])) for i in copies
        ]
        if other:
            steps.append(Explanation("layer-mismatch", len(other), tuple(aligned.slots[i] for i in other)))
        yield tuple(steps)
