"""Serving flags -> findings: effective against requested, then against the contract's ``serving``."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from featurecontract.findings import Finding, finding
from featurecontract.serving._effective import Effective, Setting
from featurecontract.serving._rules import RUNTIMES, family_of
from featurecontract.serving._sglang import effective_sglang
from featurecontract.serving._tensorrt_llm import effective_tensorrt_llm
from featurecontract.serving._vllm import effective_vllm

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from featurecontract.contract import Serving
    from featurecontract.findings import Severity
    from featurecontract.serving._arguments import Arguments

__all__ = ["check_flags", "effective"]


class _Part(NamedTuple):
    """A number of the draft shape: its name in ``Effective`` and the contract, its slug, its words."""

    name: str
    slug: str
    words: str


_SHAPE = (
    _Part("num_steps", "steps-forced", "draft steps"),
    _Part("top_k", "steps-forced", "drafts per step (top-k)"),
    _Part("num_draft_tokens", "draft-tokens-forced", "draft tokens"),
)


def effective(
    runtime: str,
    version: str,
    arguments: Arguments,
    *,
    method: str,
    target_architecture: str | None = None,
    drafter_path: str | None = None,
    draft_config: Mapping[str, Any] | None = None,
) -> Effective:
    """Return the draft shape that a server with these arguments runs.

    Args:
        runtime: ``sglang``, ``vllm-v1``, ``vllm-v2`` or ``tensorrt-llm``; others give an empty ``Effective``.
        version: Its version.
        arguments: What ``read_arguments`` returned.
        method: The contract's method, such as ``eagle3``; empty where it is not known.
        target_architecture: Such as ``LlamaForCausalLM``; None where nobody named it.
        drafter_path: The drafter that is checked.
        draft_config: Its ``config.json``.

    Raises:
        UsageError: a version or a flag has a value that cannot be used.
    """
    config = draft_config or {}
    if runtime == "sglang":
        return effective_sglang(
            version,
            arguments,
            method=method,
            target_architecture=target_architecture,
            drafter_path=drafter_path,
            draft_config=config,
        )
    if family_of(runtime) == "vllm":
        return effective_vllm(
            runtime, version, arguments, method=method, drafter_path=drafter_path, draft_config=config
        )
    if runtime == "tensorrt-llm":
        return effective_tensorrt_llm(version, arguments, method=method, drafter_path=drafter_path)
    return Effective()


def check_flags(
    runtime: str,
    version: str,
    arguments: Arguments,
    *,
    method: str,
    target_architecture: str | None = None,
    drafter_path: str | None = None,
    draft_config: Mapping[str, Any] | None = None,
    contract_serving: Serving | None = None,
) -> tuple[Finding, ...]:
    """Return what these arguments do that nobody asked for, or that the contract's drafter was not made for.

    An error only where the effective value differs from a request or from ``contract_serving``, or where the server
    does not start; what the runtime chooses by itself is a note. Other runtimes than the four give no findings.

    Raises:
        UsageError: a version or a flag has a value that cannot be used.
    """
    if runtime not in RUNTIMES:
        return ()
    served = effective(
        runtime,
        version,
        arguments,
        method=method,
        target_architecture=target_architecture,
        drafter_path=drafter_path,
        draft_config=draft_config,
    )
    place = f"{runtime}=={version}"
    families = arguments.families()
    if served.algorithm.origin == "off" and families and family_of(runtime) not in families:
        names = " and ".join(sorted(families))
        message = f"these are flags of {names}: none of them switches drafting on in {runtime}, and none was checked"
        return (_finding("algorithm-missing", message, "note", place, served.algorithm, parameter="algorithm"),)
    found = list(_algorithm(served, place, contract_serving))
    if served.algorithm.origin not in {"off", "refused"}:
        found += _draft_path(served.draft_path, place)
        found += _shape(served, place, contract_serving)
    found += _acceptance(served, place)
    return tuple(found)


def _finding(
    slug: str,
    message: str,
    severity: Severity,
    place: str,
    setting: Setting,
    *,
    parameter: str,
    requested: Any = None,
    **more: Any,
) -> Finding:
    details = {
        "parameter": parameter,
        "requested": setting.requested if requested is None else requested,
        "effective": setting.effective,
        "reason": setting.reason,
        **({"log": setting.log} if setting.log else {}),
        **more,
    }
    return finding(
        slug,
        message,
        severity=severity,
        runtime=place,
        details=details,
        next_step=setting.next_step,
        source=setting.source,
    )


def _algorithm(served: Effective, place: str, serving: Serving | None) -> Iterator[Finding]:
    slug, setting = "algorithm-missing", served.algorithm
    if setting.origin == "off":
        # Nobody asked for drafting in so many words, but somebody checks a drafter with this command line.
        asked = setting.requested is not None or _names_shape(serving)
        yield _finding(slug, setting.reason, "error" if asked else "warning", place, setting, parameter="algorithm")
    elif setting.origin == "refused":
        yield _finding(slug, setting.reason, "error", place, setting, parameter="algorithm")
    elif served.method.origin == "forced":
        yield _finding(slug, served.method.reason, "error", place, served.method, parameter="method")
    elif setting.origin == "forced":
        yield _finding(slug, setting.reason, "error", place, setting, parameter="algorithm")
    elif setting.origin == "unknown":
        yield _finding(slug, setting.reason, "warning", place, setting, parameter="algorithm")
    elif setting.origin == "automatic":
        yield _finding(slug, setting.reason, "note", place, setting, parameter="algorithm")


def _names_shape(serving: Serving | None) -> bool:
    return serving is not None and any(getattr(serving, part.name) is not None for part in _SHAPE)


def _draft_path(setting: Setting, place: str) -> Iterator[Finding]:
    severity: Severity | None = {"refused": "error", "unknown": "warning", "automatic": "note"}.get(setting.origin)  # type: ignore[assignment]
    if severity is not None:
        yield _finding("draft-path-default", setting.reason, severity, place, setting, parameter="draft_path")


def _shape(served: Effective, place: str, serving: Serving | None) -> Iterator[Finding]:
    told = False
    reasons: set[str] = set()
    for part in _SHAPE:
        setting: Setting = getattr(served, part.name)
        wanted: int | None = getattr(serving, part.name) if serving is not None else None
        tree = serving is not None and (serving.top_k or 1) > 1
        if part.name == "num_draft_tokens" and tree and served.top_k.effective is None:
            # A tree's rows say nothing about a runtime that drafts chains.
            wanted = None
        if setting.effective is None and setting.origin != "refused":
            item = _unsettled(part, setting, wanted, place)
        else:
            item = _settled(part, setting, wanted, place, told=told)
        # One choice of the runtime sets all three; it is told once.
        if item is not None and not (item.severity == "note" and setting.reason in reasons):
            told = told or item.severity == "error"
            reasons.add(setting.reason)
            yield item


def _settled(part: _Part, setting: Setting, wanted: int | None, place: str, *, told: bool) -> Finding | None:
    """``told``: an error of this shape is out already, and speaks for what follows from it."""
    contract = {} if wanted is None else {"contract": wanted}
    message, requested = "", setting.requested
    severity: Severity = "error"
    if setting.origin == "refused":
        message = setting.reason
    elif requested is not None and requested != setting.effective:
        message = f"{requested} {part.words} asked for, {setting.effective} served: {setting.reason}"
    elif wanted not in {None, setting.effective}:
        why = f" ({setting.reason})" if setting.reason else ""
        message = f"the drafter was made for {wanted} {part.words}, {setting.effective} served{why}"
        message, requested = "" if setting.follows and told else message, wanted
        setting = replace(setting, next_step=f"serve {wanted}, or correct serving.{part.name} of the contract")
    elif requested is None and wanted is None and setting.origin == "automatic":
        message, severity = setting.reason, "note"
    if not message:
        return None
    return _finding(
        part.slug,
        message,
        severity,
        place,
        setting,
        parameter=part.name,
        requested=requested,
        **contract,
    )


def _unsettled(part: _Part, setting: Setting, wanted: int | None, place: str) -> Finding | None:
    """A value that depends on something unnamed: an error only if no alternative is the contract's."""
    if setting.origin != "unknown":
        return None
    message = setting.reason
    severity: Severity = "note" if wanted is None else "warning"
    if wanted is not None and setting.alternatives and wanted not in setting.alternatives:
        message, severity = f"the drafter was made for {wanted} {part.words}: {setting.reason}", "error"
    elif setting.follows:
        return None
    return _finding(part.slug, message, severity, place, setting, parameter=part.name, requested=wanted)


def _acceptance(served: Effective, place: str) -> Iterator[Finding]:
    slug = "forced-acceptance"
    for setting in served.forced_acceptance:
        sure = setting.origin == "request"
        verb = "forces" if sure else "may force"
        message = f"{setting.effective} {verb} the acceptance length: what this server reports measures nothing"
        yield _finding(slug, message, "error" if sure else "warning", place, setting, parameter="forced_acceptance")
    for setting in served.lossy_acceptance:
        message = f"{setting.effective} accepts drafts that exact sampling rejects: its acceptance is not comparable"
        yield _finding(slug, message, "warning", place, setting, parameter="lossy_acceptance")
