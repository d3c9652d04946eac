"""A recording: taps attached for a while, and the capture that comes of it."""

from __future__ import annotations

import logging
import os
from itertools import count
from typing import TYPE_CHECKING, Any

import torch

from featurecontract._version import __version__
from featurecontract.capture._calls import call_from_held
from featurecontract.capture._files import save
from featurecontract.capture._record import Capture
from featurecontract.capture._ring import Clock
from featurecontract.capture._site import Bounds, Site
from featurecontract.capture._tag import Facts, current_facts, listeners
from featurecontract.capture._tap import all_places
from featurecontract.contract import Contract, digest
from featurecontract.contract import load as load_contract
from featurecontract.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from types import TracebackType

    from torch import nn
    from typing_extensions import Self

    from featurecontract.capture._ring import Keep
    from featurecontract.capture._tap import Tap

__all__ = ["MAX_BYTES", "MAX_ROWS", "Recording", "capturing"]

MAX_ROWS = 2048
MAX_BYTES = 128 * 2**20
_MAX_FAILURE = 400
_LOG = logging.getLogger("featurecontract.capture")


def capturing(
    *taps: Tap | nn.Module,
    contract: Contract | str | os.PathLike[str] | None = None,
    runtime: str = "",
    rank: int | None = None,
    stage: int = 0,
    max_rows: int = MAX_ROWS,
    max_bytes: int = MAX_BYTES,
    keep: Keep = "first",
    graphs: bool = False,
) -> Recording:
    """Prepare to record what enters some places, from the ``with`` that follows until it ends.

    ``with capturing(model.fc) as recording: ...``, then ``recording.capture()`` or ``recording.save(directory)``.

    Args:
        taps: Where to listen; a module stands for ``Tap.module(module)``.
        contract: What the rows will be held against: a contract, its file or its checkpoint's directory.
        runtime: ``NAME`` or ``NAME==VERSION`` of the host, as in ``--runtime``.
        rank: Tensor-parallel rank of this process; by default that of torch.distributed, else 0.
        stage: Pipeline stage of this process.
        max_rows: Rows kept per tapped place.
        max_bytes: Bytes kept per tapped place, on the device of the rows.
        keep: Beyond the bounds, ``first`` keeps what came first, ``last`` what came last.
        graphs: Write rows into a preallocated ring on the device, so that CUDA graphs replay the writing.

    Raises:
        UsageError: on entry, a tap names nothing; this is the one moment when a recording raises.
    """
    if max_rows < 1 or max_bytes < 1:
        raise UsageError(f"max_rows={max_rows} and max_bytes={max_bytes} must be at least 1")
    if keep not in ("first", "last"):
        raise UsageError(f"keep={keep!r} is neither 'first' nor 'last'")
    if not taps:
        raise UsageError("nothing to tap; pass a module or a Tap")
    return Recording(
        taps,
        contract_sha256=_contract_sha256(contract),
        runtime=runtime,
        rank=_process_rank() if rank is None else rank,
        stage=stage,
        bounds=Bounds(max_rows, max_bytes, keep),
        graphs=graphs,
    )


def _contract_sha256(contract: Contract | str | os.PathLike[str] | None) -> str:
    if contract is None:
        return ""
    return digest(contract if isinstance(contract, Contract) else load_contract(contract))


def _process_rank() -> int:
    there = torch.distributed.is_available() and torch.distributed.is_initialized()
    return torch.distributed.get_rank() if there else 0


class Recording:
    """Taps that are attached between ``attach`` and ``detach``, or inside of ``with``.

    ``failure`` is empty, or says what went wrong inside a hook: it was logged once and every tap let go. ``notes`` is
    free for what the host says of itself, and goes into ``extra`` of the capture.
    """

    def __init__(
        self,
        taps: tuple[Tap | nn.Module, ...],
        *,
        contract_sha256: str,
        runtime: str,
        rank: int,
        stage: int,
        bounds: Bounds,
        graphs: bool,
    ) -> None:
        """Keep what was asked for; nothing is attached yet."""
        self.contract_sha256, self.runtime, self.rank, self.stage = contract_sha256, runtime, rank, stage
        self.failure = ""
        self.notes: dict[str, Any] = {}
        self.graphs, self.bounds = graphs, bounds
        self.taps = taps
        self._sites: list[Site] = []
        self._detach: list[Callable[[], None]] = []
        self._clocks: dict[torch.device, Clock] = {}
        self._numbers: dict[Facts, int] = {}
        self._number = 0
        self._last_number = count(1)
        self._order = count()
        self._armed = True

    def attach(self) -> None:
        """Start to listen; raises UsageError when a tap names nothing."""
        if self._detach:
            return
        found = list(all_places(self.taps))
        clock = self._clock if self.graphs else None
        self._sites = [
            Site(place, self.bounds, fail=self.fail, order=self._order.__next__, clock=clock) for place in found
        ]
        if self.graphs:
            listeners.append(self._tagged)
            self._tagged(current_facts())
        for site in self._sites:
            self._detach.append(site.place.attach(site.number))

    def detach(self) -> None:
        """Stop to listen; what was kept stays."""
        self._set_armed(value=False)
        if self._tagged in listeners:
            listeners.remove(self._tagged)
        waiting, self._detach = self._detach, []
        # Several taps of one callable are wrapped around each other.
        for let_go in reversed(waiting):
            let_go()

    def __enter__(self) -> Self:
        """Attach."""
        self.attach()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Detach."""
        self.detach()

    def pause(self) -> None:
        """Let calls pass unseen, replayed ones too, until ``resume``."""
        self._set_armed(value=False)

    def resume(self) -> None:
        """See calls again after ``pause``."""
        if self._detach and not self.failure:
            self._set_armed(value=True)

    def reset(self) -> None:
        """Forget every row kept so far, such as those of a warm-up."""
        for site in self._sites:
            site.reset()

    def capture(self) -> Capture:
        """Return what was kept; copies it to the host, so this waits for the device."""
        kept: list[tuple[int, Site, Any]] = []
        dropped = 0
        by_number = {number: facts for facts, number in self._numbers.items()}
        for site in self._sites:
            held, lost = site.held(by_number.get)
            kept += [(call.order, site, call) for call in held]
            dropped += lost
        calls = [
            call_from_held(call, site, rank=self.rank, stage=self.stage)
            for _, site, call in sorted(kept, key=lambda item: item[0])
        ]
        unseen = sum(site.unseen for site in self._sites)
        extra: dict[str, Any] = {
            "tool": f"featurecontract {__version__}",
            "torch": torch.__version__,
            "keep": self.bounds.keep,
            "graphs": self.graphs,
            "places": [site.place.name for site in self._sites],
            "rank": self.rank,
            "stage": self.stage,
        }
        extra |= self.notes
        if unseen:
            extra["graph_calls_not_seen"] = unseen
        return Capture(
            calls=tuple(call for call in calls if call is not None),
            runtime=self.runtime,
            contract_sha256=self.contract_sha256,
            failure=self.failure,
            dropped=dropped,
            source=f"process {os.getpid()}, rank {self.rank}",
            extra=extra,
        )

    def save(self, directory: str | os.PathLike[str]) -> Path:
        """Write the capture into a directory; see ``featurecontract.capture.save``."""
        return save(self.capture(), directory)

    def fail(self, place: str, error: Exception) -> None:
        """Let go for good because something went wrong at ``place``: logged once, kept as ``failure``."""
        if self.failure:
            return
        text = " ".join(f"{place}: {type(error).__name__}: {error}".split())
        self.failure = text if len(text) <= _MAX_FAILURE else text[: _MAX_FAILURE - 3] + "..."
        try:
            _LOG.warning("the capture let go and nothing can be concluded from it: %s", self.failure)
            self.detach()
        except Exception:  # noqa: BLE001 - not even a broken log handler may reach the host
            self._set_live(value=False)

    def _set_live(self, *, value: bool) -> None:
        self._armed = value
        for site in self._sites:
            site.live = value

    def _set_armed(self, *, value: bool) -> None:
        self._set_live(value=value)
        for clock in self._clocks.values():
            if not _in_graph_capture(clock):
                clock.armed.fill_(int(value))

    def _clock(self, device: torch.device) -> Clock:
        if device not in self._clocks:
            self._clocks[device] = Clock(device, tag=self._number, armed=self._armed)
        return self._clocks[device]

    def _tagged(self, facts: Facts | None) -> None:
        """Give the tag a number and write it to the devices, in stream order; raises nothing."""
        try:
            self._number = self._number_of(facts)
            for clock in self._clocks.values():
                if not _in_graph_capture(clock):
                    clock.tag.fill_(self._number)
        except Exception as error:  # noqa: BLE001 - runs inside of the host
            self.fail("tag", error)

    def _number_of(self, facts: Facts | None) -> int:
        if facts is None:
            return 0
        if facts not in self._numbers:
            # A ring keeps at most max_rows calls: twice as many tags are enough for any use, and a bound.
            if len(self._numbers) >= 2 * self.bounds.max_rows:
                if self.bounds.keep == "first":
                    return 0
                del self._numbers[next(iter(self._numbers))]
            self._numbers[facts] = next(self._last_number)
        return self._numbers[facts]


def _in_graph_capture(clock: Clock) -> bool:
    return clock.tag.is_cuda and torch.cuda.is_current_stream_capturing()
