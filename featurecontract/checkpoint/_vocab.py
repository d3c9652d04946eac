"""The vocabulary map of a drafter with fewer tokens than its target: ``d2t`` and ``t2d``.

``d2t[i]`` leads from draft id i to a target id. SpecForge, SGLang, vLLM and speculators store the *offset*
(target id = i + d2t[i]); some exports store the target id itself (*absolute*). ``t2d`` marks the target ids that have
a draft id.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from itertools import compress, count, islice
from typing import TYPE_CHECKING, Literal

from featurecontract.checkpoint._paths import quoted
from featurecontract.checkpoint._shards import capped

if TYPE_CHECKING:
    from collections.abc import Sequence

    from featurecontract.checkpoint._checkpoint import Checkpoint

__all__ = ["VocabFacts", "VocabKind", "check_vocab_map"]

VocabKind = Literal["offset", "absolute", "identity", "zeros", "unknown", "absent"]

#: Sixteen times the largest vocabulary in use.
_MAX_ENTRIES = 4 * 1024 * 1024
_INTEGERS = frozenset({"I64", "I32", "I16", "U16", "U32", "U64"})
_MASKS = frozenset({"BOOL", "U8", "I8", *_INTEGERS})


@dataclass(frozen=True, slots=True, kw_only=True)
class VocabFacts:
    """What the vocabulary map of a checkpoint holds.

    Attributes:
        kind: ``offset``, ``absolute``; ``identity`` (all offsets are 0 and draft and target vocabulary are the same);
            ``zeros`` (all values are 0 although the vocabularies differ: a buffer that was never filled);
            ``unknown`` (``why`` says why); ``absent`` (there is no d2t).
        why: why the kind is ``zeros``, ``unknown`` or ``absent``; empty otherwise.
        first_bad_index: the first draft id whose entry fits no reading of the map.
        problems: everything that is wrong with the map, one line each.
        d2t: the tensor's name, or None; likewise ``t2d``.
        d2t_size: its number of entries; likewise ``t2d_size``.
        t2d_count: how many target ids t2d marks.
        t2d_agrees: whether t2d marks exactly the ids that d2t maps to; None when that cannot be said.
        t2d_first_bad_index: the first target id that only one of the two has.
        d2t_sha256: digest of the tensor's bytes; likewise ``t2d_sha256``.
    """

    present: tuple[str, ...] = ()
    kind: VocabKind = "absent"
    why: str = ""
    first_bad_index: int | None = None
    problems: tuple[str, ...] = ()
    d2t: str | None = None
    t2d: str | None = None
    d2t_size: int | None = None
    t2d_size: int | None = None
    t2d_count: int | None = None
    t2d_agrees: bool | None = None
    t2d_first_bad_index: int | None = None
    d2t_sha256: str | None = None
    t2d_sha256: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Verdict:
    kind: VocabKind
    mapped: Sequence[int] | None = None
    why: str = ""
    bad: int | None = None


def check_vocab_map(
    checkpoint: Checkpoint, *, target_vocab_size: int | None, draft_vocab_size: int | None
) -> VocabFacts:
    """Read ``d2t`` and ``t2d`` (also ``model.d2t`` and the like) and work out what they mean.

    Args:
        checkpoint: the drafter.
        target_vocab_size: from the target's config; without it, the length of t2d is taken.
        draft_vocab_size: from the drafter's config, to compare with the length of d2t.

    Raises:
        InputError: a tensor cannot be read.
    """
    if checkpoint.tensors is None:
        return VocabFacts(kind="unknown", why=checkpoint.tensors_reason)
    problems: list[str] = []
    d2t, t2d = (_find(checkpoint, name) for name in ("d2t", "t2d"))
    try:
        mask = None if t2d is None else _values(checkpoint, t2d, _MASKS)
        marked = None if mask is None else _marked(mask)
    except _UnusableError as error:
        problems.append(f"t2d {error}")
        mask = marked = None
    size = target_vocab_size if target_vocab_size is not None or mask is None else len(mask)
    values = None
    try:
        values = None if d2t is None else _values(checkpoint, d2t, _INTEGERS)
    except _UnusableError as error:
        verdict = _Verdict(kind="unknown", why=f"d2t {error}")
    else:
        verdict = _absent(checkpoint) if values is None else _decide(values, marked, size)
    if verdict.kind == "absent" and t2d is not None:
        problems.append("t2d is there without d2t")
    elif verdict.kind != "absent" and verdict.why:
        problems.append(verdict.why)
    problems += _size_faults(values, mask, draft_vocab_size, target_vocab_size)
    difference = None
    if verdict.mapped is not None and marked is not None:
        difference = _first_difference(verdict.mapped, marked)
        if difference is not None:
            has, lacks = ("t2d", "d2t") if difference in set(marked) else ("d2t", "t2d")
            counts = f"d2t maps to {len(verdict.mapped)} ids, t2d marks {len(marked)}"
            problems.append(f"target id {difference} is in {has} and not in {lacks} ({counts})")
    return VocabFacts(
        present=tuple(name for name in (d2t, t2d) if name is not None),
        kind=verdict.kind,
        why=verdict.why,
        first_bad_index=verdict.bad,
        problems=tuple(problems),
        d2t=d2t,
        t2d=t2d,
        d2t_size=None if values is None else len(values),
        t2d_size=None if mask is None else len(mask),
        t2d_count=None if marked is None else len(marked),
        t2d_agrees=None if marked is None or verdict.mapped is None else difference is None,
        t2d_first_bad_index=difference,
        d2t_sha256=None if d2t is None else checkpoint.sha256(d2t),
        t2d_sha256=None if t2d is None else checkpoint.sha256(t2d),
    )


def _size_faults(
    values: Sequence[int] | None, mask: Sequence[int] | None, draft_size: int | None, target_size: int | None
) -> list[str]:
    pairs = (("d2t", values, "draft", draft_size), ("t2d", mask, "target", target_size))
    return [
        f"{name} has {len(found)} entries, but the {whose} vocabulary has {declared}"
        for name, found, whose, declared in pairs
        if found is not None and declared is not None and len(found) != declared
    ]


class _UnusableError(ValueError):
    """A tensor that is there but cannot be a vocabulary map."""


def _called(checkpoint: Checkpoint, name: str) -> list[str]:
    tensors = checkpoint.tensors or {}
    return [name] if name in tensors else sorted(each for each in tensors if each.endswith(f".{name}"))


def _find(checkpoint: Checkpoint, name: str) -> str | None:
    found = _called(checkpoint, name)
    return found[0] if len(found) == 1 else None


def _absent(checkpoint: Checkpoint) -> _Verdict:
    found = _called(checkpoint, "d2t")
    if found:
        return _Verdict(kind="unknown", why=f"several tensors are called d2t: {capped(found)}")
    return _Verdict(kind="absent", why="the checkpoint has no d2t")


def _values(checkpoint: Checkpoint, name: str, dtypes: frozenset[str]) -> Sequence[int]:
    facts = (checkpoint.tensors or {})[name]
    if facts.dtype not in dtypes or len(facts.shape) != 1:
        raise _UnusableError(f"is {facts.dtype} {quoted(list(facts.shape))}, not one row of integers")
    if facts.shape[0] > _MAX_ENTRIES:
        raise _UnusableError(f"has {facts.shape[0]} entries, more than {_MAX_ENTRIES}")
    return checkpoint.read_values(name)


def _marked(mask: Sequence[int]) -> list[int]:
    """Return the target ids that t2d marks."""
    if not set(mask) <= {0, 1}:
        raise _UnusableError("holds values other than 0 and 1, so it does not mark target ids")
    return list(compress(range(len(mask)), mask))


def _decide(values: Sequence[int], marked: list[int] | None, size: int | None) -> _Verdict:
    """Choose the reading of d2t; where both fit, only t2d can decide."""
    if not any(values):
        return _all_zero(values, marked, size)
    offset: list[int] = list(map(operator.add, values, count()))
    absolute = values
    offset_bad, absolute_bad = _first_bad(offset, size), _first_bad(absolute, size)
    if offset_bad is None and absolute_bad is None and offset != list(absolute):
        fits = [("offset", offset), ("absolute", absolute)]
        by_mask = [(kind, ids) for kind, ids in fits if marked is not None and list(ids) == marked]
        if len(by_mask) == 1:
            kind, ids = by_mask[0]
            return _Verdict(kind="offset" if kind == "offset" else "absolute", mapped=ids)
        reason = "there is no t2d to decide" if marked is None else "t2d agrees with neither"
        return _Verdict(kind="unknown", why=f"d2t can be read as offsets and as target ids, and {reason}")
    if offset_bad is None:
        return _Verdict(kind="offset", mapped=offset)
    if absolute_bad is None:
        return _Verdict(kind="absolute", mapped=absolute)
    # The reading that gets further is the likelier one.
    kind, ids, bad = (
        ("offset", offset, offset_bad) if offset_bad >= absolute_bad else ("absolute", values, absolute_bad)
    )
    what = f"d2t[{bad}] = {values[bad]}, read as {'an offset' if kind == 'offset' else 'a target id'}, "
    if size is not None and not 0 <= ids[bad] < size:
        what += f"gives target id {ids[bad]}, outside 0..{size - 1}"
    elif ids[bad] < 0:
        what += f"gives target id {ids[bad]}, below 0"
    else:
        what += f"gives target id {ids[bad]}, not above the {ids[bad - 1]} before it"
    return _Verdict(kind="unknown", why=what, bad=bad)


def _all_zero(values: Sequence[int], marked: list[int] | None, size: int | None) -> _Verdict:
    entries = len(values)
    first_ids = range(entries)
    if size == entries or (marked is not None and entries and marked == list(first_ids)):
        return _Verdict(kind="identity" if size == entries else "offset", mapped=first_ids)
    if not entries:
        return _Verdict(kind="unknown", why="d2t is empty")
    why = f"all {entries} values of d2t are 0"
    if size is None:
        return _Verdict(kind="unknown", why=f"{why}, right only if the target's vocabulary, not known, has as many")
    return _Verdict(kind="zeros", why=f"{why}, but the target's vocabulary has {size}")


def _first_bad(ids: Sequence[int], size: int | None) -> int | None:
    """Return the first index whose id does not rise or lies outside the target vocabulary."""
    if ids and ids[0] < 0:
        return 0
    steps = map(operator.lt, ids, islice(ids, 1, None))
    bad = next((index for index, rises in enumerate(steps, 1) if not rises), None)
    if size is None:
        return bad
    # Up to there the ids rise, so the first one outside is found from the end.
    rising = ids if bad is None else ids[:bad]
    if not rising or rising[-1] < size:
        return bad
    return next(index for index, each in enumerate(rising) if each >= size)


def _first_difference(mapped: Sequence[int], marked: list[int]) -> int | None:
    if list(mapped) == marked:
        return None
    return min(set(mapped) ^ set(marked))
