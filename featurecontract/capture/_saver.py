"""Captures of a server that may be killed at any time: saved when it pauses, and every few seconds while it does not.

A server's processes often end without running what Python would run at exit. So a thread writes what was kept as soon
as calls pause, off the path of requests; the newest file of this process replaces the one before.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import threading
import time
from typing import TYPE_CHECKING

from featurecontract.errors import FeatureContractError

if TYPE_CHECKING:
    from pathlib import Path

    from featurecontract.capture._recording import Recording

__all__ = ["Saver"]

_LOG = logging.getLogger("featurecontract.capture")


class Saver:
    """Writes a recording into a directory whenever it changed: ``touch`` after each call, from the host's thread.

    ``idle`` seconds without a call, or ``longest`` seconds with them, bring a write. One file pair per process is kept.
    """

    def __init__(self, recording: Recording, directory: str, *, idle: float = 0.5, longest: float = 15.0) -> None:
        """Start the thread."""
        self.recording, self.directory = recording, directory
        self.idle, self.longest = idle, longest
        self._changed = threading.Event()
        self._writing = threading.Lock()
        self._last_touch = 0.0
        self._written: Path | None = None
        self._complained = False
        threading.Thread(target=self._run, name="featurecontract-capture", daemon=True).start()
        atexit.register(self.flush)
        # A child of multiprocessing leaves without atexit, but runs these.
        with contextlib.suppress(ImportError):
            from multiprocessing.util import Finalize

            Finalize(None, self.flush, exitpriority=10)

    def touch(self) -> None:
        """Say that something was kept; costs the host two assignments."""
        self._last_touch = time.monotonic()
        self._changed.set()

    def flush(self) -> None:
        """Write now what was not written yet."""
        if self._changed.is_set():
            self._changed.clear()
            self._write()

    def _run(self) -> None:
        while True:
            self._changed.wait()
            began = time.monotonic()
            while True:
                now = time.monotonic()
                quiet = now - self._last_touch
                if quiet >= self.idle or now - began >= self.longest:
                    break
                time.sleep(min(self.idle, max(0.01, self.idle - quiet)))
            self.flush()

    def _write(self) -> None:
        """Write the newest state, then remove the one before; raises nothing."""
        with self._writing:
            try:
                written = self.recording.save(self.directory)
            except (FeatureContractError, OSError, RuntimeError) as error:
                if not self._complained:
                    self._complained = True
                    _LOG.warning("the capture cannot be written: %s", error)
                return
            before, self._written = self._written, written
            if before is not None:
                for path in (before, before.with_suffix(".safetensors")):
                    with contextlib.suppress(OSError):
                        path.unlink()
