"""SGLang: what its draft worker receives, captured inside of the scheduler's processes.

Two ways in, both SGLang's own:

* The entry point of the group ``sglang.srt.plugins`` (SGLang 0.5.11 and newer). It does nothing unless the environment
  variable ``FEATURECONTRACT_CAPTURE`` names a directory; then every rank writes one capture there.
* ``--forward-hooks``, for a server where plugins are switched off::

      [{"name": "featurecontract", "target_modules": ["model", "model.fc"],
        "hook_factory": "featurecontract.capture.sglang:forward_hook", "config": {"directory": "/captures"}}]

SGLang loads plugins in every process that it starts, so this module imports nothing heavy before it is needed.
"""

from __future__ import annotations

import importlib.metadata
import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["CAPTURE_VARIABLE", "HOOKS", "ROWS_VARIABLE", "forward_hook", "plugin"]

#: Names the directory that captures go to; unset, the plugin does nothing.
CAPTURE_VARIABLE = "FEATURECONTRACT_CAPTURE"
#: Rows that each tapped place keeps, by default those of ``capturing``.
ROWS_VARIABLE = "FEATURECONTRACT_CAPTURE_ROWS"

_WORKER = "sglang.srt.speculative.eagle_worker_v2.EagleDraftWorker"
#: Method of SGLang's draft worker -> function of ``_sglang_worker`` around it (SGLang 0.5.11 to 0.5.23,
#: srt/speculative/eagle_worker_v2.py).
HOOKS: Mapping[str, str] = {
    f"{_WORKER}.init_cuda_graphs": "around_start",
    f"{_WORKER}._draft_extend_for_prefill": "around_prefill",
    f"{_WORKER}._draft_extend_for_decode": "around_decode",
    f"{_WORKER}.draft": "around_draft",
}
_LOG = logging.getLogger("featurecontract.capture")


def plugin() -> None:
    """Register the hooks; called by SGLang in each of its processes. Does nothing without FEATURECONTRACT_CAPTURE.

    Each process leaves ``armed-PID.json``; a rank's first capture is written as soon as its draft worker is built,
    before any request: a server without the one has not loaded the plugin, without the other it has no draft worker.
    """
    directory = os.environ.get(CAPTURE_VARIABLE)
    if not directory:
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    from featurecontract.capture import _sglang_worker
    from featurecontract.capture._armed import write_armed

    place = Path(directory).resolve()
    place.mkdir(parents=True, exist_ok=True)
    # Says that this process has loaded the plugin, whether it holds a drafter or not.
    write_armed(place, "sglang")
    _sglang_worker.configure(str(place), version=version(), max_rows=_max_rows())
    for target, name in HOOKS.items():
        HookRegistry.register(target, getattr(_sglang_worker, name), HookType.AROUND)
    _LOG.warning("SGLang %s: capture is on, rows go to %s", version(), place)


def forward_hook(config: Mapping[str, Any]) -> Callable[[Any, Any, Any], None]:
    """Return a hook for ``--forward-hooks`` with ``target_modules`` ``["model", "model.fc"]``.

    Only prefills are captured: the hooks do not see how many tokens a verify step accepted. Serve with
    ``--disable-decode-cuda-graph --disable-prefill-cuda-graph``, because a replayed graph calls no hook.

    Args:
        config: ``directory``: where the capture goes, by default that of FEATURECONTRACT_CAPTURE.
    """
    from featurecontract.capture._sglang_fallback import Listener

    directory = config.get("directory") or os.environ.get(CAPTURE_VARIABLE) or ""
    return Listener.of_process(directory, version=version(), max_rows=_max_rows())


def version() -> str:
    """Return the installed SGLang's version, empty when it has none."""
    try:
        return importlib.metadata.version("sglang")
    except importlib.metadata.PackageNotFoundError:
        return ""


def _max_rows() -> int | None:
    given = os.environ.get(ROWS_VARIABLE, "")
    return int(given) if given.isdecimal() and int(given) > 0 else None
