"""Sequences to replay on: tokens, named planes of the target, and what the target itself answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol

from featurecontract.errors import InputError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from torch import Tensor

    from featurecontract.contract import Wiring
    from featurecontract.states import Sample, StateSet

__all__ = [
    "Answers",
    "Logits",
    "PlaneName",
    "RecordedTexts",
    "Teacher",
    "Text",
    "Texts",
    "batches",
    "distinct",
    "names_of",
    "wiring_planes",
]


class PlaneName(NamedTuple):
    """A plane of the target: h[boundary], or norm(h[boundary]) for ``final_norm``."""

    boundary: int
    state: str = "residual"

    def __str__(self) -> str:
        """Return ``embedding``, ``h[3]`` or ``norm(h[30])``."""
        name = f"h[{self.boundary}]" if self.boundary else "embedding"
        return name if self.state == "residual" else f"norm({name})"


#: ``(last, last_state, token_ids)`` -> the target's logits of these tokens (None for all) after each row, or None.
Logits = Callable[["Tensor", str, "Tensor | None"], "Tensor | None"]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Teacher:
    """Makes the target's logits from its last state, only when somebody asks: they are as wide as its vocabulary."""

    logits: Logits
    last: Tensor
    last_state: str

    def __call__(self, token_ids: Tensor | None) -> Tensor | None:
        """Return float32 ``[tokens, ids]`` for these target tokens, None for all; None where nobody knows them."""
        return self.logits(self.last, self.last_state, token_ids)

    def cut(self, rows: slice) -> Teacher:
        """Return the teacher of a part of the rows."""
        return Teacher(self.logits, self.last[rows], self.last_state)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Text:
    """One sequence; row t of every tensor belongs to token t.

    Attributes:
        token_ids: int64 ``[tokens]``.
        planes: ``[tokens, H]`` each.
        answers: int64 ``[tokens]``, the target's own greedy choice after each token; None where nobody knows it.
        counted: bool ``[tokens]``, tokens whose prediction counts; None for all.
        source: For messages.
        teacher: Makes the target's logits; None where nobody can.
    """

    token_ids: Tensor
    planes: Mapping[PlaneName, Tensor]
    answers: Tensor | None = None
    counted: Tensor | None = None
    source: str = ""
    teacher: Teacher | None = None

    def features(self, names: Sequence[PlaneName]) -> Tensor:
        """Return ``[tokens, width]``: these planes side by side; InputError for one that is not finite, or zero."""
        import torch

        self.check(names)
        return torch.cat([self.planes[name] for name in names], dim=-1)

    def check(self, names: Sequence[PlaneName]) -> None:
        """Raise InputError for one of these planes that holds NaN or infinity, or nothing but zeros.

        Only planes that are used are looked at: the others of a mapped file are never read.
        """
        for name in names:
            plane = self.planes[name]
            if not bool(plane.isfinite().all()):
                what = "holds NaN or infinity: one such row spoils every row that attends to it"
            elif len(plane) > 1 and not bool(plane.any()):
                what = "is zero in every row: it was never written"
            else:
                continue
            raise InputError.single(
                self.source,
                f"{name} {what}",
                next_step="record the states again; `featurecontract audit-data DIR CKPT` checks them",
            )

    def cut(self, rows: slice) -> Text:
        """Return a part as a sequence of its own."""
        return Text(
            self.token_ids[rows],
            {name: plane[rows] for name, plane in self.planes.items()},
            None if self.answers is None else self.answers[rows],
            None if self.counted is None else self.counted[rows],
            self.source,
            None if self.teacher is None else self.teacher.cut(rows),
        )


class Texts(Protocol):
    """Sequences that can be read again; ``planes`` are the names that each of them holds."""

    planes: tuple[PlaneName, ...]

    def __len__(self) -> int:
        """Return the number of sequences."""
        ...

    def __getitem__(self, index: int) -> Text:
        """Return one sequence; IndexError beyond the last."""
        ...

    def __iter__(self) -> Iterator[Text]:
        """Yield one sequence at a time."""
        ...


#: ``(last, last_state)`` -> the target's greedy choice after each row, or None for a state that it cannot read.
Answers = Callable[["Tensor", str], "Tensor | None"]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class RecordedTexts:
    """Stored hidden states, streamed from disk one sequence at a time.

    Attributes:
        states: The files.
        planes: Names of the planes in each file, in order, the one beside them (``last``) included where it is named.
        hidden_size: Width of a plane.
        answers: Makes the target's choices from ``last``; None where the target's head is not at hand.
        logits: Makes the target's logits from ``last``, likewise.
        vocab_size: Tokens of the target: an id beyond it means another target.
    """

    states: StateSet
    planes: tuple[PlaneName, ...]
    hidden_size: int
    answers: Answers | None = None
    logits: Logits | None = None
    vocab_size: int | None = None
    limit: int | None = field(default=None)

    def __len__(self) -> int:
        """Return the number of files that are read."""
        return len(self.states) if self.limit is None else min(self.limit, len(self.states))

    def __iter__(self) -> Iterator[Text]:
        """Yield every sequence; a file that does not fit the ones before it raises InputError."""
        for index in range(len(self)):
            yield self[index]

    def __getitem__(self, index: int) -> Text:
        """Read one sequence."""
        if not 0 <= index < len(self):
            raise IndexError(index)
        return self.text(self.states.read(index))

    def text(self, sample: Sample) -> Text:
        """Name the planes of one sample.

        Raises:
            InputError: it has another number of planes, another width, or tokens that the target does not have.
        """
        found = [*sample.planes(self.hidden_size)]
        if len(self.planes) == len(found) + 1 and sample.last is not None:
            found.append(sample.last)
        if len(found) != len(self.planes):
            raise InputError.single(
                sample.source,
                f"holds {len(found)} planes, {len(self.planes)} are named ({', '.join(map(str, self.planes))})",
                next_step="name every plane of the files, in order, with --planes",
                slug="width",
            )
        self._check(sample, found)
        answers: Tensor | None = None
        teacher: Teacher | None = None
        if self.answers is not None and sample.last is not None:
            answers = self.answers(sample.last, sample.last_state)
        if self.logits is not None and sample.last is not None:
            teacher = Teacher(self.logits, sample.last, sample.last_state)
        planes = dict(zip(self.planes, found, strict=True))
        return Text(sample.token_ids, planes, answers, sample.loss_mask, sample.source, teacher)

    def _check(self, sample: Sample, found: Sequence[Tensor]) -> None:
        """Raise InputError for planes or tokens that no such target gives."""
        for name, plane in zip(self.planes, found, strict=True):
            if plane.shape[-1] != self.hidden_size:
                raise InputError.single(
                    sample.source,
                    f"{name} is {plane.shape[-1]} wide, not {self.hidden_size}: another target's states",
                    next_step="record the states of the target that the drafter was trained for",
                    slug="target-mismatch",
                )
        top = int(sample.token_ids.max()) if len(sample) else 0
        if len(sample) and int(sample.token_ids.min()) < 0:
            raise InputError.single(
                sample.source,
                f"token id {int(sample.token_ids.min())} is negative: no vocabulary has it",
                next_step="record the states again, with the ids that the target read",
            )
        if self.vocab_size is not None and top >= self.vocab_size:
            raise InputError.single(
                sample.source,
                f"token id {top} does not exist in a vocabulary of {self.vocab_size}: another target's states",
                next_step="record the states of the target that the drafter was trained for",
                slug="target-mismatch",
            )


def names_of(
    states: StateSet,
    *,
    hidden_size: int,
    given: Wiring | None = None,
    declared: Wiring | None = None,
    num_hidden_layers: int | None = None,
) -> tuple[PlaneName, ...]:
    """Name the planes of stored states, which carry no names of their own.

    ``given`` (``--planes``) wins; else the contract's features where the files hold as many. The plane beside them is
    h[L] or norm(h[L]) where the format says which.

    Raises:
        UsageError: the files hold another number of planes than are named.
    """
    sample = states.read(0)
    count = len(sample.planes(hidden_size))
    wanted = given if given is not None else declared
    if wanted is None:
        raise UsageError("which planes of the target the states hold is not known: name them with --planes")
    names = wiring_planes(wanted)
    if len(names) == count + 1 and sample.last is not None and given is not None:
        return _distinct(names)
    if len(names) != count:
        where = "--planes names" if given is not None else "the contract has"
        raise UsageError(
            f"{states.path}: holds {count} planes for the projection, {where} {len(names)}; "
            "name every plane, in the order of the files, with --planes"
        )
    if sample.last is not None and num_hidden_layers is not None and sample.last_state != "unknown":
        last = PlaneName(num_hidden_layers, sample.last_state)
        if last not in names:
            names = (*names, last)
    return _distinct(names)


def _distinct(names: tuple[PlaneName, ...]) -> tuple[PlaneName, ...]:
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise UsageError(f"two recorded planes are named {', '.join(sorted(map(str, twice)))}; each has one name")
    return names


def wiring_planes(wiring: Wiring) -> tuple[PlaneName, ...]:
    """Return the plane of every slot.

    Raises:
        UsageError: a slot is fed by something that no target records, or in a state that replay does not make.
    """
    out = []
    for feature in wiring.features:
        plain = feature.scale == 1.0 and feature.row_offset == 0 and feature.streams == 1
        if feature.source != "target" or feature.boundary is None or not plain:
            raise UsageError(f"slot {feature.slot} is {feature}: replay feeds plain boundaries and the final norm only")
        if feature.state not in ("residual", "final_norm"):
            raise UsageError(f"slot {feature.slot} is {feature}: replay feeds plain boundaries and the final norm only")
        out.append(PlaneName(feature.boundary, feature.state))
    return tuple(out)


def distinct(texts: Iterable[Text], *, repeated: Callable[[Text], None] | None = None) -> Iterator[Text]:
    """Yield every sequence of tokens once: what repeats one is no further sample, and would narrow an interval.

    Args:
        texts: Sequences.
        repeated: Called with each that is left out.
    """
    import hashlib

    seen: set[bytes] = set()
    for text in texts:
        digest = hashlib.sha256(repr(text.token_ids.tolist()).encode()).digest()
        if digest not in seen:
            seen.add(digest)
            yield text
        elif repeated is not None:
            repeated(text)


def batches(texts: Iterable[Text], *, rows: int) -> Iterator[list[Text]]:
    """Group sequences so that a padded batch has at most ``rows`` rows (one sequence may have more)."""
    group: list[Text] = []
    longest = 0
    for text in texts:
        longest = max(longest, len(text.token_ids))
        if group and longest * (len(group) + 1) > rows:
            yield group
            group, longest = [], len(text.token_ids)
        group.append(text)
    if group:
        yield group
