"""Runtimes named with ``--feature-contract-live`` as sources of observed statements, one for each phase.

The names of the phases are known at collection; the engine starts when the first item of a runtime runs, once for all
of its phases, in a process of its own.
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from featurecontract.errors import InputError, UsageError
from featurecontract.live import phases
from featurecontract.plugin._observed import Source, statements_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from featurecontract.contract import Contract
    from featurecontract.findings import Report
    from featurecontract.gate import Drafting
    from featurecontract.live import PhaseResult
    from featurecontract.plugin._settings import Settings

__all__ = ["LiveRun", "live_sources"]


@dataclass(kw_only=True)
class LiveRun:
    """One runtime, started at most once in this process, and what its phases showed.

    Attributes:
        name: The runtime.
        contract: Returns the contract; raises InputError.
        directory: The checkpoint's directory.
        label: What reports call the checkpoint.
        target: The target's directory.
        options: Settings of the engine that win over the safe ones.
        python: The interpreter that has the runtime.
        drafting: Drafts what a phase captured again; None leaves draft tokens alone.
    """

    name: str
    contract: Callable[[], Contract]
    directory: Path
    label: str
    target: str
    options: Mapping[str, Any]
    python: str = sys.executable
    drafting: Drafting | None = None
    confidence: float = 0.9
    strict: bool = False
    follow_links: bool = False

    @cached_property
    def _results(self) -> Mapping[str, PhaseResult] | InputError:
        from featurecontract.live import run_live
        from featurecontract.probe import read_probe

        try:
            contract = self.contract()
            probe = read_probe(contract, self.directory, follow_links=self.follow_links)
            place = tempfile.mkdtemp(prefix=f"feature-contract-live-{self.name}-")
            found = run_live(
                self.name,
                self.directory,
                self.target,
                contract,
                probe=probe,
                out=place,
                python=self.python,
                options=self.options,
                progress=lambda line: print(line, file=sys.stderr),  # noqa: T201 - progress belongs there
            )
        except InputError as error:
            # Kept: every phase has the same answer, and the engine is not started again for it.
            return error
        except UsageError as error:
            return InputError.single(self.label, str(error), slug="nothing-captured")
        return {item.phase: item for item in found}

    def report(self, phase: str) -> Report:
        """Return what one phase showed; raises InputError when nothing could be started, ImportError without torch."""
        from featurecontract.contract import contract_path
        from featurecontract.live import live_report
        from featurecontract.probe import read_probe

        results = self._results
        if isinstance(results, InputError):
            raise results
        contract = self.contract()
        return live_report(
            results[phase],
            contract,
            read_probe(contract, self.directory, follow_links=self.follow_links),
            runtime=self.name,
            path=self.label,
            file=str(contract_path(self.directory)),
            drafting=self.drafting,
            confidence=self.confidence,
            strict=self.strict,
        )


def live_sources(
    contract: Callable[[], Contract],
    settings: Settings,
    *,
    directory: Path,
    label: str,
    drafting: Drafting | None = None,
) -> tuple[Source, ...]:
    """Return one source for each phase of each runtime that is to be started: ``live-vllm-prefill``."""
    out: list[Source] = []
    replayed = drafting is not None and not drafting.reason
    for name in settings.live:
        assert settings.target is not None  # noqa: S101 - required with the option
        run = LiveRun(
            name=name,
            contract=contract,
            directory=directory,
            label=label,
            target=settings.target,
            options=settings.live_args,
            python=settings.live_python,
            drafting=drafting,
            confidence=settings.confidence,
            strict=settings.strict,
            follow_links=settings.follow_links,
        )
        out += [
            Source(
                group=f"live-{name}-{phase}",
                statements=statements_of(contract(), drafts=replayed),
                obtain=lambda run=run, phase=phase: run.report(phase),  # type: ignore[misc]
                path=label,
            )
            for phase in phases(name)
        ]
    return tuple(out)
