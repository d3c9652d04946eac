"""Around SGLang's draft worker: taps on the drafter, a tag for each of its extend passes, one file per rank.

Each function here is an AROUND hook of SGLang's plugin registry: ``hook(original, worker, ...)``. Whatever fails in
ours is logged once, lets go and leaves its reason in the file; the original is always called once, as it would be
without us.
"""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from featurecontract.capture._files import save
from featurecontract.capture._record import Capture
from featurecontract.capture._recording import MAX_ROWS, capturing
from featurecontract.capture._saver import Saver
from featurecontract.capture._sglang_facts import Progress, decode_facts, prefill_facts
from featurecontract.capture._sglang_model import Passage, described, drafter_of, planes_of, planes_place
from featurecontract.capture._tag import tag
from featurecontract.capture._tap import Tap

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Worker", "around_decode", "around_draft", "around_prefill", "around_start", "configure"]

_LOG = logging.getLogger("featurecontract.capture")


class _Process:
    """What one process of SGLang was told, and the draft worker in it that is being captured."""

    directory = ""
    version = ""
    max_rows = MAX_ROWS
    worker: Worker | None = None


def configure(directory: str, *, version: str, max_rows: int | None = None) -> None:
    """Say where captures go; the next draft worker of this process that starts is the one captured."""
    if _Process.worker is not None:
        _Process.worker.flush()
    _Process.directory, _Process.version, _Process.worker = directory, version, None
    _Process.max_rows = max_rows or MAX_ROWS


class Worker:
    """A draft worker that is being captured."""

    def __init__(self, worker: Any) -> None:
        """Attach to the drafter."""
        self.worker = worker
        self.progress = Progress()
        self._features = Passage()
        self._said: tag | None = None
        self._inside = False
        self._requests: list[str] = []
        runner = worker.draft_runner
        drafter = drafter_of(runner.model)
        self.recording = capturing(
            Tap.module(self._features, point="features", name="input of the drafter"),
            Tap.module(drafter.fc, point="projection_input", name=drafter.fc_name),
            runtime=_runtime(),
            rank=int(getattr(runner, "tp_rank", 0) or 0),
            max_rows=_Process.max_rows,
            # A server has seen many prompts before the one that is asked about.
            keep="last",
            # Graphs of the draft extend are captured while the worker starts; a ring on the device is part of them.
            graphs=str(getattr(runner, "device", "cpu")).startswith("cuda"),
        )
        self.recording.notes.update(described(worker))
        self._planes = planes_place(worker)
        self._hook = drafter.body.register_forward_pre_hook(self._enters, with_kwargs=True)
        self.recording.attach()
        self._saver = Saver(self.recording, _Process.directory)

    def _enters(self, _module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Show the tap what enters the drafter; draft steps, which feed back its own hidden state, are left out."""
        try:
            batch = kwargs.get("forward_batch", args[2] if len(args) > 2 else None)  # noqa: PLR2004 - its third argument
            if batch is None or not batch.forward_mode.is_decode_or_idle():
                self._features(getattr(getattr(batch, "spec_info", None), "hidden_states", None))
        except Exception as error:  # noqa: BLE001 - runs inside of the host
            self.fail("input of the drafter", error)

    def started(self) -> None:
        """Forget what ran while the worker was built, and leave the first file."""
        self.recording.pause()
        self.recording.reset()
        self._noted()
        self._saver.flush()

    def begin(self, facts: Callable[[], dict[str, Any]]) -> None:
        """Listen to the pass that follows."""
        if self.recording.failure:
            return
        said = facts()
        self._said = tag(**said)
        self._requests = list(dict.fromkeys(said["requests"]))
        self.recording.resume()
        self._inside = True

    def say(self, **facts: Any) -> None:
        """Add what became known of the last pass."""
        if self._said is not None:
            self._said.update(**facts)

    def drafts_for(self, requests: list[str]) -> bool:
        """Whether the last pass was of these requests: others may have been prefilled or have ended in between."""
        return requests == self._requests

    def end(self) -> None:
        """Stop to listen; what was kept is written when the server pauses."""
        if self._inside:
            self.drop()
            self._noted()

    def drop(self) -> None:
        """Stop to listen."""
        self._inside = False
        self.recording.pause()
        tag()

    def fail(self, where: str, error: Exception) -> None:
        """Let go for good, and leave the reason in the file; raises nothing."""
        with contextlib.suppress(Exception):
            self.recording.fail(where, error)
            self._hook.remove()
            self._saver.touch()
            self._saver.flush()

    def flush(self) -> None:
        """Write what was kept and not written yet."""
        self._saver.flush()

    def _noted(self) -> None:
        self.recording.notes.update(planes_of(self._planes))
        self._saver.touch()


def _runtime() -> str:
    return f"sglang=={_Process.version}" if _Process.version else "sglang"


def _guarded(where: str, ours: Callable[[], Any]) -> None:
    """Run our part; the host must not notice whatever goes wrong in it."""
    try:
        ours()
    except Exception as error:  # noqa: BLE001 - runs inside of the host
        if _Process.worker is not None:
            _Process.worker.fail(where, error)
        else:
            _refuse(where, error)


def _refuse(where: str, error: Exception) -> None:
    """Leave a file that says why nothing will be captured here."""
    text = " ".join(f"{where}: {type(error).__name__}: {error}".split())[:400]
    with contextlib.suppress(Exception):
        _LOG.warning("nothing is captured: %s", text)
        save(Capture(calls=(), runtime=_runtime(), failure=text, source="sglang"), _Process.directory)


def _held(worker: Any) -> Worker | None:
    """Return the capture of this draft worker, None where it is not captured (any more)."""
    found = _Process.worker
    return found if found is not None and found.worker is worker and not found.recording.failure else None


def _run(held: Worker, original: Any, *args: Any, **kwargs: Any) -> Any:
    """Return what the original returns; when it raises, no tag is left behind."""
    try:
        return original(*args, **kwargs)
    except BaseException:
        _guarded("a failed pass", held.drop)
        raise


def around_start(original: Any, worker: Any, *args: Any, **kwargs: Any) -> Any:
    """Attach before the worker captures its graphs, and forget its warm-up afterwards."""

    def attach() -> None:
        if _Process.worker is None:
            _Process.worker = Worker(worker)

    _guarded("start", attach)
    result = original(worker, *args, **kwargs)
    held = _held(worker)
    if held is not None:
        _guarded("start", held.started)
    return result


def around_prefill(original: Any, worker: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
    """Tag the drafter's prefill: the target's tokens as they were, and the drafter's after it has shifted them."""
    held = _held(worker)
    if held is None or batch.forward_mode.is_idle():
        return original(worker, batch, *args, **kwargs)
    _guarded("prefill", lambda: held.begin(lambda: prefill_facts(batch, held.progress)))
    result = _run(held, original, worker, batch, *args, **kwargs)

    def after() -> None:
        held.say(drafter_token_ids=batch.input_ids, draft_tokens=_first_drafts(worker, result))
        held.end()

    _guarded("prefill", after)
    return result


def around_decode(original: Any, worker: Any, batch: Any, batch_result: Any, *args: Any, **kwargs: Any) -> Any:
    """Tag the drafter's pass over what a verify step left: only the first rows of each request are accepted tokens."""
    held = _held(worker)
    if held is None or batch.forward_mode.is_idle():
        return original(worker, batch, batch_result, *args, **kwargs)
    width = int(worker.speculative_num_draft_tokens)
    _guarded("decode", lambda: held.begin(lambda: decode_facts(batch, batch_result, width)))
    result = _run(held, original, worker, batch, batch_result, *args, **kwargs)

    def after() -> None:
        held.say(draft_tokens=_first_drafts(worker, batch_result.next_draft_input))
        held.end()

    _guarded("decode", after)
    return result


def around_draft(original: Any, worker: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
    """Add the draft tokens that came of the last pass, where they are a chain: ``[requests * steps]``."""
    result = original(worker, batch, *args, **kwargs)
    held = _held(worker)
    if held is not None and int(getattr(worker, "topk", 0)) == 1:

        def after() -> None:
            drafted = getattr(result[0] if isinstance(result, tuple) else result, "draft_token", None)
            width = int(worker.speculative_num_draft_tokens)
            of_the_last_pass = held.drafts_for([str(request.rid) for request in batch.reqs])
            if of_the_last_pass and isinstance(drafted, Tensor) and drafted.numel() and drafted.numel() % width == 0:
                held.say(draft_tokens=drafted.reshape(-1, width)[:, 1:].reshape(-1))

        _guarded("draft", after)
    return result


def _first_drafts(worker: Any, drafted: Any) -> Tensor | None:
    """Return the first draft token of each request, in the target's vocabulary."""
    index = getattr(drafted, "topk_index", None)
    if not isinstance(index, Tensor) or index.ndim != 2:  # noqa: PLR2004 - [requests, topk]
        return None
    first = index[:, 0]
    hot = getattr(worker, "hot_token_id", None)
    return first if hot is None else torch.as_tensor(hot).to(first.device)[first]
