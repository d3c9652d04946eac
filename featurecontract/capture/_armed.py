"""``armed-PID.json``: which process has loaded the plugin, and where its pid means something."""

from __future__ import annotations

import json
import os
import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["machine", "write_armed"]


def machine() -> str:
    """Return what tells pids apart: the host's name and the pid namespace, empty where there is none to ask."""
    try:
        return f"{socket.gethostname()}/{os.stat('/proc/self/ns/pid').st_ino}"  # noqa: PTH116 - no file, a namespace
    except OSError:
        return ""


def write_armed(place: Path, runtime: str) -> None:
    """Write ``armed-PID.json`` into a directory; raises OSError where that is impossible."""
    text = json.dumps({"runtime": runtime, "machine": machine()})
    (place / f"armed-{os.getpid()}.json").write_text(text, "utf-8")
