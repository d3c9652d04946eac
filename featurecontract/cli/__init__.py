"""The commands. Each reads its arguments, calls the gate, renders, and exits 0, 1 or 2; nothing is decided here."""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from typing import Any

import click

from featurecontract.cli import _capture, _datasets, _diagnose, _replay, _static, _tensors  # noqa: F401 - they join the group
from featurecontract.cli._group import cli
from featurecontract.cli._options import one_line
from featurecontract.errors import FeatureContractError

__all__ = ["cli", "main"]

COULD_NOT_CHECK = 2
INTERRUPTED = 130
#: With this environment variable set, an internal error shows its traceback as well.
TRACEBACK = "FEATURECONTRACT_TRACEBACK"


def main(arguments: list[str] | None = None) -> Any:
    """Run a command; every failure is one line on standard error and exit status 2, an interrupt is 130."""
    try:
        try:
            _dispatch(arguments)
        finally:
            if arguments is None:
                # What is left is the interpreter's own shutdown: an interrupt in it ends the process, without a word.
                _interrupts_end_the_process()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


def _interrupts_end_the_process() -> None:
    import signal

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def _dispatch(arguments: list[str] | None) -> None:
    try:
        cli.main(args=arguments, prog_name="featurecontract", standalone_mode=False)
    except click.ClickException as error:
        with contextlib.suppress(OSError):
            if sys.stderr is not None:
                error.show()
        sys.exit(COULD_NOT_CHECK)
    except click.Abort:
        _complain("interrupted")
        sys.exit(INTERRUPTED)
    except FeatureContractError as error:
        _complain(f"error: {one_line(str(error))}")
        sys.exit(COULD_NOT_CHECK)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        _complain(f"error: {one_line(where + (error.strerror or str(error)))}")
        _drop_output()
        sys.exit(COULD_NOT_CHECK)
    except SystemExit:
        # click answers a pipe whose reader went away, as `| head` does, with status 1: that would be a verdict.
        if type(sys.stdout).__name__.endswith("PacifyFlushWrapper"):
            _drop_output()
            sys.exit(COULD_NOT_CHECK)
        raise
    except Exception as error:  # noqa: BLE001 - a traceback ends with status 1, which would read as a verdict
        if os.environ.get(TRACEBACK):
            with contextlib.suppress(Exception):
                _complain("".join(traceback.format_exception(error)).rstrip())
        text = one_line(f"{type(error).__name__}: {error}")
        _complain(f"error: internal: {text}; please report it ({TRACEBACK}=1 shows where)")
        _drop_output()
        sys.exit(COULD_NOT_CHECK)


def _complain(line: str) -> None:
    """Say a line on standard error, if there is one that takes it."""
    with contextlib.suppress(OSError):
        click.echo(line, err=True)


def _drop_output() -> None:
    """Send what is still buffered to nowhere: a flush that fails at the end would give an exit status of its own."""
    with contextlib.suppress(OSError, AttributeError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
