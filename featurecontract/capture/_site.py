"""One tapped place: takes what passes, within bounds, and never lets the host see a fault of ours."""

from __future__ import annotations

from collections import deque
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import finalize

import torch
from torch import Tensor, nn

from featurecontract.capture._operator import forget, register
from featurecontract.capture._ring import Ring
from featurecontract.capture._tag import Facts, current_facts

if TYPE_CHECKING:
    from collections.abc import Callable

    from featurecontract.capture._ring import Clock, Keep
    from featurecontract.capture._tap import Place

__all__ = ["Bounds", "Held", "Site"]

_PLAIN = (Tensor, nn.Parameter)
#: Rings that a CUDA graph writes into. The graph holds their addresses and no reference: they must outlive it.
_REPLAYED: list[Ring] = []


class Bounds(NamedTuple):
    """How much one place keeps."""

    max_rows: int
    max_bytes: int
    keep: Keep

    def rows(self, row_bytes: int) -> int:
        """Return how many rows of that size fit."""
        return min(self.max_rows, self.max_bytes // max(1, row_bytes))


class Held(NamedTuple):
    """One call as kept, on its own device: at most ``rows`` rows of values, and what was said of it."""

    values: Tensor
    rows: int
    facts: Facts | None
    order: int


class Site:
    """Takes rows for a recording; ``take`` is the only thing that runs inside of the host.

    Attributes:
        counter: What the operator declares to mutate, on the device of the rows as far as that is known beforehand.
        number: By which the operator finds the site.
        unseen: Calls inside a CUDA graph capture that a recording without ``graphs`` could not keep.
    """

    def __init__(
        self,
        place: Place,
        bounds: Bounds,
        *,
        fail: Callable[[str, Exception], None],
        order: Callable[[], int],
        clock: Callable[[torch.device], Clock] | None,
    ) -> None:
        """Prepare; with a ``clock`` rows go into a ring, otherwise into a list of clones."""
        self.place, self.bounds = place, bounds
        self.live = True
        self.calls: deque[Held] = deque()
        self.rows = self.bytes = self.dropped = self.unseen = 0
        self.ring: Ring | None = None
        self._fail, self._order, self._clock = fail, order, clock
        self._lock = Lock()
        like = place.tap.like
        self.counter = torch.zeros(1, dtype=torch.int64, device=_device(place))
        self.number = register(self)
        finalize(self, forget, self.number)
        if clock is not None:
            # Otherwise a graph compiler takes the mutated counter for an input that moves, and gives up its graphs.
            torch._dynamo.mark_static_address(self.counter)  # noqa: SLF001 - has no public name
            if like is not None:
                self._ring_for(like.reshape(-1, like.shape[-1]))

    def take(self, value: Any) -> None:
        """Keep a copy within the bounds; raises nothing."""
        if not self.live:
            return
        try:
            self._take(value)
        except Exception as error:  # noqa: BLE001 - the host must not notice whatever goes wrong here
            self._fail(self.place.name, error)

    def _take(self, value: Any) -> None:
        if type(value) not in _PLAIN:
            raise TypeError(f"the tapped argument is {_shown_type(value)}, not a plain tensor; name another argument")
        if not value.is_floating_point():
            raise TypeError(f"the tapped argument has dtype {_dtype(value)}, not a floating one; name another argument")
        if value.ndim == 0:
            raise TypeError("the tapped argument is a scalar, not rows; name another argument")
        if value.device.type == "meta" or value.numel() == 0:
            return
        rows = value.detach().reshape(-1, value.shape[-1])
        in_graph = rows.is_cuda and torch.cuda.is_current_stream_capturing()
        with self._lock:
            if self._clock is not None:
                self._write(rows, in_graph=in_graph)
            elif in_graph:
                self.unseen += 1
            else:
                self._append(rows)

    def _append(self, rows: Tensor) -> None:
        count, row_bytes = rows.shape[0], rows.shape[1] * rows.element_size()
        if self.bounds.keep == "last":
            if count > self.bounds.rows(row_bytes):
                self.dropped += 1
                return
            while self.calls and self._room(row_bytes) < count:
                oldest = self.calls.popleft().values
                self.rows -= oldest.shape[0]
                self.bytes -= oldest.numel() * oldest.element_size()
                self.dropped += 1
        room = self._room(row_bytes)
        if room <= 0:
            self.dropped += 1
            return
        # Always a copy: the host may write into its buffer later.
        kept = rows[:room].clone(memory_format=torch.contiguous_format)
        self.calls.append(Held(kept, count, current_facts(), self._order()))
        self.rows += kept.shape[0]
        self.bytes += kept.shape[0] * row_bytes

    def _room(self, row_bytes: int) -> int:
        return min(self.bounds.max_rows - self.rows, (self.bounds.max_bytes - self.bytes) // row_bytes)

    def _write(self, rows: Tensor, *, in_graph: bool) -> None:
        ring = self.ring
        if ring is None:
            if in_graph:
                raise RuntimeError(
                    "the first call came inside a CUDA graph capture, where no ring can be made; "
                    "run the model once before the capture, or pass Tap(..., like=TENSOR)"
                )
            ring = self._ring_for(rows)
        if (ring.width, ring.dtype, ring.device) != (rows.shape[1], rows.dtype, rows.device):
            raise TypeError(
                f"rows changed from [{ring.width}] {ring.dtype} on {ring.device} "
                f"to [{rows.shape[1]}] {rows.dtype} on {rows.device}; tap each kind at a place of its own"
            )
        if in_graph and not any(ring is other for other in _REPLAYED):
            _REPLAYED.append(ring)
        ring.write(rows)

    def _ring_for(self, rows: Tensor) -> Ring:
        assert self._clock is not None  # noqa: S101 - told apart by the caller
        capacity = self.bounds.rows(rows.shape[1] * rows.element_size())
        if capacity < 1:
            raise ValueError(f"max_bytes={self.bounds.max_bytes} holds no row of {rows.shape[1]} {rows.dtype}")
        self.ring = Ring(
            capacity=capacity,
            width=rows.shape[1],
            dtype=rows.dtype,
            clock=self._clock(rows.device),
            keep=self.bounds.keep,
        )
        return self.ring

    def reset(self) -> None:
        """Forget every row."""
        with self._lock:
            self.calls.clear()
            self.rows = self.bytes = self.dropped = self.unseen = 0
            if self.ring is not None:
                self.ring.reset()

    def held(self, facts: Callable[[int], Facts | None]) -> tuple[list[Held], int]:
        """Return the kept calls and how many were not kept; ``facts`` finds a tag by its number in a ring."""
        if self.ring is None:
            with self._lock:
                return list(self.calls), self.dropped
        found, dropped = self.ring.read()
        return [Held(call.values, call.rows, facts(call.tag), call.order) for call in found], dropped


def _device(place: Place) -> torch.device:
    tensors = [place.tap.like] if place.tap.like is not None else []
    if place.module is not None:
        tensors += [*place.module.parameters(), *place.module.buffers()][:1]
    return next((item.device for item in tensors if item.device.type != "meta"), torch.device("cpu"))


def _shown_type(value: Any) -> str:
    return "missing or None" if value is None else f"a {type(value).__name__}"


def _dtype(value: Tensor) -> str:
    return str(value.dtype).removeprefix("torch.")
