"""Wrapping a trainer's own functions, and putting them back."""

from __future__ import annotations

import functools
import logging
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Self

__all__ = ["Attachment"]

_LOG = logging.getLogger("featurecontract.trainers")


class Attachment:
    """What was wrapped; ``detach`` puts everything back, and leaving a ``with`` does.

    Attributes:
        failure: What went wrong first in what was called behind the trainer's functions; empty while nothing did.
    """

    def __init__(self, *, strict: bool = False) -> None:
        """Start with nothing wrapped; ``strict`` lets failures through to the trainer."""
        self.strict, self.failure = strict, ""
        self._undo: list[Callable[[], None]] = []

    def after(self, owner: Any, name: str, then: Callable[..., None]) -> None:
        """Call ``then(result, *args, **kwargs)`` behind a function of a module or a class; the result stays."""

        def call(original: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            self.quietly(then, result, *args, **kwargs)
            return result

        self.around(owner, name, call)

    def around(self, owner: Any, name: str, call: Callable[..., Any]) -> None:
        """Replace a function by ``call(original, *args, **kwargs)``."""
        original = getattr(owner, name)
        own = name in vars(owner)

        @functools.wraps(original)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return call(original, *args, **kwargs)

        setattr(owner, name, wrapper)
        self._undo.append(lambda: setattr(owner, name, original) if own else delattr(owner, name))

    def quietly(self, call: Callable[..., None], *args: Any, **kwargs: Any) -> None:
        """Call something that must not end the trainer: a failure is logged once, and raised only with ``strict``."""
        try:
            call(*args, **kwargs)
        except Exception as error:
            if self.strict:
                raise
            if not self.failure:
                self.failure = " ".join(f"{type(error).__name__}: {error}".split())[:600]
                _LOG.warning("no feature contract was written, training goes on: %s", self.failure)

    def detach(self) -> None:
        """Put everything back."""
        waiting, self._undo = self._undo, []
        for undo in reversed(waiting):
            undo()

    def __enter__(self) -> Self:
        """Return itself; it is attached already."""
        return self

    def __exit__(self, *_error: object) -> None:
        """Detach."""
        self.detach()
