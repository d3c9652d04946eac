"""The plugin, armed: workers are tapped when their caches are ready, and what they kept is saved while they serve.

One place serves both model runners: ``WorkerWrapperBase.initialize_from_config`` (v1/worker/worker_base.py) is called
once in every worker, after the models are loaded and before anything is compiled or warmed up. It is replaced when
vLLM imports it, and nothing of vLLM is imported here: some processes never need it.
"""

from __future__ import annotations

import logging
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

from featurecontract.capture._imported import when_imported

if TYPE_CHECKING:
    from types import ModuleType

__all__ = ["arm"]

_LOG = logging.getLogger("featurecontract.capture")


def arm(directory: str) -> None:
    """Prepare this process; raises nothing, because a server must come up without us as well."""
    try:
        place = Path(directory).resolve()
        place.mkdir(parents=True, exist_ok=True)
        from featurecontract.capture._armed import write_armed

        write_armed(place, "vllm")
        when_imported("vllm.v1.worker.worker_base", lambda module: _patch(module, str(place)))
    except Exception as error:  # noqa: BLE001 - whatever it is, the server goes on
        _LOG.warning("the capture into %s was not armed: %s", directory, error)


def _patch(module: ModuleType, directory: str) -> None:
    wrapper = module.WorkerWrapperBase
    original = wrapper.initialize_from_config
    if getattr(original, "_feature_capture", False):
        return

    @wraps(original)
    def initialize_from_config(self: Any, *args: Any, **kwargs: Any) -> Any:
        found = original(self, *args, **kwargs)
        _attach(self, directory)
        return found

    initialize_from_config._feature_capture = True  # type: ignore[attr-defined]  # noqa: SLF001 - a mark of our own
    wrapper.initialize_from_config = initialize_from_config


def _attach(wrapper: Any, directory: str) -> None:
    """Tap a worker, or leave a capture that says why not; raises nothing."""
    from featurecontract.capture._record import Capture

    try:
        from featurecontract.capture._saver import Saver
        from featurecontract.capture._vllm_worker import worker_capture

        # What came last is kept: a server has seen many prompts before the one that is asked about.
        capture = worker_capture(wrapper.worker, keep="last")
        facts = capture.install()
        capture.touched = Saver(capture.recording, directory).touch
        _LOG.warning("capturing what the drafter is fed into %s (%s)", directory, facts)
    except Exception as error:  # noqa: BLE001 - as above
        _LOG.warning("nothing is captured in this worker: %s", error)
        try:
            from featurecontract.capture._files import save

            save(Capture(calls=(), failure=f"not attached: {error}", runtime="vllm"), directory)
        except Exception as second:  # noqa: BLE001 - as above
            _LOG.warning("nor can that be written down: %s", second)
