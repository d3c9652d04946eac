"""Wrapping a trainer's own functions, and putting them back."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Self

__all__ = ["Attachment"]


class Attachment:
    """What was wrapped; ``detach`` puts everything back, and leaving a ``with`` does."""

    def __init__(self, *, strict: bool = False) -> None:
        """Start with nothing wrapped."""
        self.strict = strict
        self._undo: list[Callable[[], None]] = []

    def after(self, owner: Any, name: str, then: Callable[..., None]) -> None:
        """Call ``then(result, *args, **kwargs)`` behind a function of a module or a class; the result stays."""
        original = getattr(owner, name)
        own = name in vars(owner)

        @functools.wraps(original)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            then(result, *args, **kwargs)
            return result

        setattr(owner, name, wrapper)
        self._undo.append(lambda: setattr(owner, name, original) if own else delattr(owner, name))

    def around(self, owner: Any, name: str, call: Callable[..., Any]) -> None:
        """Replace a function by ``call(original, *args, **kwargs)``."""
        original = getattr(owner, name)
        own = name in vars(owner)

        @functools.wraps(original)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return call(original, *args, **kwargs)

        setattr(owner, name, wrapper)
        self._undo.append(lambda: setattr(owner, name, original) if own else delattr(owner, name))

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
