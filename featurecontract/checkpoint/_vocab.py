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

if TYPE_CHECKING:
    from collections.abc import Sequence

    from featurecontract.checkpoint._checkpoint import Checkpoint

__all__ = ["VocabFacts", "VocabKind", "check_vocab_map"]

VocabKind = Literal["offset", "absolute", "identity", "zeros", "unknown", "absent"]

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
    d2t, t2d = (_find(checkpoint, name, problems) for name in ("d2t", "t2d"))
    values = _values(checkpoint, d2t, _INTEGERS, problems)
    mask = _values(checkpoint, t2d, _MASKS, problems)
    marked = None if mask is None else _marked(mask, t2d, problems)
    size = target_vocab_size if target_vocab_size is not None else (None if mask is None else len(mask))
    if values is None:
        absent = d2t is None and not problems
        why = "the checkpoint has no d2t" if absent else problems[0]
        verdict = _Verdict(kind="absent" if d2t is None else "unknown", why=why)
        if t2d is not None and d2t is None:
            problems.append("t2d is there without d2t")
    else:
        verdict = _decide(values, marked, size, draft_vocab_size)
        if verdict.why:
            problems.append(verdict.why)
    for name, found, declared in (("d2t", values, draft_vocab_size), ("t2d", mask, target_vocab_size)):
        if found is not None and declared is not None and len(found) != declared:
            whose = "drafter's draft" if name == "d2t" else "target's"
            problems.append(f"{name} has {len(found)} entries, but the {whose} vocabulary has {declared}")
    difference = None
    if verdict.mapped is not None and marked is not None:
        difference = _first_difference(verdict.mapped, marked)
        if difference is not None:
            side = "d2t maps to target id {} and t2d does not mark it"
            if difference in set(marked):
                side = "t2d marks target id {} and d2t does not map to it"
            problems.append(side.format(difference) + f" ({len(verdict.mapped)} mapped, {len(marked)} marked)")
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


def _find(checkpoint: Checkpoint, name: str, problems: list[str]) -> str | None:
    tensors = checkpoint.tensors or {}
    if name in tensors:
        return name
    found = sorted(each for each in tensors if each.endswith(f".{name}"))
    if len(found) > 1:
        problems.append(f"{len(found)} tensors are called {name}: {quoted(found)}")
    return found[0] if len(found) == 1 else None


def _values(
    checkpoint: Checkpoint, name: str | None, dtypes: frozenset[str], problems: list[str]
) -> Sequence[int] | None:
    if name is None or checkpoint.tensors is None:
        return None
    facts = checkpoint.tensors[name]
    if facts.dtype in dtypes and len(facts.shape) == 1:
        return checkpoint.read_values(name)
    problems.append(f"{quoted(name)} is {facts.dtype} {quoted(list(facts.shape))}, not one row of integers")
    return None


def _marked(mask: Sequence[int], name: str | None, problems: list[str]) -> list[int] | None:
    """Return the target ids that t2d marks."""
    if not set(mask) <= {0, 1}:
        problems.append(f"{quoted(name)} holds values other than 0 and 1, so it does not mark target ids")
        return None
    return list(compress(range(len(mask)), mask))


def _decide(values: Sequence[int], marked: list[int] | None, size: int | None, draft_size: int | None) -> _Verdict:
    """Choose the reading of d2t; where both fit, only t2d can decide."""
    if not any(values):
        return _all_zero(values, marked, size, draft_size)
    offset: list[int] = list(map(operator.add, values, count()))
    absolute = values
    offset_bad, absolute_bad = _first_bad(offset, size), _first_bad(absolute, size)
    if offset_bad is None and absolute_bad is None:
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


def _all_zero(values: Sequence[int], marked: list[int] | None, size: int | None, draft_size: int | None) -> _Verdict:
    entries = len(values)
    first_ids = range(entries)
    if size == entries or (marked is not None and entries and marked == list(first_ids)):
        return _Verdict(kind="identity" if size == entries else "offset", mapped=first_ids)
    if not entries:
        return _Verdict(kind="unknown", why="d2t is empty")
    against = f"the target's vocabulary has {size}" if size is not None else "the target's vocabulary is not known"
    if size is None and draft_size is not None and draft_size != entries:
        against = f"the config says {draft_size}"
    return _Verdict(kind="zeros", why=f"all {entries} values of d2t are 0, but {against}")


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
