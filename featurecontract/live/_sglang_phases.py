"""The phases of a live run in SGLang: which prompts go through the engine, and which captured calls are theirs."""

from __future__ import annotations

import contextlib
import json
import os
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from featurecontract.capture.sglang import CAPTURE_VARIABLE
from featurecontract.errors import FeatureContractError
from featurecontract.live._engine import CannotRun
from featurecontract.live._job import prefix_lengths
from featurecontract.live._sglang_plugin import FORCED

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from featurecontract.capture import Call, Capture
    from featurecontract.live._engine import Phase
    from featurecontract.live._job import Job

__all__ = ["ACCEPTED", "PHASES", "SglangRun"]

#: Drafts (of three) that each of the eight decode steps accepts: all, none and some.
ACCEPTED = (3, 0, 2, 3, 1, 3, 3, 2)
_WAIT = 60.0
_SOON = 10.0
_TRIES = 3
_FEWEST = 16


class SglangRun:
    """A running engine, and the captures that its ranks leave."""

    def __init__(self, job: Job, settings: Mapping[str, Any], captured: Path) -> None:
        """Start the engine."""
        import sglang

        # A folder for each engine: the one before may still be writing its last file.
        self.job, self.captured = job, captured / str(len(list(captured.iterdir())))
        self.captured.mkdir()
        os.environ[CAPTURE_VARIABLE] = str(self.captured)
        self.engine = sglang.Engine(**settings)
        #: Whether draft steps behind the first can be run: on a CPU not with every kind of attention.
        self.chains = settings.get("attention_backend") != "torch_native"
        self.facts = ""

    def close(self) -> None:
        """End the engine and its processes."""
        with contextlib.suppress(Exception):
            self.engine.shutdown()

    def check_plugin(self) -> None:
        """Make sure that every phase can rely on the plugin: its first file comes before any request.

        Raises:
            CannotRun: there is none, or it says that nothing will be captured.
        """
        # Not by `load`, which refuses captures that hold no call yet.
        found = [json.loads(path.read_text("utf-8")) for path in self.captured.glob("capture-*.json")]
        if not found:
            raise CannotRun(
                "SGLang started and the capture plugin left no file: it was not loaded, or this release builds its "
                "draft worker elsewhere; look for featurecontract in engine.log"
            )
        failure = next((item["failure"] for item in found if item["failure"]), "")
        if failure:
            raise CannotRun(f"the capture plugin let go: {failure}")
        said = found[0]["extra"]
        self.facts = (
            f"ids {said.get('resolved_ids')} read from the drafter, layers_to_capture {said.get('layers_to_capture')}"
        )

    def flush(self) -> None:
        """Empty the prefix cache; the engine refuses while a request is just ending."""
        limit = time.monotonic() + _WAIT
        while time.monotonic() < limit:
            if getattr(self.engine.flush_cache(), "success", True):
                return
            time.sleep(0.2)
        raise CannotRun("the engine did not empty its prefix cache")

    def send(self, prompts: Mapping[str, Sequence[int]], *, tokens: int = 1) -> list[list[int]]:
        """Send prompts, by request id, together; return what was generated, greedily."""
        answers = self.engine.generate(
            input_ids=[list(ids) for ids in prompts.values()],
            sampling_params={"temperature": 0.0, "max_new_tokens": tokens, "ignore_eos": True},
            rid=list(prompts),
        )
        return [[int(item) for item in answer["output_ids"]] for answer in answers]

    def collect(
        self, running: Phase, label: str, ends: Mapping[str, int], *, prefills_only: bool = False
    ) -> list[Call]:
        """Write the calls of some requests into the phase's folder and return those of the first rank.

        Args:
            running: The phase.
            label: What the calls are called in the capture.
            ends: Request id -> the last position that must have been captured.
            prefills_only: Leave out rows of tokens that were generated: they are nobody's probe.

        Raises:
            CannotRun: they did not come.
        """
        from featurecontract.capture import save

        def complete(captures: tuple[Capture, ...]) -> bool:
            return any(item.failure for item in captures) or all(_reached(item, ends) for item in captures)

        def whole(captures: tuple[Capture, ...]) -> bool:
            return all(_drafted(item, ends) for item in captures)

        found = self._poll(complete, whole)
        if not found:
            raise CannotRun("the drafter was not fed all rows of the prompts, or the plugin did not see them")
        for item in found:
            calls = tuple(
                replace(call, phase=label)
                for call in _calls_of(item, ends)
                if not prefills_only or call.accepted is None
            )
            save(replace(item, calls=calls, contract_sha256=self.job.contract_sha256), running.folder)
        return _calls_of(found[0], ends)

    def _poll(
        self, good: Callable[[tuple[Capture, ...]], bool], whole: Callable[[tuple[Capture, ...]], bool]
    ) -> tuple[Capture, ...]:
        """Return captures that are good, and whole too where that comes soon: what was drafted is said last."""
        limit = time.monotonic() + _WAIT
        while time.monotonic() < limit:
            found = self._load()
            if found and good(found):
                limit = min(limit, time.monotonic() + _SOON)
                if whole(found):
                    return found
            time.sleep(0.2)
        found = self._load()
        return found if found and good(found) else ()

    def _load(self) -> tuple[Capture, ...]:
        from featurecontract.capture import load

        try:
            return load(self.captured)
        except FeatureContractError:
            # No calls yet, or a file was replaced while it was read.
            return ()


def _calls_of(capture: Capture, wanted: Mapping[str, int]) -> list[Call]:
    return [call for call in capture.calls if call.requests and not wanted.keys().isdisjoint(call.requests)]


def _reached(capture: Capture, ends: Mapping[str, int]) -> bool:
    """Whether the last rows that were asked for are in the capture."""
    last: dict[str, int] = {}
    for call in capture.calls:
        for request, place in zip(call.requests or (), call.positions or (), strict=False):
            last[request] = max(place, last.get(request, -1))
    return all(last.get(request, -1) >= place for request, place in ends.items())


def _drafted(capture: Capture, ends: Mapping[str, int]) -> bool:
    """Whether the last call of each request says what was drafted after it."""
    last: dict[str, Call] = {}
    for call in capture.calls:
        last |= dict.fromkeys(call.requests or (), call)
    return all(last[request].draft_tokens is not None for request in ends if request in last)


def _prefill(run: SglangRun, running: Phase) -> None:
    ids = run.job.token_ids
    run.flush()
    run.send({"fc-prefill-0": run.job.others[0]})
    run.send({"fc-prefill-1": ids})
    run.collect(running, "prefill", dict.fromkeys(("fc-prefill-0", "fc-prefill-1"), len(ids) - 1))


def _chunked(run: SglangRun, running: Phase) -> None:
    ids = run.job.token_ids
    run.flush()
    run.send({"fc-chunked-0": run.job.others[0]})
    run.send({"fc-chunked-1": ids})
    calls = run.collect(running, "chunked-prefill", dict.fromkeys(("fc-chunked-0", "fc-chunked-1"), len(ids) - 1))
    chunks = [
        len(call.values) for call in calls if call.point == "features" and "fc-chunked-1" in (call.requests or ())
    ]
    if len(chunks) < 2:  # noqa: PLR2004 - one chunk is no chunking
        raise CannotRun("the prompt was not divided; chunked_prefill_size is larger than the probe")
    running.note(f"chunks of {', '.join(map(str, chunks))} rows")


def _batch(run: SglangRun, running: Phase) -> None:
    first, second, third = run.job.others
    for attempt in range(_TRIES):
        names = [f"fc-batch{attempt}-{number}" for number in range(4)]
        run.flush()
        run.send(dict(zip(names, (first, run.job.token_ids, second, third), strict=True)))
        calls = run.collect(running, "batch", dict.fromkeys(names, len(first) - 1))
        together = max(len(set(call.requests or ())) for call in calls if names[1] in (call.requests or ()))
        if together > 1:
            running.note(f"the probe was prefilled together with {together - 1} other prompts")
            return
        # The scheduler began before the others had come: once more.
        for path in running.folder.glob("capture-*"):
            path.unlink()
    raise CannotRun("the scheduler did not put the four prompts into one batch")


def _prefix_hit(run: SglangRun, running: Phase) -> None:
    ids, other = run.job.token_ids, run.job.others[0]
    half = len(ids) // 2
    run.flush()
    run.send({"fc-warm-0": [*ids[:half], *other[half:]]})
    run.send({"fc-hit-0": other, "fc-hit-1": ids})
    calls = run.collect(running, "prefix-hit", dict.fromkeys(("fc-hit-0", "fc-hit-1"), len(ids) - 1))
    cached = max((call.cached.get("fc-hit-1", 0) for call in calls), default=0)
    if not cached:
        raise CannotRun("no row came from the prefix cache: it is off, or its pages are longer than the probe")
    if len(ids) - cached < _FEWEST:
        raise CannotRun(f"{len(ids) - cached} rows are left behind the cached prefix, too few to compare")
    running.note(f"the first {cached} rows came from the prefix cache")


def _decode(run: SglangRun, running: Phase) -> None:
    rows = len(run.job.token_ids)
    emitted = 1 + len(ACCEPTED) + sum(ACCEPTED)
    start = rows - emitted
    if start < 1:
        raise CannotRun(f"a probe of {rows} rows is too short for {emitted} decoded ones")
    for name, ids in zip(FORCED, (run.job.others[0], run.job.token_ids), strict=True):
        run.flush()
        got = run.send({name: ids[:start]}, tokens=emitted)[0]
        if tuple(got) != tuple(ids[start:]):
            raise CannotRun("the engine did not emit the probe's tokens; its sampler is not where it was expected")
    calls = run.collect(running, "decode", dict.fromkeys(FORCED, rows - 2))
    steps = [
        call for call in calls if call.accepted and call.point == "features" and FORCED[1] in (call.requests or ())
    ]
    taken = [sum(call.accepted or ()) for call in steps]
    running.note(f"{len(steps)} decode steps with {', '.join(map(str, taken))} accepted rows of {len(steps[0].values)}")


def _drafts(run: SglangRun, running: Phase) -> None:
    """Draft from many positions: every captured row is one of the probe's, every prefix ends in a round of its own."""
    lengths = prefix_lengths(len(run.job.token_ids))
    prompts = {"fc-drafts-other": run.job.others[0]}
    prompts |= {f"fc-drafts-{length}-of": run.job.token_ids[:length] for length in lengths}
    for name, ids in prompts.items():
        run.flush()
        # The chain of a prefill is drafted only when another token is wanted.
        run.send({name: ids}, tokens=2 if run.chains else 1)
    # With a chain, the first row behind the prompt is fed only after it was drafted.
    ends = {name: len(ids) - (not run.chains) for name, ids in prompts.items()}
    run.collect(running, "drafts", ends, prefills_only=True)
    running.note(f"prefixes of {', '.join(map(str, lengths))} tokens")
    if not run.chains:
        running.note("one draft step each: this attention has no draft steps behind the first")


#: Phase -> what runs it.
PHASES: Mapping[str, Callable[[SglangRun, Phase], None]] = {
    "prefill": _prefill,
    "chunked": _chunked,
    "batch": _batch,
    "prefix-hit": _prefix_hit,
    "decode": _decode,
    "drafts": _drafts,
}
