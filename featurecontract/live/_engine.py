"""The engine's side of a live run: phases one by one, each leaving its captures and a file that says how it went."""

from __future__ import annotations

import json
import os
import sys
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from featurecontract.live._job import PHASE_FILE, PROBLEM_FILE, Job, read_job

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["PREFIX", "CannotRun", "Phase", "phase", "run_engine", "say"]

#: Lines on standard error that start so are for the user; everything else is the engine's own log.
PREFIX = "featurecontract-live: "
_MAX_LINE = 600


class CannotRun(Exception):  # noqa: N818 - it is a statement about the run, in one line
    """The run, or the phase inside of which it is raised, cannot be done; the text says why and what to do."""


@dataclass(slots=True)
class Phase:
    """A phase that is being run: where its captures go, and what to say of it."""

    name: str
    folder: Path
    notes: list[str] = field(default_factory=list)

    def note(self, text: str) -> None:
        """Add a note."""
        self.notes.append(one_line(text))


def say(text: str) -> None:
    """Tell the user how far the run is, on standard error."""
    sys.stderr.write(f"{PREFIX}{one_line(text)}\n")
    sys.stderr.flush()


def one_line(text: str) -> str:
    """Return a text on one line, bounded."""
    flat = " ".join(str(text).split())
    return flat if len(flat) <= _MAX_LINE else flat[: _MAX_LINE - 3] + "..."


@contextmanager
def phase(job: Job, name: str) -> Iterator[Phase]:
    """Run a phase inside of ``with``; a failure is written down as the phase's problem, and the next phase runs."""
    folder = job.folder(name)
    folder.mkdir(parents=True, exist_ok=True)
    running = Phase(name, folder)
    say(f"phase {name}")
    problem = ""
    try:
        yield running
    except CannotRun as error:
        problem = one_line(str(error))
    except Exception as error:  # noqa: BLE001 - whatever the engine raises is what the user must read
        problem = one_line(f"{type(error).__name__}: {error}")
    if problem:
        say(f"phase {name}: {problem}")
    _write(folder / PHASE_FILE, {"problem": problem, "notes": running.notes})


def run_engine(main: Callable[[Job], None]) -> None:
    """Read the job that the command line names and run it; what keeps all of it from running is written down.

    ``python -m featurecontract.live.NAME_engine JOB.json`` calls this with the function that runs the phases.
    """
    job = read_job(sys.argv[1])
    try:
        main(job)
    except CannotRun as error:
        _fail(job, one_line(str(error)))
    except ImportError as error:
        _fail(job, one_line(f"{error}; install {job.runtime} for {sys.executable}, or name another Python"))
    except Exception as error:
        _fail(job, one_line(f"{type(error).__name__}: {error}"))
        raise
    # Engines leave threads and child processes that would keep this one alive.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _fail(job: Job, problem: str) -> None:
    say(problem)
    _write(Path(job.out) / PROBLEM_FILE, {"problem": problem})


def _write(path: Path, value: dict[str, object]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.with_suffix(".part").write_text(json.dumps(value), "utf-8")
    path.with_suffix(".part").replace(path)
