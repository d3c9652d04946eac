"""One checkpoint in one process: what was read at collection, and the report, computed once when first needed."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from featurecontract.contract import contract_path, digest, dumps, load, loads
from featurecontract.errors import FeatureContractError, InputError
from featurecontract.gate import Inputs, check_inputs, load_inputs, refused
from featurecontract.gate._inputs import own_contract
from featurecontract.plugin._placement import Plan, RuntimeName, homes, plan_statements

if TYPE_CHECKING:
    from featurecontract.contract import Contract
    from featurecontract.findings import Report
    from featurecontract.plugin._settings import Settings, Subject

__all__ = ["Check"]


class Check:
    """The check of one checkpoint; every property is computed at most once."""

    def __init__(self, subject: Subject, settings: Settings) -> None:
        """Keep what to check; nothing is read yet."""
        self.subject = subject
        self.settings = settings

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
    def plan(self) -> Plan:
        """The statements; a contract or checkpoint that cannot be read has one."""
        inputs = self.opened
        if isinstance(inputs, InputError) or inputs.contract is None:
            return Plan()
        return plan_statements(
            inputs.contract,
            self._names(inputs),
            readable=inputs.checkpoint.tensors is not None,
            strict=self.settings.strict,
            serve_args=self.settings.serve_args is not None,
        )

    @cached_property
    def report(self) -> Report:
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

    @cached_property
    def places(self) -> tuple[tuple[str, ...], ...]:
        """The statements of each finding; a run that was refused says so at every one."""
        if self.report.declared is None:
            return tuple(self.plan.addresses for _ in self.report.findings)
        return tuple(homes(self.plan, self.report, found) for found in self.report.findings)

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
        if not names:
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
