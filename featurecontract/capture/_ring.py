"""Rows written on the device, without the host: what a CUDA graph replays, no Python hook sees.

Every operation here is one that a CUDA graph may hold: fixed shapes, fixed addresses, no value read by the host. The
bounds are enforced on the device too: what does not fit goes to one scratch row behind the kept ones.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor

__all__ = ["Clock", "Keep", "Ring", "RingCall"]

Keep: TypeAlias = Literal["first", "last"]


class RingCall(NamedTuple):
    """One call read back: its kept rows, how many rows it had, the number of its tag, its place among all calls."""

    values: Tensor
    rows: int
    tag: int
    order: int


class Clock:
    """What all rings of a recording on one device share: whether rows are kept, the tag, the order of calls."""

    def __init__(self, device: torch.device, *, tag: int, armed: bool) -> None:
        """Allocate three counters on the device."""
        self.armed = torch.full((1,), int(armed), dtype=torch.int64, device=device)
        self.tag = torch.full((1,), tag, dtype=torch.int64, device=device)
        self.order = torch.zeros(1, dtype=torch.int64, device=device)


class Ring:
    """A preallocated buffer of rows ``[capacity, width]`` and a log of calls.

    Attributes:
        capacity: Rows kept, and calls kept (each has at least one row).
        keep: ``first`` keeps the first rows and the head of the call that passes the bound; ``last`` overwrites the
            oldest ones, call by call, and keeps nothing of a call longer than the ring.
        counter: int64 ``[1]`` on the device, rows seen since the last reset.
    """

    def __init__(self, *, capacity: int, width: int, dtype: torch.dtype, clock: Clock, keep: Keep = "first") -> None:
        """Allocate everything that will ever be needed, on the clock's device."""
        self.capacity, self.width, self.dtype, self.keep = capacity, width, dtype, keep
        self.clock = clock
        self.device = clock.order.device
        # One row more than is kept: the target of writes beyond the bounds.
        self.values = torch.empty((capacity + 1, width), dtype=dtype, device=self.device)
        self.log = self._zeros(capacity + 1, 3)
        self.counter = self._zeros(1)
        self.calls = self._zeros(1)
        self.skipped = self._zeros(1)

    def _zeros(self, *shape: int) -> Tensor:
        return torch.zeros(shape, dtype=torch.int64, device=self.device)

    def write(self, rows: Tensor) -> None:
        """Append ``[n, width]`` rows as one call; ``n`` is a shape, everything else stays on the device."""
        count = rows.shape[0]
        armed = self.clock.armed
        if self.keep == "last" and count > self.capacity:
            self.skipped.add_(armed)
            return
        held = rows[: self.capacity]
        at = torch.arange(held.shape[0], device=self.device) + self.counter
        # index_copy_ knows no float8; its bytes are as good.
        into, held = (item.view(torch.uint8) if item.element_size() == 1 else item for item in (self.values, held))
        into.index_copy_(0, self._place(at), held)
        entry = torch.cat((self.counter, self.clock.tag, self.clock.order)).unsqueeze(0)
        self.log.index_copy_(0, self._place(self.calls), entry)
        self.counter.add_(armed, alpha=count)
        self.calls.add_(armed)
        self.clock.order.add_(armed)

    def _place(self, at: Tensor) -> Tensor:
        """Return where the entries numbered ``at`` go: the scratch row for those that are not kept."""
        lost = self.clock.armed.eq(0)
        if self.keep == "last":
            at = at.remainder(self.capacity)
        else:
            lost = lost.logical_or(at.ge(self.capacity))
        return at.masked_fill(lost, self.capacity)

    def reset(self) -> None:
        """Forget every row, in stream order."""
        for counter in (self.counter, self.calls, self.skipped):
            counter.zero_()

    def read(self) -> tuple[list[RingCall], int]:
        """Return the kept calls and the number of calls not kept; waits for the device, never called by a hook."""
        seen, calls, skipped = (int(item.item()) for item in (self.counter, self.calls, self.skipped))
        values, log = self.values.cpu(), self.log.cpu().tolist()
        oldest = max(0, calls - self.capacity) if self.keep == "last" else 0
        newest = calls if self.keep == "last" else min(calls, self.capacity)
        found = []
        for number in range(oldest, newest):
            start, label, order = log[number % self.capacity]
            following = number + 1 < newest
            stop = log[(number + 1) % self.capacity][0] if following else seen
            if self.keep == "first" and not following and calls > newest:
                # The call behind the last logged one is not known, but the ring was full when it came.
                stop = max(start + 1, self.capacity)
            if self.keep == "last":
                if start >= seen - self.capacity:
                    index = torch.arange(start, stop) % self.capacity
                    found.append(RingCall(values[index], stop - start, label, order))
            elif start < self.capacity:
                found.append(RingCall(values[start : min(stop, self.capacity)].clone(), stop - start, label, order))
        return found, calls - len(found) + skipped
