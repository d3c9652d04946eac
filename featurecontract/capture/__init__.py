"""Live capture: what really enters the projection of a drafter, taken without harm to the host.

::

    from featurecontract.capture import capturing, tag

    with capturing(drafter.fc) as recording:
        with tag(token_ids=prompt, phase="prefill"):
            engine.step()
    recording.save("captured")
"""

from __future__ import annotations

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
