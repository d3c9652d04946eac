"""Parity with real trainers and models: collected where the library is installed; elsewhere the summary says so."""

from __future__ import annotations

import importlib.util
from pathlib import Path

HERE = Path(__file__).parent
LIBRARIES = {path.name: path.name.removeprefix("with_") for path in sorted(HERE.glob("with_*"))}
NOT_RUN = [folder for folder, library in LIBRARIES.items() if importlib.util.find_spec(library) is None]
collect_ignore = NOT_RUN


def pytest_terminal_summary(terminalreporter):
    for folder in NOT_RUN:
        library = LIBRARIES[folder]
        terminalreporter.write_line(
            f"NOT RUN tests/real/replay/{folder}: {library} is not installed here (make real-replay)"
        )
