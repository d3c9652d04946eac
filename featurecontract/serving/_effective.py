"""What a server makes of its arguments: per setting what was asked for, what holds, and why."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Effective", "Origin", "Setting", "shaped"]

#: request: as asked; forced: the runtime overrides it; automatic: nobody asked; refused: the server does not start;
#: off: no drafting at all; unknown: it depends on something that is not named.
Origin = Literal["request", "forced", "automatic", "refused", "off", "unknown"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One setting: requested and effective value, and the reason where they differ or nobody asked.

    Attributes:
        requested: What the arguments ask for, or None.
        effective: What the server uses, or None where nothing says.
        origin: How it came about.
        reason: One line.
        log: What the runtime logs or raises, where it says anything.
        source: Where the rule was read.
        next_step: What to write instead.
        follows: The value follows from another setting, whose finding speaks for both.
        alternatives: The possible values where it depends on something unnamed.
    """

    requested: Any = None
    effective: Any = None
    origin: Origin = "request"
    reason: str = ""
    log: str = ""
    source: str = ""
    next_step: str = ""
    follows: bool = False
    alternatives: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Effective:
    """The draft shape that a server runs.

    ``num_steps`` counts draft steps, and ``num_draft_tokens`` the rows that the target verifies for one request,
    the sampled token's among them: a chain of n drafts has n + 1. vLLM's ``num_speculative_tokens`` is the n.

    Attributes:
        algorithm: The algorithm in the runtime's own words.
        method: The contract's method against the one that the algorithm runs.
        num_steps: Draft steps.
        top_k: Drafts for each step and branch.
        num_draft_tokens: Verified rows.
        draft_path: Where the drafter is loaded from.
        forced_acceptance: The switches that make acceptance up; ``effective`` is their text.
        lossy_acceptance: The switches that accept what exact sampling would reject.
    """

    algorithm: Setting = field(default_factory=Setting)
    method: Setting = field(default_factory=Setting)
    num_steps: Setting = field(default_factory=Setting)
    top_k: Setting = field(default_factory=Setting)
    num_draft_tokens: Setting = field(default_factory=Setting)
    draft_path: Setting = field(default_factory=Setting)
    forced_acceptance: tuple[Setting, ...] = ()
    lossy_acceptance: tuple[Setting, ...] = ()


def shaped(settings: Mapping[str, Setting], *, algorithm: Setting, method: Setting) -> Effective:
    """Return an ``Effective`` with the settings by their names; the ones that are not there say nothing."""
    return Effective(
        algorithm=algorithm,
        method=method,
        num_steps=settings.get("num_steps", Setting()),
        top_k=settings.get("top_k", Setting()),
        num_draft_tokens=settings.get("num_draft_tokens", Setting()),
        draft_path=settings.get("draft_path", Setting()),
    )
