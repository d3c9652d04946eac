"""The hooks of a session that checks contracts: collect, judge each item, report across workers."""

from __future__ import annotations

import json
import os
import pickle
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from featurecontract.contract import CONTRACT_FILE
from featurecontract.errors import InputError
from featurecontract.plugin._check import Check
from featurecontract.plugin._items import CheckpointCollector, StatementItem
from featurecontract.plugin._names import part
from featurecontract.plugin._placement import DIGEST
from featurecontract.plugin._report import notices_of, write_report
from featurecontract.plugin._texts import block, one_line, reference
from featurecontract.render._view import is_failing

if TYPE_CHECKING:
    from collections.abc import Iterator

    from featurecontract.contract import Contract
    from featurecontract.findings import Finding, Report
    from featurecontract.plugin._settings import Settings
    from featurecontract.plugin._shot import FeatureCapture

__all__ = ["ContractSession", "Outcome"]

_KEY = "featurecontract"
_MANY = 2000
# What `--durations` lists by default.
_LISTED_DURATION = 0.005


@dataclass(frozen=True, slots=True)
class Outcome:
    """The texts of one item: what fails it, what could not be checked, what is only worth knowing."""

    failed: tuple[str, ...] = ()
    unchecked: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()


class ContractSession:
    """The plugin object that is registered when a checkpoint is named."""

    def __init__(self, config: pytest.Config, settings: Settings) -> None:
        """Prepare one check for each checkpoint; nothing is read yet."""
        self.config = config
        self.settings = settings
        self.checks = tuple(Check(subject, settings) for subject in settings.subjects)
        for check in self.checks:
            check.others = partial(self._other_digests, check)
        self.notices: dict[str, list[str]] = {}
        self._could_not_check: set[str] = set()
        self._passed: set[str] = set()
        self._order: dict[str, int] | None = None
        self._said: dict[tuple[int, str], tuple[Report, dict[str, list[tuple[Finding, str]]]]] = {}

    def _other_digests(self, check: Check) -> frozenset[str]:
        return frozenset(item.contract_digest for item in self.checks if item is not check) - {""}

    def contract(self, index: int) -> Contract:
        """Return a checkpoint's contract for the fixture; a broken one is that test's error, on one line."""
        try:
            return self.checks[index].contract
        except InputError as error:
            refused = error
        # Outside the handler, or pytest prints the chain of both exceptions.
        return pytest.fail(one_line(refused), pytrace=False)

    def feature_capture(self, request: pytest.FixtureRequest, contract: Contract) -> Iterator[FeatureCapture]:
        """Yield the fixture's value for the checkpoint whose contract the test runs with."""
        from featurecontract.plugin._shot import FeatureCapture

        check = next((item for item in self.checks if "contract" in vars(item) and item.contract is contract), None)
        if check is None:
            pytest.fail("feature_capture needs the fixture feature_contract as the plugin gives it", pytrace=False)
        made = FeatureCapture(check, request.node.nodeid, self._could_not_check.add)
        yield made
        made.finish(passed=request.node.nodeid in self._passed)

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Iterator[None]:
        """Mark the failure of a test that could not be checked; the mark survives the way to the controller."""
        outcome: Any = yield
        report = outcome.get_result()
        if report.when != "call":
            return
        if report.passed:
            self._passed.add(item.nodeid)
        elif report.failed and item.nodeid in self._could_not_check:
            report.featurecontract_unchecked = True

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str] | None:
        """Show what could not be checked as an error, and never as a plain failure."""
        if report.failed and getattr(report, "featurecontract_unchecked", False):
            return "error", "E", "ERROR"
        return None

    def outcome(self, item: StatementItem) -> Outcome:
        """Judge one item; the first call for a checkpoint runs its check."""
        check = self.checks[item.index]
        failed: list[str] = []
        unchecked: list[str] = []
        remarks: list[str] = []
        refusal = check.refusal(item.group)
        if refusal is not None:
            return Outcome(unchecked=(one_line(refusal),))
        report, known = self._found(item)
        for found, first in known:
            text = block(report, found) if first in ("", item.nodeid) else reference(found, first)
            (unchecked if found.unchecked else failed if is_failing(found, report) else remarks).append(text)
        if item.address == DIGEST:
            fault, note = check.digest_faults
            failed += [f"error: {fault}"] if fault else []
            remarks += [f"note: {note}"] if note else []
        return Outcome(tuple(failed), tuple(unchecked), tuple(remarks))

    def _found(self, item: StatementItem) -> tuple[Report, list[tuple[Finding, str]]]:
        """Return the findings about a statement, each with the item that says it in full, and their report.

        That is the first that runs, which -k or --deselect may have moved. A wide contract has thousands of
        statements and findings about all of them, so this is worked out once for a part of a checkpoint.
        """
        if self._order is None:
            self._order = {node.nodeid: place for place, node in enumerate(item.session.items)}
        order = self._order
        check = self.checks[item.index]
        part_key = (item.index, check.part_name(item.group))
        if part_key not in self._said:
            report, placed = check.placed(item.group)
            said: dict[str, list[tuple[Finding, str]]] = {}
            for found, places in placed:
                ids = (f"{check.subject.node_id}::{address}" for address in places)
                first = min((node for node in ids if node in order), key=order.__getitem__, default="")
                for address in places:
                    said.setdefault(address, []).append((found, first))
            self._said[part_key] = (report, said)
        report, said = self._said[part_key]
        return report, said.get(item.address, [])

    def pytest_report_header(self) -> str:
        """Say in one line what is checked."""
        listed = ", ".join(check.subject.label for check in self.checks)
        return f"featurecontract: {listed}, runtimes {', '.join(self.settings.runtimes) or 'of the contract'}"

    @pytest.hookimpl(hookwrapper=True)
    def pytest_make_collect_report(self, collector: pytest.Collector) -> Iterator[None]:
        """Add the checkpoints to what the session collects, whatever paths were given."""
        outcome: Any = yield
        report = outcome.get_result()
        if isinstance(collector, pytest.Session) and report.passed:
            named = self._named_paths()
            report.result += [
                self._collector(collector, index)
                for index, check in enumerate(self.checks)
                if check.subject.directory / CONTRACT_FILE not in named
            ]

    def pytest_collect_file(self, file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
        """Collect a contract whose file or node id was given as an argument, so that a node id can be pasted."""
        if file_path.name != CONTRACT_FILE or file_path not in self._named_paths():
            return None
        for index, check in enumerate(self.checks):
            if check.subject.directory / CONTRACT_FILE == file_path:
                return self._collector(parent, index)
        return None

    def _collector(self, parent: pytest.Collector, index: int) -> pytest.Collector:
        subject = self.checks[index].subject
        collector: pytest.Collector = CheckpointCollector.from_parent(
            parent,
            name=subject.node_id,
            path=subject.directory / CONTRACT_FILE,
            nodeid=subject.node_id,
            contracts=self,
            index=index,
        )
        return collector

    def _named_paths(self) -> set[Path]:
        base = self.config.invocation_params.dir
        named = (text.partition("::")[0] for text in self.config.args if CONTRACT_FILE in text)
        return {Path(os.path.abspath(base / text)) for text in named}  # noqa: PTH100 - not resolved, as pytest does

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Run a test once for each of several checkpoints; a test that parametrises the name itself is left alone."""
        if len(self.checks) < 2 or "feature_contract" not in metafunc.fixturenames:  # noqa: PLR2004
            return
        marks = metafunc.definition.iter_markers("parametrize")
        if any("feature_contract" in str(mark.args[:1]) or "argnames" in mark.kwargs for mark in marks):
            return
        ids = [part(check.subject.label.replace("/", "-")) for check in self.checks]
        metafunc.parametrize("feature_contract", range(len(self.checks)), ids=ids, indirect=True, scope="session")

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Send what this process found to the controller, or write it when this is the controller."""
        self._forget_uneventful()
        if hasattr(self.config, "workerinput"):
            found = {check.subject.node_id: check.computed for check in self.checks}
            # Between processes of this session only, as pytest-xdist sends its own objects.
            self.config.workeroutput[_KEY] = pickle.dumps(found)  # type: ignore[attr-defined]
            return
        for check in self.checks:
            if check.computed:
                self.notices[check.subject.node_id] = notices_of(check)
        if self.settings.report is None or self.config.option.collectonly:
            return
        # A part none of whose items ran is computed now: the file is about all of them, whatever -k chose.
        reports = [_json(check) for check in self.checks]
        fault = write_report(self.settings.report, reports)
        if fault:
            self.notices["--feature-contract-report"] = [fault]
            if session.exitstatus == pytest.ExitCode.OK:
                session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def _forget_uneventful(self) -> None:
        """Drop the set-up and tear-down reports of our items that took no time and printed nothing.

        For each failure pytest looks through all of them for tear-down output: with thousands of failing statements
        that takes minutes, and there is none.
        """
        terminal: Any = self.config.pluginmanager.get_plugin("terminalreporter")
        stats = getattr(terminal, "stats", {})
        if len(stats.get("", ())) < _MANY:
            return
        ours = tuple(f"{check.subject.node_id}::" for check in self.checks)
        stats[""] = [
            item
            for item in stats[""]
            if item.sections or item.duration >= _LISTED_DURATION or not item.nodeid.startswith(ours)
        ]

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Take over what an xdist worker found; the first one that computed a part speaks for all."""
        sent = getattr(node, "workeroutput", {}).get(_KEY)
        found: dict[str, dict[str, Report]] = pickle.loads(sent) if sent else {}  # noqa: S301 - our own worker's
        for check in self.checks:
            check.adopt(found.get(check.subject.node_id, {}))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Say the warnings, and everything that was asked for and not compared."""
        said = [(name, text) for name, texts in self.notices.items() for text in texts]
        if not said:
            return
        terminalreporter.section("feature contracts")
        for name, text in said:
            terminalreporter.write_line(f"{name.removesuffix('/' + CONTRACT_FILE)}: {text}")


def _json(check: Check) -> dict[str, Any]:
    from featurecontract.render import render

    value: dict[str, Any] = json.loads(render(check.report, "json"))
    return value
