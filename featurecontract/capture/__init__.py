"""Live capture: what really enters the projection of a drafter, taken without harm to the host.

::

    from featurecontract.capture import capturing, tag

    with capturing(drafter.fc) as recording:
        with tag(token_ids=prompt, phase="prefill"):
            engine.step()
    recording.save("captured")
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from featurecontract.capture._files import CAPTURE_VERSION, save
    from featurecontract.capture._load import load
    from featurecontract.capture._merge import merge
    from featurecontract.capture._record import POINTS, Call, Capture, CapturePoint
    from featurecontract.capture._recording import Recording, capturing
    from featurecontract.capture._tag import tag
    from featurecontract.capture._tap import Tap

__all__ = [
    "CAPTURE_VERSION",
    "POINTS",
    "Call",
    "Capture",
    "CapturePoint",
    "Recording",
    "Tap",
    "capturing",
    "load",
    "merge",
    "save",
    "tag",
]

# A server loads the plugins in this package whether they are asked for or not: nothing is imported until it is used.
_HOMES = {
    "_files": ("CAPTURE_VERSION", "save"),
    "_load": ("load",),
    "_merge": ("merge",),
    "_record": ("POINTS", "Call", "Capture", "CapturePoint"),
    "_recording": ("Recording", "capturing"),
    "_tag": ("tag",),
    "_tap": ("Tap",),
}


def __getattr__(name: str) -> Any:
    """Import a public name from its module on first use."""
    from importlib import import_module

    for module, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"featurecontract.capture.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
