"""``verify``: what was captured against the contract and its probe, through the same diff as a prediction."""

from __future__ import annotations

import os
import shlex
from dataclasses import replace
from typing import TYPE_CHECKING

from featurecontract.contract import contract_path, digest, load
from featurecontract.errors import InputError
from featurecontract.findings import Drafted, Finding, Observed, Report, diff, finding

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from featurecontract.capture._record import Capture
    from featurecontract.contract import Contract
    from featurecontract.probe._data import ProbeData

__all__ = ["verify", "verify_captures"]


def verify(
    path: str | os.PathLike[str],
    captures: Iterable[str | os.PathLike[str]],
    *,
    target: str | os.PathLike[str] | None = None,
    drafts: bool | None = None,
    confidence: float = 0.9,
    strict: bool = False,
    follow_links: bool = False,
) -> Report:
    """Name what captures hold and compare it with the contract of a checkpoint; needs torch.

    Args:
        path: Checkpoint directory with a contract and its probe, or the contract file.
        captures: Capture files, or directories of them.
        target: The target: its directory lends embedding and head to a drafter that has none of its own.
        drafts: Also draft again, with the checkpoint's weights on the captured rows, what the runtime drafted. None:
            where that can be done; True: it is could-not-check where it cannot; False: leave it out.
        confidence: Below this an answer is ``inconclusive``, which is could-not-check.
        strict: Count warnings as errors.
        follow_links: Whether links that leave the checkpoint may be followed.

    Raises:
        InputError: The contract, the probe, the target or a capture cannot be used.
    """
    from featurecontract.capture import load as load_captures
    from featurecontract.capture import merge
    from featurecontract.gate._drafts import Drafting
    from featurecontract.probe import read_probe

    file = contract_path(path)
    contract = load(file)
    probe = read_probe(contract, file.parent, follow_links=follow_links)
    mismatches = _of_another_target(contract, target, follow_links=follow_links)
    found = load_captures([str(item) for item in captures])
    drafting = (
        Drafting(path, contract, target=target, follow_links=follow_links)
        if drafts is not False and not mismatches
        else None
    )
    report = verify_captures(
        contract,
        probe,
        [merge(found)],
        path=str(path),
        file=str(file),
        drafting=drafting,
        confidence=confidence,
        strict=strict,
    )
    missing = _not_drafted(report) if drafts else ()
    return replace(report, findings=(*mismatches, *report.findings, *missing)) if mismatches or missing else report


def _not_drafted(report: Report) -> tuple[Finding, ...]:
    """Say that draft tokens, which were asked for, could not be compared."""
    if any(item.compared for item in report.drafted):
        return ()
    reason = next((item.reason for item in report.drafted if item.reason), "the target is another one")
    return (
        finding(
            "nothing-compared",
            f"no draft token could be compared: {reason}",
            next_step="give what is missing, or leave --drafts out: then they are compared where they can be",
        ),
    )


def _of_another_target(
    contract: Contract, target: str | os.PathLike[str] | None, *, follow_links: bool
) -> tuple[Finding, ...]:
    from featurecontract.checkpoint import read_target
    from featurecontract.gate._inputs import mismatches

    if target is None:
        return ()
    return tuple(mismatches(contract, read_target(os.fspath(target), follow_links=follow_links)))


def verify_captures(
    contract: Contract,
    probe: ProbeData,
    captures: Iterable[Capture],
    *,
    path: str,
    file: str = "",
    drafting: Callable[[Capture], tuple[Drafted, tuple[Finding, ...]]] | None = None,
    confidence: float = 0.9,
    strict: bool = False,
) -> Report:
    """Verify captures that are in memory; with ``drafting``, such as a `Drafting`, their draft tokens too."""
    from featurecontract.identify import identify

    sha256 = digest(contract)
    findings: list[Finding] = []
    observed: list[Observed] = []
    drafted: list[Drafted] = []
    for capture in captures:
        findings += _usable(capture, sha256)
        if drafting is not None:
            redrafted, differences = drafting(capture)
            drafted.append(redrafted)
            findings += differences
        for item in identify(probe, contract, capture, confidence=confidence):
            named = replace(item, runtime=capture.runtime)
            observed.append(named)
            findings += [_tagged(entry, named) for entry in item.findings]
            if item.rows:
                wrong = diff(contract.wiring, item.wiring, origin="observed")
                findings += [_tagged(_with_step(entry, path, capture.runtime), named) for entry in wrong]
    if not observed:
        findings.append(
            finding(
                "nothing-captured",
                "no call of the projection was captured",
                next_step="send the probe through the server while capture is on, and look for its marker in the log",
            )
        )
    return Report(
        checkpoint=path,
        contract_path=file or None,
        contract_sha256=sha256,
        declared=contract.wiring,
        num_hidden_layers=contract.target.num_hidden_layers,
        observed=tuple(observed),
        drafted=tuple(drafted),
        findings=tuple(findings),
        compared=sum(len(item.slots) for item in observed if item.rows) + sum(item.compared > 0 for item in drafted),
        strict=strict,
    )


def _usable(capture: Capture, sha256: str) -> list[Finding]:
    """Say what keeps a capture from proving anything."""
    out = []
    if capture.failure:
        out.append(
            finding(
                "nothing-captured",
                f"the capturing hook detached itself: {capture.failure}",
                next_step="mend what it names and capture again; what it caught before is shown, and proves nothing",
            )
        )
    if capture.contract_sha256 and capture.contract_sha256 != sha256:
        raise InputError.single(
            capture.source or "the capture",
            f"was made for the contract {capture.contract_sha256[:12]}, this one is {sha256[:12]}",
            next_step="capture again with this checkpoint, or verify against the contract it was made for",
            slug="nothing-compared",
        )
    return out


def _with_step(item: Finding, path: str, runtime: str) -> Finding:
    """Return a difference with what to do about it: the rules know which key of the config feeds what is declared."""
    if item.next_step or item.severity != "error":
        return item
    words = ["featurecontract", "check", path, "--runtime", runtime or "NAME==VERSION"]
    step = f"`{shlex.join(words)}`: if that fails too, it says what to write; if it holds, another config is served"
    return replace(item, next_step=step)


def _tagged(item: Finding, observed: Observed) -> Finding:
    where = f"{observed.runtime or 'capture'}{f' {observed.phase}' if observed.phase else ''}"
    return item if item.runtime else replace(item, runtime=where)
