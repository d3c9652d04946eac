"""SGLang's ``--forward-hooks``: the same places, seen from hooks that run after a module and know of no batch.

The hooks are registered on the target's ``model`` and on the drafter's ``model`` and ``model.fc`` (SGLang 0.5.23,
srt/model_executor/hook_manager.py). The target runs first and says which tokens follow.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, ClassVar

from featurecontract.capture._recording import MAX_ROWS, capturing
from featurecontract.capture._saver import Saver
from featurecontract.capture._sglang_model import Passage
from featurecontract.capture._tag import tag
from featurecontract.capture._tap import Tap

if TYPE_CHECKING:
    from torch import nn

__all__ = ["Listener"]


class Listener:
    """The hook of one process, called as ``hook(module, inputs, output)`` after each module that it is placed on."""

    _held: ClassVar[dict[str, Listener]] = {}

    def __init__(self, directory: str, *, version: str, max_rows: int | None) -> None:
        self._features, self._projected = Passage(), Passage()
        self._expected = 0
        self.recording = capturing(
            Tap.module(self._features, point="features", name="input of the drafter"),
            Tap.module(self._projected, point="projection_input", name="model.fc"),
            runtime=f"sglang=={version}" if version else "sglang",
            max_rows=max_rows or MAX_ROWS,
            keep="last",
        )
        self.recording.notes.update({"runtime": "sglang", "through": "--forward-hooks"})
        self.recording.attach()
        self._saver = Saver(self.recording, directory)
        self._saver.touch()
        self._saver.flush()

    @classmethod
    def of_process(cls, directory: str, *, version: str, max_rows: int | None) -> Listener:
        """Return the process's listener; target and drafter each ask for a hook, and must get the same one."""
        if not directory:
            raise ValueError('--forward-hooks: config needs "directory", or set FEATURECONTRACT_CAPTURE')
        if directory not in cls._held:
            cls._held[directory] = cls(directory, version=version, max_rows=max_rows)
        return cls._held[directory]

    def __call__(self, module: nn.Module, inputs: Any, _output: Any) -> None:
        """See a module's inputs; returns None, so that the output stays as it is."""
        if self.recording.failure:
            return
        try:
            self._see(module, inputs)
        except Exception as error:  # noqa: BLE001 - runs inside of the host
            with contextlib.suppress(Exception):
                self.recording.fail("forward hook", error)
                self._saver.touch()

    def _see(self, module: nn.Module, inputs: Any) -> None:
        if len(inputs) < 3:  # noqa: PLR2004 - a body has (input_ids, positions, forward_batch, ...), fc has one input
            if self._expected:
                self._projected(inputs[0])
            return
        input_ids, positions, batch = inputs[:3]
        if not hasattr(module, "fc"):
            self._expected = input_ids.shape[0] if _is_prefill(batch) else 0
            if self._expected:
                self._said = tag(token_ids=input_ids, positions=positions, requests=_requests(batch), phase="prefill")
            return
        if self._expected and input_ids.shape[0] == self._expected:
            self._said.update(drafter_token_ids=input_ids)
            self._features(batch.spec_info.hidden_states)
            self._saver.touch()
        self._expected = 0
        tag()


def _is_prefill(batch: Any) -> bool:
    mode = batch.forward_mode
    return bool(mode.is_extend()) and not mode.is_target_verify() and not mode.is_draft_extend_v2()


def _requests(batch: Any) -> list[str] | None:
    """Return the request of each row, where the forward batch knows it."""
    names, lengths = getattr(batch, "rids", None), getattr(batch, "extend_seq_lens_cpu", None)
    if names is None or lengths is None:
        return None
    return [str(name) for name, count in zip(names, lengths, strict=True) for _ in range(int(count))]
