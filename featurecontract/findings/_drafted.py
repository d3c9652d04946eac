"""What came of drafting a capture's rounds again."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Drafted", "DraftedStep"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftedStep:
    """Tokens of one draft step: equal, another one at a near tie, another one beyond numerics."""

    step: int
    equal: int = 0
    near_ties: int = 0
    differing: int = 0

    @property
    def compared(self) -> int:
        """All of them."""
        return self.equal + self.near_ties + self.differing


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafted:
    """One capture whose draft tokens were drafted again from its rows.

    Attributes:
        source: The capture's path.
        runtime: What the capturing process called itself.
        phases: Phases that rounds were of, in order.
        point: The capture point of the rows.
        dtype: Of the rows at capture time: it says what numerics explain.
        rounds: Rounds that were compared.
        steps: Counts, step 1 first.
        skipped: Rounds that could not be compared, by reason.
        reason: Why nothing was compared; empty where something was.
        step: The first step that differs, None where none does beyond chance.
        step_class: What that step points to.
        explained_by: The one change of the drafter that drafts the runtime's tokens, empty where there is none.
        notes: What was assumed of the drafter.
    """

    source: str = ""
    runtime: str = ""
    phases: tuple[str, ...] = ()
    point: str = ""
    dtype: str = ""
    rounds: int = 0
    steps: tuple[DraftedStep, ...] = ()
    skipped: Mapping[str, int] = field(default_factory=dict, hash=False)
    reason: str = ""
    step: int | None = None
    step_class: str = ""
    explained_by: str = ""
    notes: tuple[str, ...] = ()

    @property
    def compared(self) -> int:
        """Tokens that were compared."""
        return sum(step.compared for step in self.steps)

    @property
    def equal(self) -> int:
        """Tokens that are the same."""
        return sum(step.equal for step in self.steps)

    @property
    def near_ties(self) -> int:
        """Tokens that differ within numerics."""
        return sum(step.near_ties for step in self.steps)

    @property
    def differing(self) -> int:
        """Tokens that differ beyond numerics."""
        return sum(step.differing for step in self.steps)
