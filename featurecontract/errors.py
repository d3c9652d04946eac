"""Errors of the package: every one names the file, the place in it, and the next step."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["FeatureContractError", "InputError", "Problem", "UsageError"]


class FeatureContractError(Exception):
    """Base of every error that this package raises on purpose."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing that is wrong with an input.

    ``place`` is a JSON path (``features[1].boundary``), a tensor name, or empty for the whole file.
    """

    place: str
    message: str
    next_step: str = ""

    def __str__(self) -> str:
        """Return the problem on one line."""
        head = f"{self.place}: {self.message}" if self.place else self.message
        return f"{head}; {self.next_step}" if self.next_step else head


class InputError(FeatureContractError):
    """A file or value from outside cannot be used; ``slug`` is the finding that stands for it.

    ``problems`` holds everything that is wrong with it, not just the first thing.
    """

    def __init__(self, source: str, problems: tuple[Problem, ...], *, slug: str = "checkpoint-unreadable") -> None:
        """Keep the source (a path or an option) and its problems."""
        self.source = source
        self.problems = problems
        self.slug = slug
        super().__init__(str(self))

    @classmethod
    def single(
        cls, source: str, message: str, *, place: str = "", next_step: str = "", slug: str = "checkpoint-unreadable"
    ) -> InputError:
        """Build the error for a single problem."""
        return cls(source, (Problem(place=place, message=message, next_step=next_step),), slug=slug)

    def __str__(self) -> str:
        """Return the source and at most five problems, on one line."""
        shown = " | ".join(str(problem) for problem in self.problems[:5])
        more = len(self.problems) - 5
        return f"{self.source}: {shown}" + (f" | and {more} more" if more > 0 else "")


class UsageError(FeatureContractError):
    """An option has a value that cannot be used; the message lists the valid ones."""
