"""One checkpoint in one process: what was read at collection, and the report, computed once when first needed."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from featurecontract.contract import contract_path, digest, dumps, load, loads
from featurecontract.errors import FeatureContractError, InputError
from featurecontract.gate import Drafting, Inputs, check_inputs, load_inputs, query_of, refused
from featurecontract.gate._inputs import own_contract
from featurecontract.plugin._captures import Verification, glance, sources_of
from featurecontract.plugin._fuzz import GROUP, fuzz_statements
from featurecontract.plugin._observed import Source, merged
from featurecontract.plugin._placement import Plan, RuntimeName, homes, plan_statements

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from featurecontract.contract import Contract
    from featurecontract.findings import Finding, Report
    from featurecontract.plugin._captures import Glance
    from featurecontract.plugin._fuzz import Fuzzed
    from featurecontract.plugin._settings import Settings, Subject

__all__ = ["STATIC", "Check"]


STATIC = "static"


class Check:
    """The check of one checkpoint; every property is computed at most once.

    It has parts, each with a report of its own: the static one, which needs no torch, one for each observed group, and
    one for each use of the fixture ``feature_capture``. A part is computed when the first of its items runs.
    """

    def __init__(self, subject: Subject, settings: Settings) -> None:
        """Keep what to check; nothing is read yet."""
        self.subject = subject
        self.settings = settings
        # The digests of the session's other contracts: a capture that names one of them is not for this one.
        self.others: Callable[[], frozenset[str]] = frozenset
        self._adopted: dict[str, Report] = {}

    @cached_property
    def opened(self) -> Inputs | InputError:
        """What was read, or why it could not be."""
        try:
            inputs = load_inputs(
                self.subject.path,
                target=self.settings.target,
                need_contract=True,
                follow_links=self.settings.follow_links,
            )
            self._names(inputs)
        except (FeatureContractError, OSError) as error:
            return _as_input_error(str(self.subject.path), error)
        return inputs

    @cached_property
    def contract(self) -> Contract:
        """The contract, also beside a checkpoint that cannot be used; raises InputError."""
        inputs = self.opened
        if isinstance(inputs, Inputs) and inputs.contract is not None:
            return inputs.contract
        return load(own_contract(self.subject.directory, follow_links=self.settings.follow_links))

    @cached_property
    def contract_digest(self) -> str:
        """The sha256 of the contract's canonical form, empty where it cannot be read."""
        try:
            return digest(self.contract)
        except (FeatureContractError, OSError):
            return ""

    @cached_property
    def captures(self) -> tuple[Glance, ...]:
        """The captures that are for this contract: all that were given, less those that name another checkpoint's."""
        mine, others = {self.contract_digest}, self.others()
        seen = [glance(path) for path in self.settings.captures]
        return tuple(
            item for item in seen if not item.contracts or item.contracts & mine or not item.contracts & others
        )

    @cached_property
    def sources(self) -> tuple[Source, ...]:
        """The observations; none where the contract cannot be read, which has an item of its own."""
        if not self.contract_digest:
            return ()
        captured = sources_of(self.contract, [(item, self.verification(item)) for item in self.captures])
        directory, label = self.subject.directory, str(self.subject.path)
        if self.settings.live:
            from featurecontract.plugin._live import live_sources

            captured += live_sources(
                lambda: self.contract, self.settings, directory=directory, label=label, drafting=self.drafting
            )
        if self.settings.states is not None:
            from featurecontract.plugin._replayed import replayed_source

            captured += (replayed_source(self.contract, self.settings, directory=directory, label=label),)
        return captured

    @cached_property
    def drafting(self) -> Drafting | None:
        """What drafts captures again; the weights are read once in a process. None where there is no contract."""
        try:
            contract = self.contract
        except (FeatureContractError, OSError):
            return None
        return Drafting(
            self.subject.directory, contract, target=self.settings.target, follow_links=self.settings.follow_links
        )

    def verification(self, capture: Glance | None = None) -> Verification:
        """Return what verifies a given capture, or one in memory, against this contract."""
        return Verification(
            contract=lambda: self.contract,
            directory=self.subject.directory,
            label=str(self.subject.path),
            captures=capture.path if capture else None,
            drafting=self.drafting,
            confidence=self.settings.confidence,
            strict=self.settings.strict,
            follow_links=self.settings.follow_links,
        )

    @cached_property
    def groups(self) -> Mapping[str, tuple[str, ...]]:
        """Every group with its statements, in their order."""
        fuzz = {GROUP: tuple(self.fuzz)} if self.fuzz else {}
        return {**self.plan.groups, **{item.group: item.statements for item in self.sources}, **fuzz}

    @cached_property
    def fuzz(self) -> Mapping[str, Callable[[int], Fuzzed]]:
        """The statements of ``--feature-contract-fuzz`` and what runs each; none without the option."""
        inputs = self.opened
        if not self.settings.fuzz or isinstance(inputs, InputError) or inputs.contract is None:
            return {}
        from featurecontract.runtimes import choose

        serving = inputs.contract.serving
        named = self.settings.runtimes or (serving.runtimes if serving else ())
        chosen = {item.key: item for text in named for item in choose(text, extra=self.settings.rules)}
        return fuzz_statements(inputs.contract, chosen.values(), query_of(inputs))

    @cached_property
    def plan(self) -> Plan:
        """The static statements; a contract or checkpoint that cannot be read has one."""
        inputs = self.opened
        if isinstance(inputs, InputError) or inputs.contract is None:
            return Plan()
        return plan_statements(
            inputs.contract,
            self._names(inputs),
            readable=inputs.checkpoint.tensors is not None,
            # With a capture something says what is fed, named runtime or not.
            strict=self.settings.strict and not self.sources,
            serve_args=self.settings.serve_args is not None,
        )

    @cached_property
    def static_report(self) -> Report:
        """The report of the gate; of one finding when something could not be read."""
        inputs = self.opened
        if isinstance(inputs, InputError):
            return refused(str(self.subject.path), inputs)
        settings = self.settings
        try:
            return check_inputs(
                inputs,
                settings.runtimes,
                rules=settings.rules,
                serve_args=settings.serve_args,
                digests=settings.digests,
                strict=settings.strict,
            )
        except (FeatureContractError, OSError) as error:
            return refused(str(self.subject.path), _as_input_error(str(self.subject.path), error))

    def placed(self, group: str) -> tuple[Report, tuple[tuple[Finding, tuple[str, ...]], ...]]:
        """Return the report that a group is read from, and its findings with the statements of each.

        A static run that was refused says so at every statement.
        """
        source = self._source(group)
        if source is not None:
            return source.report, tuple(zip(source.report.findings, source.places, strict=True))
        report = self.static_report
        if report.declared is None:
            return report, tuple((found, self.plan.addresses) for found in report.findings)
        return report, tuple((found, homes(self.plan, report, found)) for found in report.findings)

    def part_name(self, group: str) -> str:
        """Return the part that a group is read from."""
        return STATIC if self._source(group) is None else group

    def refusal(self, group: str) -> InputError | None:
        """Return why a group could not be checked at all, None when it was."""
        source = self._source(group)
        found = self.opened if source is None else source.result
        return found if isinstance(found, InputError) else None

    def _source(self, group: str) -> Source | None:
        return next((item for item in self.sources if item.group == group), None)

    @property
    def computed(self) -> dict[str, Report]:
        """The reports of the parts that have one already."""
        found = {STATIC: self.static_report} if "static_report" in vars(self) else {}
        if "sources" in vars(self):
            found |= {item.group: item.report for item in self.sources if item.computed}
        return {**found, **self._adopted}

    def adopt(self, reports: Mapping[str, Report]) -> None:
        """Take reports of parts that another process, or a test with the fixture, made; the first one counts."""
        for name, report in reports.items():
            source = self._source(name)
            if source is not None:
                source.adopt(report)
            elif name == STATIC:
                vars(self).setdefault("static_report", report)
            else:
                self._adopted.setdefault(name, report)

    def add(self, name: str, report: Report) -> None:
        """Take the report of a test with the fixture; a test that runs again replaces its own."""
        self._adopted[name] = report

    @property
    def report(self) -> Report:
        """The whole report; computes every part that nobody has computed yet."""
        extra = [report for _, report in sorted(self._adopted.items())]
        return merged(self.static_report, [*(item.report for item in self.sources), *extra])

    @cached_property
    def digest_faults(self) -> tuple[str, str]:
        """What is wrong with the contract's bytes, and what is only worth knowing; empty where nothing is.

        The contract must come back from its own canonical bytes, with the digest it had when it was collected.
        Another formatting of the same contract is no fault: the digest is that of the canonical form.
        """
        inputs = self.opened
        if isinstance(inputs, InputError) or inputs.contract is None:
            return "", ""
        path = contract_path(self.subject.directory)
        try:
            raw = own_contract(self.subject.directory, follow_links=self.settings.follow_links).read_bytes()
            found = loads(raw, source=str(path))
        except (InputError, OSError) as error:
            return f"the contract can no longer be read: {error}", ""
        canonical = dumps(found)
        if digest(found) != inputs.contract_sha256:
            return f"{path} changed while the tests ran; run them again", ""
        if loads(canonical, source=str(path)) != found:
            return f"{path}: writing and reading the contract changes it; write it again with `init --force`", ""
        note = "" if raw == canonical else f"{path} is not in canonical form; its digest is that of the canonical form"
        return "", note

    @cached_property
    def remarks(self) -> tuple[str, ...]:
        """What the terminal summary has to say beside the findings: everything asked for that was not compared."""
        inputs = self.opened
        if isinstance(inputs, InputError) or inputs.contract is None:
            return ()
        names = self._names(inputs)
        said = []
        seen = any(report.compared for name, report in self.computed.items() if name != STATIC)
        if self.settings.captures and not self.captures:
            said.append("no capture was made for this contract, so nothing that was fed was compared with it")
        if not names and not seen:
            said.append(
                "no runtime was named, so nothing says what will be fed; name what you serve: "
                "--feature-contract-runtime NAME==VERSION (`featurecontract rules --runtimes` lists them)"
            )
        unflagged = [item.key for item in names if item.known and not item.flags]
        if self.settings.serve_args is not None and unflagged:
            said.append(f"the serving arguments were not checked for {', '.join(unflagged)}: no rules for its flags")
        if self.settings.digests and not any(item.sha256 for item in inputs.contract.drafter.tensors):
            said.append("the contract records no digest of a tensor, so none was compared; write it with --digests")
        return tuple(said)

    def _names(self, inputs: Inputs) -> list[RuntimeName]:
        """Return the runtimes as the report will name them; raises UsageError for one in the contract."""
        from featurecontract.runtimes import choose
        from featurecontract.serving._rules import RUNTIMES

        serving = inputs.contract.serving if inputs.contract else None
        found: dict[str, RuntimeName] = {}
        for text in self.settings.runtimes or (serving.runtimes if serving else ()):
            choices = choose(text, extra=self.settings.rules)
            if not choices:
                found.setdefault(text[:120], RuntimeName(key=text[:120], known=False, flags=False))
            for choice in choices:
                flags = choice.runner in RUNTIMES
                found.setdefault(choice.key, RuntimeName(key=choice.key, known=True, flags=flags))
        return list(found.values())


def _as_input_error(source: str, error: Exception) -> InputError:
    if isinstance(error, InputError):
        return error
    return InputError.single(source, str(error))
