"""The caller's side of a live run: one process for the engine, bounded in time, and what it left behind."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from featurecontract.contract import digest
from featurecontract.errors import UsageError
from featurecontract.live._engine import PREFIX, one_line
from featurecontract.live._job import PHASE_FILE, PROBLEM_FILE, Job, other_prompts, write_job
from featurecontract.live._phases import PhaseResult, engine_module, phases

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from featurecontract.contract import Contract
    from featurecontract.probe._data import ProbeData

__all__ = ["TIMEOUT", "drain", "ended_by_signals", "package_environment", "run_live", "stop_group", "tail"]

#: Seconds for a whole run; the first engine on a machine compiles.
TIMEOUT = 1800.0
_TAIL = 5
_ERROR = re.compile(r"\b\w*(Error|Exception|Exit): ")
_MAX_LOG = 64 * 2**10
_GRACE = 10.0


def run_live(
    name: str,
    checkpoint: str | os.PathLike[str],
    target: str | os.PathLike[str],
    contract: Contract,
    *,
    probe: ProbeData,
    out: str | os.PathLike[str],
    python: str = sys.executable,
    options: Mapping[str, Any] | None = None,
    only: Sequence[str] = (),
    timeout: float = TIMEOUT,
    progress: Callable[[str], None] | None = None,
) -> list[PhaseResult]:
    """Run the probe through a real engine, phase by phase, with capture on.

    Args:
        name: The runtime, one of ``LIVE_RUNTIMES``.
        checkpoint: The drafter's directory.
        target: The target's directory.
        contract: The contract that the captures will be held against.
        probe: Its probe, for the token ids.
        out: An empty or new directory for captures and the engine's log (``engine.log``).
        python: The interpreter that has the runtime installed.
        options: Settings of the engine that win over the safe ones.
        only: Phases to run, by default all.
        timeout: Seconds for the whole run.
        progress: Called with one line per step.

    Returns:
        One result for each phase; what could not be run has a ``problem``, and nothing is raised for it.

    Raises:
        UsageError: the runtime or a phase is not known, or there is no target directory.
    """
    wanted = tuple(only) or phases(name)
    unknown = [item for item in wanted if item not in phases(name)]
    if unknown:
        raise UsageError(f"{name} has no phase {unknown[0]!r} (phases: {', '.join(phases(name))})")
    module = engine_module(name)
    if not Path(target).is_dir():
        raise UsageError(f"--target {os.fspath(target)}: a live run needs the target's directory, with its weights")
    place = Path(out).resolve()
    place.mkdir(parents=True, exist_ok=True)
    drafter = Path(checkpoint).resolve()
    ids = tuple(int(item) for item in probe.token_ids.tolist())
    job = Job(
        runtime=name,
        checkpoint=str(drafter if drafter.is_dir() else drafter.parent),
        target=str(Path(target).resolve()),
        out=str(place),
        phases=wanted,
        token_ids=ids,
        method=contract.method,
        others=other_prompts(ids),
        contract_sha256=digest(contract),
        options=dict(options or {}),
    )
    write_job(job, place / "job.json")
    (place / PROBLEM_FILE).unlink(missing_ok=True)
    ended = _run([python, "-m", module, str(place / "job.json")], place / "engine.log", timeout, progress)
    problem = _problem(place) or ended
    return [_result(job, item, problem) for item in wanted]


def _run(command: list[str], log: Path, timeout: float, progress: Callable[[str], None] | None) -> str:
    """Run the engine and return why it did not end well, empty when it did."""
    try:
        process = subprocess.Popen(  # noqa: S603 - the interpreter that the caller named, this package's own module
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=package_environment(),
            start_new_session=True,
        )
    except OSError as error:
        return one_line(f"{command[0]} cannot be started ({error.strerror}); name a Python that has the runtime")
    reader = threading.Thread(target=drain, args=(process, log, progress), daemon=True)
    reader.start()
    try:
        status = process.wait(timeout)
    except subprocess.TimeoutExpired:
        return one_line(f"the engine did not end within {timeout:.0f} s and was stopped; its last words: {tail(log)}")
    except BaseException:
        stop_group(process)
        raise
    finally:
        stop_group(process)
        reader.join(_GRACE)
    if status == 0:
        return ""
    how = f"status {status}" if status > 0 else f"signal {-status}"
    return one_line(f"the engine died with {how}; its last words: {tail(log)}")


def package_environment() -> dict[str, str]:
    """Return an environment in which another interpreter imports the package that this one does."""
    root = str(Path(__file__).resolve().parents[2])
    before = os.environ.get("PYTHONPATH")
    return os.environ | {"PYTHONUNBUFFERED": "1", "PYTHONPATH": os.pathsep.join([root, *([before] if before else [])])}


@contextlib.contextmanager
def ended_by_signals() -> Iterator[None]:
    """Turn SIGTERM and SIGHUP into SystemExit(128 + number) inside of this, so that what was started is stopped.

    Only in the main thread, where handlers can be set; a signal that is ignored (nohup) stays ignored.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before: dict[int, Any] = {}

    def end(number: int, _frame: object) -> None:
        # A second one must not cut the stopping short.
        for item in before:
            signal.signal(item, signal.SIG_IGN)
        raise SystemExit(128 + number)

    for caught in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(caught) == signal.SIG_DFL:
            before[caught] = signal.signal(caught, end)
    try:
        yield
    finally:
        for item, handler in before.items():
            signal.signal(item, handler)


def stop_group(process: subprocess.Popen[bytes]) -> None:
    """End a process and all that it started: asked first, then killed."""
    for number, grace in ((signal.SIGTERM, _GRACE), (signal.SIGKILL, _GRACE)):
        with contextlib.suppress(OSError):
            os.killpg(process.pid, number)
        limit = time.monotonic() + grace
        while time.monotonic() < limit:
            process.poll()
            try:
                os.killpg(process.pid, 0)
            except OSError:
                return
            time.sleep(0.05)


def drain(process: subprocess.Popen[bytes], log: Path, progress: Callable[[str], None] | None) -> None:
    """Write the engine's output to its log, and hand on the lines that are for the user."""
    assert process.stdout is not None  # noqa: S101 - asked for above
    with contextlib.suppress(OSError, ValueError), log.open("wb") as stream:
        for raw in process.stdout:
            stream.write(raw)
            stream.flush()
            text = raw.decode("utf-8", "replace")
            if progress is not None and PREFIX in text:
                progress(text.partition(PREFIX)[2].strip())
    process.stdout.close()


def tail(log: Path) -> str:
    """Return the last lines of a log that say something."""
    try:
        with log.open("rb") as stream:
            stream.seek(max(0, log.stat().st_size - _MAX_LOG))
            lines = stream.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return "none"
    said = [line.strip() for line in lines if line.strip() and PREFIX not in line]
    # The line that names the exception says more than the frames above it.
    errors = [line for line in said if _ERROR.search(line)]
    return " | ".join(errors[-1:] or said[-_TAIL:]) or "none"


def _problem(place: Path) -> str:
    with contextlib.suppress(OSError, ValueError):
        found = json.loads((place / PROBLEM_FILE).read_text("utf-8"))
        return str(found.get("problem", ""))
    return ""


def _result(job: Job, name: str, problem: str) -> PhaseResult:
    folder, log = job.folder(name), Path(job.out) / "engine.log"
    try:
        said = json.loads((folder / PHASE_FILE).read_text("utf-8"))
    except (OSError, ValueError):
        return PhaseResult(phase=name, log=log, problem=problem or "the engine ended before this phase was run")
    captures = tuple(sorted(folder.glob("capture-*.json")))
    own = str(said.get("problem", ""))
    if not own and not captures:
        own = problem or "the engine ran and left no capture"
    notes = tuple(str(item) for item in said.get("notes", ()))
    return PhaseResult(phase=name, captures=() if own else captures, problem=own, log=log, notes=notes)
