"""``torch`` as a runtime: a program of your own, run as it is, with a tap in one of its callables."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from featurecontract.errors import InputError, UsageError
from featurecontract.live._engine import one_line
from featurecontract.live._run import ended_by_signals, package_environment, tail

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Sequence

__all__ = ["capture_script"]


def capture_script(
    tap: str,
    out: str | os.PathLike[str],
    command: Sequence[str],
    *,
    progress: Callable[[str], None] | None = None,
) -> tuple[Path, ...]:
    """Run a Python program and return the captures of what entered ``tap``.

    Args:
        tap: ``PACKAGE.MODULE:function`` or ``PACKAGE.MODULE:Class.method``; its first argument holds the rows.
        out: Where the captures go.
        command: ``[python] SCRIPT ARGUMENTS...`` or ``[python] -m MODULE ARGUMENTS...``.
        progress: Called with one line per step.

    Raises:
        UsageError: the tap or the command has another form.
        InputError: ``nothing-captured``: the program failed, or never called the tapped one.
    """
    if tap.count(":") != 1 or not all(tap.split(":")):
        raise UsageError(f"--tap {tap!r} is not PACKAGE.MODULE:NAME, such as my_engine.drafter:Drafter.combine")
    words = list(command)
    python = words.pop(0) if Path(words[0]).name.startswith("python") else sys.executable
    if not words or (words[0] == "-m" and len(words) == 1):
        raise UsageError("behind `--` stands a Python program: SCRIPT ARGUMENTS... or -m MODULE ARGUMENTS...")
    place = Path(out).resolve()
    place.mkdir(parents=True, exist_ok=True)
    before = set(place.glob("capture-*.json"))
    log = place / "program.log"
    if progress is not None:
        progress(f"running {words[0]} (its output is in {log})")
    # subprocess.run kills the program on any exception, so on a signal's as well.
    with log.open("wb") as stream, ended_by_signals():
        try:
            done = subprocess.run(  # noqa: S603 - the user's own program
                [python, "-m", "featurecontract.live.torch_script", str(place), tap, *words],
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                env=package_environment(),
                check=False,
            )
        except OSError as error:
            raise InputError.single(
                python, f"cannot be started ({error.strerror})", next_step="name a Python", slug="nothing-captured"
            ) from None
    found = tuple(sorted(set(place.glob("capture-*.json")) - before))
    if done.returncode or not found:
        what = f"ended with status {done.returncode}" if done.returncode else f"never called {tap}"
        raise InputError.single(
            words[0],
            one_line(f"the program {what}; its last words: {tail(log)}"),
            next_step=f"all of its output is in {log}",
            slug="nothing-captured",
        )
    return found
