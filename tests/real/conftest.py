"""Real runtimes and trainers: the folder of a library is collected where that library is installed, and only there.

Each has an environment of its own (`make real-vllm`). Elsewhere the summary says what was not run.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def is_installed(name):
    # Without __init__.py our own folder is found as a package of that name, one that has no file.
    spec = importlib.util.find_spec(name)
    return spec is not None and spec.origin is not None


NOT_RUN = sorted(
    folder.name for folder in HERE.iterdir() if any(folder.glob("test_*.py")) and not is_installed(folder.name)
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
