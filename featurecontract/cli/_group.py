"""The group that every command joins."""

from __future__ import annotations

import click

from featurecontract._version import __version__

__all__ = ["cli"]


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="featurecontract")
def cli() -> None:
    """Contract tests for the hidden states that a drafter is trained on and a serving runtime feeds.

    Exit status: 0 holds, 1 violated, 2 could not check.
    """
