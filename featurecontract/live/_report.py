"""A phase's captures against the contract, as a report like any other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from featurecontract.contract import digest
from featurecontract.errors import InputError
from featurecontract.findings import Report, finding

if TYPE_CHECKING:
    from featurecontract.contract import Contract
    from featurecontract.gate import Drafting
    from featurecontract.live._phases import PhaseResult
    from featurecontract.probe._data import ProbeData

__all__ = ["live_report"]


def live_report(
    result: PhaseResult,
    contract: Contract,
    probe: ProbeData,
    *,
    runtime: str,
    path: str,
    file: str = "",
    drafting: Drafting | None = None,
    confidence: float = 0.9,
    strict: bool = False,
) -> Report:
    """Return what a phase showed: the findings of ``verify``, or could-not-check with the phase's problem.

    Args:
        result: What ``run_live`` returned for the phase.
        contract: The contract.
        probe: Its probe.
        runtime: The runtime's name, for findings of a phase that was not run.
        path: The checkpoint as the user named it.
        file: The contract's file.
        drafting: Drafts the phase's rounds again; by default draft tokens are left alone.
        confidence: Below this an answer is ``inconclusive``.
        strict: Count warnings as errors.
    """
    from featurecontract.capture import load, merge
    from featurecontract.gate import verify_captures

    problem = result.problem
    if not problem:
        try:
            whole = merge(load(list(result.captures)))
        except InputError as error:
            problem = str(error)
        else:
            return verify_captures(
                contract,
                probe,
                [whole],
                path=path,
                file=file,
                drafting=drafting,
                confidence=confidence,
                strict=strict,
            )
    return Report(
        checkpoint=path,
        contract_path=file or None,
        contract_sha256=digest(contract),
        declared=contract.wiring,
        num_hidden_layers=contract.target.num_hidden_layers,
        findings=(
            finding(
                "nothing-captured",
                f"phase {result.phase} of {runtime} could not be run: {problem}",
                runtime=f"{runtime} {result.phase}",
                next_step=f"mend what it names and run again; the engine's output is in {result.log or 'its log'}",
            ),
        ),
        strict=strict,
    )
