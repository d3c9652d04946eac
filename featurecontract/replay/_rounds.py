"""Rounds of drafting in a capture: what stood in the drafter's cache, row by row, when a runtime drafted K tokens.

A request's history is the rows that were committed: features, the drafter's own token, position. Rows of a call at
position p replace what stood at p and behind, which is how a runtime writes over rejected drafts; where a call begins
behind the end of the history, rows are missing (a cached prefix, a dropped call), and nothing of that request can be
replayed until it starts again at 0. Nothing is guessed.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from featurecontract.capture import Call, Capture

__all__ = ["History", "Round", "Rounds", "captured_point", "rounds_of"]

#: Draft steps of one round; no runtime chains more.
MAX_STEPS = 64

GAP = "rows before them were not captured (a cached prefix, or dropped calls)"
NO_IDS = "the drafter's own input ids were not said"
NO_POSITIONS = "positions were not said, and the request was seen before"
UNEVEN = "the draft tokens do not divide among the requests of the call"
NO_ROW = "no row of the request was accepted"
BROKEN_ROWS = "positions of the request's rows are not consecutive"
OUTSIDE = "an id is outside of the target's vocabulary"
NOT_FINITE = "the captured rows hold NaN or infinity"
CUT = "rows of the call were dropped"
WIDTH = "the captured rows have another width than the drafter takes"
FACTS = "facts of the call do not fit its rows"


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One round: the row that was drafted from, and what the runtime drafted.

    Attributes:
        row: Of its history.
        drafted: Tokens of the target's vocabulary, step 1 first.
        phase: Of the call.
        request: Label of the request.
    """

    row: int
    drafted: tuple[int, ...]
    phase: str = ""
    request: str = ""


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class History:
    """Rows of one request from position 0 on, and the rounds that were drafted from them.

    Attributes:
        features: float32 ``[rows, width]``; row t is at position t.
        token_ids: The drafter's own input at each row.
        rounds: In the order of their rows.
    """

    features: Tensor
    token_ids: list[int]
    rounds: list[Round] = field(default_factory=list)


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class Rounds:
    """What of a capture can be replayed.

    Attributes:
        histories: With at least one round each.
        skipped: Rounds that cannot be compared, by reason.
        point: The capture point of the features, empty where there is none.
        dtype: Of the rows at capture time.
    """

    histories: list[History] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)
    point: str = ""
    dtype: str = ""

    @property
    def count(self) -> int:
        """Rounds in all histories."""
        return sum(len(history.rounds) for history in self.histories)


def captured_point(capture: Capture) -> str:
    """Return the point that a drafter is replayed from: ``features`` where there is one, else what enters ``fc``."""
    points = {call.point for call in capture.calls if len(call.values)}
    return next((point for point in ("features", "projection_input") if point in points), "")


def rounds_of(capture: Capture, *, width: int, vocab_size: int, phase: str | None = None) -> Rounds:
    """Return the rounds of a merged capture.

    Args:
        capture: Its calls, in order.
        width: Columns of the rows that the drafter takes.
        vocab_size: Tokens of the target; ids outside are never fed.
        phase: Keep rounds of this phase only; the rows before them count whatever theirs was.
    """
    point = captured_point(capture)
    calls = [call for call in capture.calls if call.point == point and len(call.values)]
    out = Rounds(point=point, dtype=calls[0].dtype if calls else "")
    # Two modules of one name are not one drafter: the first is the one that is replayed.
    place = calls[0].extra.get("place") if calls else None
    builder = _Builder(out, width, vocab_size, phase)
    for call in calls:
        if call.extra.get("place") == place:
            builder.take(call)
    return builder.finish()


class _Broken(Exception):  # noqa: N818 - a reason, not an error
    """Why rows of a call cannot be used; the text is the reason."""


@dataclass(slots=True)
class _Open:
    """The history of a request while calls come; ``pieces`` are its rows, in order."""

    pieces: list[Tensor] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    rounds: list[Round] = field(default_factory=list)

    def closed(self) -> History:
        return History(features=torch.cat(self.pieces), token_ids=list(self.token_ids), rounds=list(self.rounds))

    def cut(self, rows: int) -> _Open:
        """Return what stands before a row, without rounds."""
        kept, left = [], rows
        for piece in self.pieces:
            if left <= 0:
                break
            kept.append(piece[:left])
            left -= len(piece)
        return _Open(kept, self.token_ids[:rows])


class _Builder:
    """Histories by rank and request while the calls of a capture are read in order."""

    def __init__(self, out: Rounds, width: int, vocab_size: int, phase: str | None) -> None:
        self.out, self.width, self.vocab_size, self.phase = out, width, vocab_size, phase
        # None: rows are missing, so that nothing that follows can be replayed.
        self.open: dict[tuple[int, str], _Open | None] = {}

    def take(self, call: Call) -> None:
        """Add the rows and the rounds of one call."""
        requests = _requests(call)
        if requests is None:
            # Whose rows these are is not known, so no history can be trusted any more.
            self._skip(call, 1, FACTS)
            for key in self.open:
                self._break(key)
            return
        labels = list(dict.fromkeys(requests))
        drafted, reason = self._drafted(call, len(labels))
        for number, label in enumerate(labels):
            key = call.rank, label
            rows = [row for row, other in enumerate(requests) if other == label]
            try:
                self._append(key, call, rows)
            except _Broken as broken:
                if str(broken) != NO_ROW:
                    self._break(key)
                if drafted is not None or reason:
                    self._skip(call, 1, str(broken))
                continue
            if reason:
                self._skip(call, 1, reason)
            elif drafted is not None:
                self._round(key, call, drafted[number], label)

    def finish(self) -> Rounds:
        """Return what was found."""
        for key in list(self.open):
            self._close(key)
        return self.out

    def _skip(self, call: Call, count: int, reason: str) -> None:
        if self.phase is None or call.phase == self.phase:
            self.out.skipped[reason] += count

    def _drafted(self, call: Call, requests: int) -> tuple[list[tuple[int, ...]] | None, str]:
        """Return the draft tokens by request, or why there are none that can be told apart."""
        tokens = call.draft_tokens
        if not tokens:
            return None, ""
        steps, rest = divmod(len(tokens), requests)
        if rest or not 1 <= steps <= MAX_STEPS:
            return None, UNEVEN
        return [tokens[number * steps : (number + 1) * steps] for number in range(requests)], ""

    def _append(self, key: tuple[int, str], call: Call, rows: list[int]) -> None:
        """Put the accepted rows of one request behind its history; raises _Broken."""
        kept = rows if call.accepted is None else [row for row in rows if call.accepted[row]]
        if not kept:
            raise _Broken(NO_ROW)
        start = self._start(key, call, rows, kept)
        history = self.open.get(key) if start else _Open()
        if history is None or start > len(history.token_ids):
            raise _Broken(GAP)
        taken, ids = self._usable(call, kept)
        if start < len(history.token_ids) or not start:
            self._close(key)
            history = history.cut(start)
            self.open[key] = history
        history.pieces.append(taken)
        history.token_ids += ids

    def _usable(self, call: Call, kept: list[int]) -> tuple[Tensor, list[int]]:
        """Return the rows and the drafter's own ids at them; raises _Broken."""
        if call.extra.get("rows_dropped"):
            raise _Broken(CUT)
        if call.values.shape[1] != self.width:
            raise _Broken(WIDTH)
        if call.drafter_token_ids is None:
            raise _Broken(NO_IDS)
        taken = call.values[kept]
        if not bool(torch.isfinite(taken).all()):
            raise _Broken(NOT_FINITE)
        ids = [call.drafter_token_ids[row] for row in kept]
        if any(not 0 <= item < self.vocab_size for item in ids):
            raise _Broken(OUTSIDE)
        return taken, ids

    def _start(self, key: tuple[int, str], call: Call, rows: list[int], kept: list[int]) -> int:
        """Return the position of the first accepted row; raises _Broken where the others do not follow it."""
        if call.positions is not None:
            places = [call.positions[row] for row in kept]
        elif key in self.open:
            raise _Broken(NO_POSITIONS)
        else:
            places = [rows.index(row) for row in kept]
        if places[0] < 0 or any(after - before != 1 for before, after in pairwise(places)):
            raise _Broken(BROKEN_ROWS)
        return places[0]

    def _round(self, key: tuple[int, str], call: Call, drafted: tuple[int, ...], label: str) -> None:
        history = self.open[key]
        if history is None:  # pragma: no cover - its rows were just added
            return
        if any(not 0 <= token < self.vocab_size for token in drafted):
            self._skip(call, 1, OUTSIDE)
        elif self.phase is None or call.phase == self.phase:
            history.rounds.append(
                Round(row=len(history.token_ids) - 1, drafted=drafted, phase=call.phase, request=label)
            )

    def _break(self, key: tuple[int, str]) -> None:
        self._close(key)
        self.open[key] = None

    def _close(self, key: tuple[int, str]) -> None:
        history = self.open.get(key)
        if history is not None and history.rounds:
            self.out.histories.append(history.closed())
            history.rounds.clear()


def _requests(call: Call) -> tuple[str, ...] | None:
    """Return the request of each row; None where what was said of the rows does not fit them."""
    rows = len(call.values)
    said = (call.positions, call.requests, call.accepted, call.drafter_token_ids)
    if any(item is not None and len(item) != rows for item in said):
        return None
    return ("",) * rows if call.requests is None else call.requests


def chunks(histories: list[History], rows: int) -> Iterator[list[History]]:
    """Yield histories in groups of about equal length, whose padded batch has at most that many rows."""
    group: list[History] = []
    for history in sorted(histories, key=lambda item: len(item.token_ids)):
        if group and (len(group) + 1) * len(history.token_ids) > rows:
            yield group
            group = []
        group.append(history)
    if group:
        yield group
