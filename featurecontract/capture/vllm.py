"""vLLM: the plugin that captures in a server as it is, and the worker extension for engines that a program builds.

``vllm.general_plugins`` loads ``register`` in every process of every server. It reads one environment variable and
returns, unless ``FEATURECONTRACT_CAPTURE`` names a directory: then each worker that holds a drafter is tapped when its
caches are ready, and its capture goes into that directory. vLLM is used as ``import vllm``, whatever the distribution
is called. See docs/vllm.md.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from featurecontract.capture._vllm_worker import WorkerCapture

__all__ = ["VARIABLE", "CaptureExtension", "register"]

#: The directory that captures go into; without it nothing happens.
VARIABLE = "FEATURECONTRACT_CAPTURE"


def register() -> None:
    """Arm the capture in this process if the environment asks for it; the entry point of ``vllm.general_plugins``."""
    directory = os.environ.get(VARIABLE)
    if directory:
        from featurecontract.capture._vllm_plugin import arm

        arm(directory)


class CaptureExtension:
    """Methods of every vLLM worker, called by name: ``llm.collective_rpc("feature_capture_save", args=(DIR,))``.

    ``LLM(..., worker_extension_cls="featurecontract.capture.vllm.CaptureExtension")``. All take and return plain data,
    so they work with the engine in this process and in others.
    """

    if TYPE_CHECKING:
        model_runner: Any

    def feature_capture_install(self, *, contract_sha256: str = "", max_rows: int = 2048) -> dict[str, Any]:
        """Start to capture in this worker; return what is known of it (version, runner, method, layer ids)."""
        from featurecontract.capture._vllm_worker import worker_capture

        return worker_capture(self, contract_sha256=contract_sha256, max_rows=max_rows).install()

    def feature_capture_pause(self) -> None:
        """Let calls pass unseen until ``feature_capture_resume``."""
        self._feature_capture().pause()

    def feature_capture_resume(self) -> None:
        """See calls again."""
        self._feature_capture().resume()

    def feature_capture_reset(self, phase: str = "") -> None:
        """Forget every row kept so far; tag the calls that follow with a phase, where it is known beforehand."""
        found = self._feature_capture()
        found.recording.reset()
        found.phase = phase

    def feature_capture_save(self, directory: str) -> str:
        """Write what was kept into a directory; return the path of the capture."""
        return str(self._feature_capture().save(directory))

    def feature_capture_remove(self) -> None:
        """Let go of every tap; what was kept stays."""
        self._feature_capture().remove()

    def feature_capture_set_layers(self, layers: list[int]) -> list[int]:
        """Make the target hand out other layers, as a fault for tests; return what it says it hands out now."""
        return self._feature_capture().set_layers(layers)

    def feature_capture_force(self, token_ids: list[int], start: int, accepted: list[int]) -> None:
        """Make a single request emit given tokens, for tests of decoding; see ``_vllm_force``. No ids end it."""
        self._feature_capture().force(token_ids, start=start, accepted=accepted)

    def _feature_capture(self) -> WorkerCapture:
        from featurecontract.capture._vllm_worker import worker_capture

        return worker_capture(self)
