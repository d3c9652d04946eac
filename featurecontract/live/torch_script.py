"""``python -m featurecontract.live.torch_script OUT TAP SCRIPT ARGUMENTS...``: somebody's program with one tap in it.

SCRIPT is a file, or ``-m MODULE``. The tap is placed when the program imports its module, and what
entered is saved when the program ends, however it ends.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

from featurecontract.capture import Tap, capturing
from featurecontract.capture._imported import when_imported
from featurecontract.live._engine import say

__all__ = ["main"]


def main(arguments: list[str]) -> None:
    """Run the program."""
    out, path, *program = arguments
    recording = capturing(Tap.callable(path), runtime="torch", keep="first")
    when_imported(path.partition(":")[0], lambda _module: recording.attach())
    module = program[0] == "-m"
    sys.argv = program[1:] if module else program
    # As Python itself sets it: the script's folder, or the working directory.
    sys.path.insert(0, "" if module else str(Path(program[0]).resolve().parent))
    try:
        if module:
            runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(program[0], run_name="__main__")
    finally:
        recording.detach()
        if recording.capture().calls or recording.failure:
            say(f"saved {recording.save(out)}")
        else:
            say(f"{path} was never called")


if __name__ == "__main__":
    main(sys.argv[1:])
