"""The pytest session's part, imported only when a checkpoint is named: settings, items, placement, report."""

from __future__ import annotations

from typing import TYPE_CHECKING

from featurecontract.plugin._session import ContractSession
from featurecontract.plugin._settings import read_settings

if TYPE_CHECKING:
    import pytest

__all__ = ["start"]


def start(config: pytest.Config) -> None:
    """Read the options and register the session's hooks; raises pytest.UsageError for a value that cannot be used."""
    config.pluginmanager.register(ContractSession(config, read_settings(config)), "featurecontract-session")
