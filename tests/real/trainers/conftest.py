"""Real trainers: a folder is collected where its library is installed; elsewhere the summary says what was not run."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

HERE = Path(__file__).parent
LIBRARIES = {path.name: path.name.removeprefix("with_") for path in sorted(HERE.glob("with_*"))}
NOT_RUN = [folder for folder, library in LIBRARIES.items() if importlib.util.find_spec(library) is None]
collect_ignore = NOT_RUN


def pytest_collection_modifyitems(items):
    for item in items:
        if HERE in item.path.parents:
            # Warnings of other people's libraries are not ours to mend.
            item.add_marker(pytest.mark.filterwarnings("ignore"))


def pytest_terminal_summary(terminalreporter):
    for folder in NOT_RUN:
        library = LIBRARIES[folder]
        reason = f"{library} is not installed here (make real-trainers)"
        terminalreporter.write_line(f"NOT RUN tests/real/trainers/{folder}: {reason}")


@pytest.fixture(scope="session")
def target(tmp_path_factory):
    from tiny_target import make_target

    return make_target(tmp_path_factory.mktemp("made") / "target")
