"""The collectors and the item: a checkpoint holds groups, a group holds statements."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from featurecontract.plugin._fuzz import GROUP, fuzz_with

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

    from featurecontract.plugin._session import ContractSession

__all__ = ["CheckpointCollector", "FuzzItem", "GroupCollector", "StatementItem"]


class CheckpointCollector(pytest.Collector):
    """A checkpoint. No pytest.File: pytest must not look for its node id, which has been cleaned, on the disk."""

    def __init__(self, *, contracts: ContractSession, index: int, **kwargs: Any) -> None:
        """Keep which of the session's checkpoints it is."""
        super().__init__(**kwargs)
        self.contracts = contracts
        self.index = index

    def collect(self) -> Iterator[pytest.Collector]:
        """Read the contract, for the names of its statements; nothing is compared yet."""
        for group in self.contracts.checks[self.index].groups:
            yield GroupCollector.from_parent(self, name=group, contracts=self.contracts, index=self.index)


class GroupCollector(pytest.Collector):
    """A group of statements, such as ``predicted-sglang-0.5.12``."""

    def __init__(self, *, contracts: ContractSession, index: int, **kwargs: Any) -> None:
        """Keep which of the session's checkpoints it belongs to."""
        super().__init__(**kwargs)
        self.contracts = contracts
        self.index = index

    def collect(self) -> Iterator[pytest.Item]:
        """Yield the statements in the plan's order."""
        check = self.contracts.checks[self.index]
        kind = FuzzItem if self.name == GROUP and check.fuzz else StatementItem
        for name in check.groups[self.name]:
            yield kind.from_parent(self, name=name, contracts=self.contracts, index=self.index)


class _Item(pytest.Item):
    """What every item of a checkpoint is: a statement of a group."""

    def __init__(self, *, contracts: ContractSession, index: int, **kwargs: Any) -> None:
        """Keep the address inside the checkpoint; the check runs with the first item."""
        super().__init__(**kwargs)
        self.contracts = contracts
        self.index = index
        self.group = self.parent.name if self.parent else ""
        self.address = f"{self.group}::{self.name}"

    def reportinfo(self) -> tuple[os.PathLike[str] | str, int | None, str]:
        """Return the contract's path, and the checkpoint and statement for the headline of a failure."""
        # Not the tail of the node id: pytest would write the dots of a version in it as ``::``.
        return self.path, None, f"{self.contracts.checks[self.index].subject.label}: {self.address}"


class FuzzItem(_Item):
    """One statement of ``--feature-contract-fuzz``: it fails with the smallest example that got through."""

    def runtest(self) -> None:
        """Run the examples."""
        check = self.contracts.checks[self.index]
        said = fuzz_with(check.fuzz, self.name, check.settings.fuzz)
        if said:
            pytest.fail(said, pytrace=False)


class StatementItem(_Item):
    """One statement: it fails with a finding, and is an error where it could not be checked."""

    def setup(self) -> None:
        """Raise what could not be checked, so that pytest counts an error and not a failure."""
        outcome = self.contracts.outcome(self)
        if outcome.remarks:
            self.add_report_section("setup", "featurecontract", "\n\n".join(outcome.remarks))
        if outcome.unchecked and not outcome.failed:
            pytest.fail("\n\n".join(outcome.unchecked), pytrace=False)

    def runtest(self) -> None:
        """Raise every finding that fails this statement, and what could not be checked about it."""
        outcome = self.contracts.outcome(self)
        if outcome.failed:
            pytest.fail("\n\n".join((*outcome.failed, *outcome.unchecked)), pytrace=False)
