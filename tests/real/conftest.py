"""Real runtimes and trainers: the folder of a library is collected where that library is installed, and only there.

Each has an environment of its own (`make real-vllm`). Elsewhere the summary says what was not run.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

HERE = Path(__file__).parent
NOT_RUN = sorted(
    folder.name
    for folder in HERE.iterdir()
    if any(folder.glob("test_*.py")) and importlib.util.find_spec(folder.name) is None
)
collect_ignore = NOT_RUN


def pytest_collection_modifyitems(items):
    for item in items:
        if HERE in item.path.parents:
            # Warnings of other people's libraries are not ours to mend.
            item.add_marker(pytest.mark.filterwarnings("default"))


def pytest_terminal_summary(terminalreporter):
    for name in NOT_RUN:
        terminalreporter.write_line(f"NOT RUN tests/real/{name}: {name} is not installed here (make real-{name})")
