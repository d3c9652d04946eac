"""What a diagnosis ends in: one sentence, what it rests on, and what would settle what is open."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

__all__ = ["CAUSES", "Cause", "Diagnosis", "Evidence"]

Cause = Literal["wiring", "flags", "runtime", "checkpoint", "drafter", "none", "undecided"]
CAUSES: tuple[Cause, ...] = get_args(Cause)


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """One kind of evidence.

    Attributes:
        name: ``static``, ``captured``, ``drafts`` or ``replay``.
        ran: Whether it was there and could be used.
        text: What it showed, or why it is missing, in one line.
    """

    name: str
    ran: bool
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """The split verdict.

    Attributes:
        cause: ``wiring``: other features, rows or states are fed than were trained with. ``flags``: norms, rope, maps
            or the server's switches. ``runtime``: it dies, or computes another drafter. ``checkpoint``: the files
            contradict the contract. ``drafter``: the interface holds and the weights draft no better. ``none``: all
            that was run holds. ``undecided``: what was run does not settle it.
        sentence: The verdict in one sentence; it begins with the cause.
        also: Further causes that were found, one sentence each.
        evidence: What was run, and what was not.
        missing: What to provide next, as options or commands to paste.
    """

    cause: Cause
    sentence: str
    also: tuple[str, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    missing: tuple[str, ...] = ()
