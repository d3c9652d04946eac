"""Runtimes by name: which rules stand for ``sglang==0.5.12``, and what to say when none do."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from featurecontract.errors import UsageError
from featurecontract.findings import Finding, finding
from featurecontract.runtimes._format import RuntimeRules, trust_rules
from featurecontract.runtimes._versions import build_number, in_range, parse_version, release_of

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["NAMES", "RuntimeChoice", "choose", "rules_of", "runtime_names"]

NAMES = (
    "sglang",
    "vllm",
    "tensorrt-llm",
    "llama.cpp",
    "lmdeploy",
    "tokenspeed",
    "atom",
    "tpu-inference",
    "sglang-jax",
    "xllm",
    "eagle",
    "transformers",
)
_RUNNERS = {"vllm-v1": "vllm", "vllm-v2": "vllm"}


@cache
def rules_of(name: str) -> RuntimeRules:
    """Return our own rules of a runtime; the tests parse them like a fork's file."""
    text = (Path(__file__).parent / "data" / f"{name}.json").read_text("utf-8")
    return trust_rules(json.loads(text))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class RuntimeChoice:
    """One runner of one version, with the rules that stand for it and what there is to say about the choice."""

    rules: RuntimeRules
    runner: str
    version: str
    findings: tuple[Finding, ...] = ()

    @property
    def key(self) -> str:
        """``NAME==VERSION``, the key of reports."""
        return f"{self.runner}=={self.version}"


def runtime_names(extra: Mapping[str, RuntimeRules] | None = None) -> tuple[str, ...]:
    """Return every name that ``--runtime`` takes."""
    return (*NAMES, *_RUNNERS, *(name for name in extra or {} if name not in NAMES))


def choose(text: str, *, extra: Mapping[str, RuntimeRules] | None = None) -> tuple[RuntimeChoice, ...]:
    """Read ``NAME[==VERSION]``; ``vllm`` stands for both of its runners.

    Raises UsageError for text that is not of this form. An unknown name gives no choice: `unknown_runtime` says so.
    """
    name, _, version = (part.strip() for part in text.partition("=="))
    if not name or "=" in name or ("==" in text and not version):
        raise UsageError(f"{text[:80]!r} is not NAME or NAME==VERSION; names: {', '.join(runtime_names(extra))}")
    rules = (extra or {}).get(name)
    if rules is None:
        home = _RUNNERS.get(name, name)
        if home not in NAMES:
            return ()
        rules = (extra or {}).get(home) or rules_of(home)
    findings: list[Finding] = []
    if not version:
        version = rules.newest
        findings.append(
            finding(
                "runtime-newer",
                f"no version given for {name}; the rules of the newest known, {version}, were used",
                details={"reason": "no-version", "newest_known": rules.newest},
                next_step=f"name what you serve: --runtime {name}=={version}",
            )
        )
    _plausible(rules, name, version)
    findings += _age(rules, name, version)
    runners = [name] if name in _RUNNERS else [item.name for item in rules.runners if in_range(version, item.versions)]
    return tuple(
        RuntimeChoice(rules=rules, runner=runner, version=version, findings=_named(findings, f"{runner}=={version}"))
        for runner in runners or [name]
    )


def _plausible(rules: RuntimeRules, name: str, version: str) -> None:
    """Raise UsageError for a version that this runtime cannot have."""
    shown, example = repr(version[:60]), f"give one such as {rules.newest}"
    if parse_version(version).epoch:
        raise UsageError(f"{shown} has an epoch, and no version of {name} has one; {example}")
    if build_number(version) and rules.scheme != "build" and rules.runtime != "llama.cpp":
        raise UsageError(f"{shown} is no version of {name}: only llama.cpp counts builds; {example}")


def _named(findings: list[Finding], key: str) -> tuple[Finding, ...]:
    from dataclasses import replace

    return tuple(replace(item, runtime=key) for item in findings)


def _age(rules: RuntimeRules, name: str, version: str) -> list[Finding]:
    given, oldest, newest = (release_of(item) for item in (version, rules.oldest, rules.newest))
    if rules.scheme == "snapshot":
        if given == newest:
            return []
        return [
            finding(
                "runtime-newer",
                f"the rules of {name} were read at {rules.snapshot}; {version} cannot be placed before or after it",
                details={"reason": "snapshot", "newest_known": rules.newest},
                next_step=f"compare {name}'s code with the rule's source, or write your own with --rules FILE",
            )
        ]
    if given > newest:
        return [
            finding(
                "runtime-newer",
                f"{name} {version} is newer than the newest known, {rules.newest}, whose rules were used",
                details={"reason": "newer", "newest_known": rules.newest},
                next_step="update featurecontract, or prove it with a capture (`verify`)",
            )
        ]
    if given < oldest:
        return [
            finding(
                "runtime-unknown",
                f"{name} {version} is older than the oldest known, {rules.oldest}, whose rules are shown",
                details={"reason": "older", "oldest_known": rules.oldest},
                next_step=f"serve with {rules.oldest} or newer, or write a rule with --rules FILE",
            )
        ]
    if rules.scheme == "pep440" and given not in {release_of(item) for item in rules.releases}:
        return [
            finding(
                "runtime-newer",
                f"{name} {version} is none of the releases whose code was read; the rules of that range were used",
                details={"reason": "unlisted", "newest_known": rules.newest},
                next_step="check the version's spelling, or prove it with a capture (`verify`)",
            )
        ]
    return []


def unknown_runtime(text: str, *, extra: Mapping[str, RuntimeRules] | None = None) -> Finding:
    """Return the finding for a runtime that nobody knows."""
    import difflib

    name = text.partition("==")[0].strip()
    close = difflib.get_close_matches(name, runtime_names(extra), n=3)
    hint = f"did you mean {', '.join(close)}? " if close else ""
    return finding(
        "runtime-unknown",
        f"{name[:80]!r} is not a known runtime",
        runtime=text[:120],
        next_step=f"{hint}known: {', '.join(runtime_names(extra))}; a fork's rule comes with --rules FILE",
    )
