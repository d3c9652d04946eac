"""What the tests of the commands share."""

from __future__ import annotations

import pytest

from featurecontract.cli import main


@pytest.fixture
def run(capsys):
    """Run a command in process and return (exit status, stdout, stderr)."""

    def call(*arguments):
        capsys.readouterr()
        try:
            main([str(item) for item in arguments])
            status = 0
        except SystemExit as stop:
            status = stop.code or 0
        out, err = capsys.readouterr()
        return status, out, err

    return call
