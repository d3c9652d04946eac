"""What the host knows of the call that follows: the host says it, nothing is read from the tensors."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, TypeAlias

from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import TracebackType

    from typing_extensions import Self

__all__ = ["PER_ROW", "Facts", "current_facts", "listeners", "tag"]

Integers: TypeAlias = "Sequence[int] | Tensor | None"

#: Facts that say one thing of each row.
PER_ROW = ("token_ids", "positions", "requests", "accepted", "drafter_token_ids")


@dataclass(slots=True, kw_only=True, eq=False)
class Facts:
    """The fields of one tag as the host gave them; calls hold a reference, so later updates reach them."""

    token_ids: Integers = None
    positions: Integers = None
    requests: Sequence[object] | None = None
    phase: str = ""
    accepted: Sequence[bool] | Tensor | None = None
    cached: Mapping[object, int] | None = None
    drafter_token_ids: Integers = None
    draft_tokens: Integers = None
    rank: int | None = None
    stage: int | None = None

    def update(self, given: Mapping[str, Any]) -> None:
        """Take other values; tensors are cloned on their device, because the host may write into them later."""
        for name, value in given.items():
            if name not in _NAMES:
                raise TypeError(f"tag() has no field {name!r} (fields: {', '.join(_NAMES)})")
            setattr(self, name, value.detach().clone() if isinstance(value, Tensor) else value)


_NAMES = tuple(field.name for field in fields(Facts))
_CURRENT: ContextVar[Facts | None] = ContextVar("featurecontract_tag", default=None)
#: Told of every change of tag; recordings of graphs write its number to the device.
listeners: list[Callable[[Facts | None], None]] = []


def current_facts() -> Facts | None:
    """Return the tag that holds in this thread, None when there is none."""
    return _CURRENT.get()


def _set(facts: Facts | None) -> None:
    _CURRENT.set(facts)
    for listener in tuple(listeners):
        listener(facts)


def _begin(facts: Facts | None) -> Facts | None:
    before = _CURRENT.get()
    _set(facts)
    return before


class tag:  # noqa: N801 - used like a function and in `with`
    """Say what is known of the calls that follow in this thread, until the next tag or the end of the ``with``.

    ``with tag(token_ids=[...], phase="prefill"): engine.step()``, or ``tag(...)`` alone; ``tag()`` forgets. A tag
    replaces the one before it as a whole. What is known only afterwards is added with ``update``.

    Args:
        token_ids: The target's token of each row: a sequence, or a tensor on any device (cloned, not read).
        positions: The position of each row in its request.
        requests: The request of each row, any labels.
        phase: ``prefill``, ``chunked-prefill``, ``batch``, ``decode``, ``prefix-hit``.
        accepted: Whether each row belongs to an accepted token.
        cached: Leading positions that the runtime took from its cache, by request label.
        drafter_token_ids: The drafter's own input ids of each row.
        draft_tokens: The draft tokens produced by the call; any number.
        rank: Tensor-parallel rank, where it is not that of the process.
        stage: Pipeline stage, where it is not that of the process.

    Where the call has more rows than ``token_ids`` (or another fact of rows), the last rows count as padding and are
    not kept; where it has fewer, the facts that do not fit are left out and the call says so in ``extra``.
    """

    def __init__(self, **given: Any) -> None:
        self._facts = Facts()
        self._facts.update(given)
        self._before = _begin(self._facts if given else None)

    def update(self, **given: Any) -> None:
        """Add what became known after the call, such as ``draft_tokens`` or ``accepted``."""
        self._facts.update(given)

    def __enter__(self) -> Self:
        """Return the tag, which holds since it was made."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Return to the tag before."""
        _begin(self._before)
