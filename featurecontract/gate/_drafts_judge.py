"""Whether a runtime drafts what the weights draft, and where to look when it does not."""

from __future__ import annotations

import math
import shlex
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from featurecontract.findings import Drafted, Finding, finding

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from featurecontract.replay import Redrafted, TokenPair

__all__ = ["judge_drafts"]

#: With fewer tokens a difference that chance could make is said to be open; with more it is in the counts only.
_ENOUGH = 300
#: Share of the tokens that an alternative must draft like the runtime to be called the cause.
_NEARLY_ALL = 0.95
#: Share of near ties above which logits say nothing: those of working drafters in bfloat16 are near 0.015.
_HAZY = 0.25

#: What to look at, by part of the drafter; `{check}` is the command that compares files and runtime.
_LOOK = {
    "head": "serve the drafter with its own lm_head; `{check}` says whose head the runtime takes",
    "map": "serve the d2t of this checkpoint; `{check} --digests` compares the served copy's",
    "embedding": "serve the embedding that the drafter was trained with; `{check}` says whose the runtime takes",
    "rope": "state rope_theta and rope_scaling in the served config.json as trained; `{check}` compares them",
    "state": "state norm_output in the served config.json as trained; `{check}` says whether the runtime reads it",
    "position": "report it to the runtime: steps 2 and on must stand at the next positions",
    "residual": "state norm_before_residual as trained in the served config.json; `{check}` says whether it is read",
    "norm": "state the norms as trained in the served config.json; `{check}` says which flags the runtime reads",
}


def judge_drafts(
    drafted: Drafted,
    pairs: Sequence[TokenPair],
    tried: Callable[[], list[tuple[str, str, Redrafted]]],
    *,
    path: str,
    target: str,
    runtime: str,
) -> tuple[Drafted, tuple[Finding, ...]]:
    """Return what was drafted with its class and cause, and the findings.

    Args:
        drafted: The counts.
        pairs: Every token.
        tried: Drafts again with every alternative; called only where differences are beyond chance.
        path: The drafter's directory, for the next step.
        target: The target's, or empty.
        runtime: As ``NAME==VERSION``, or empty.
    """
    from featurecontract import replay

    differing = [pair for pair in pairs if pair.differs]
    hazy = () if drafted.near_ties <= max(1, _HAZY * len(pairs)) else (_hazy(drafted, len(pairs)),)
    if not differing:
        return drafted, hazy
    impossible = sum(math.isinf(pair.gap) for pair in differing)
    counts = {
        "compared": len(pairs),
        "differing": len(differing),
        "near_ties": drafted.near_ties,
        "impossible": impossible,
        "rounds": drafted.rounds,
    }
    if not replay.beyond_chance(len(differing), len(pairs), impossible=impossible):
        return drafted, hazy if len(pairs) >= _ENOUGH or hazy else (_open(counts, runtime),)
    place = replay.localise(pairs)
    results = tried()
    explaining = [(name, part) for name, part, other in results if _explains(other)]
    explained_by = explaining[0][0] if len(explaining) == 1 else ""
    drafted = replace(drafted, step=place.step, step_class=place.step_class, explained_by=explained_by)
    details: dict[str, Any] = counts | {
        "step": place.step,
        "class": place.step_class,
        "explained_by": explained_by or None,
        "steps": {str(item.step): f"{item.equal + item.near_ties} of {item.compared}" for item in drafted.steps},
        "candidates": [name for name, _ in explaining],
    }
    found = finding(
        "draft-tokens-differ",
        f"{len(differing)} of {len(pairs)} draft tokens are not what the weights draft on the captured rows, first at "
        f"step {place.step}: look at {place.step_class}",
        runtime=_where(drafted),
        details=details,
        cause=_cause(results, explaining, impossible),
        next_step=_next_step(explaining, place.step_class, path, target, runtime),
    )
    return drafted, (found,)


def _explains(other: Redrafted) -> bool:
    from featurecontract import replay

    compared = len(other.pairs)
    impossible = sum(math.isinf(pair.gap) for pair in other.pairs if pair.differs)
    return (
        compared > 0
        and compared - other.differing >= _NEARLY_ALL * compared
        and not replay.beyond_chance(other.differing, compared, impossible=impossible)
    )


def _cause(results: list[tuple[str, str, Redrafted]], explaining: list[tuple[str, str]], impossible: int) -> str:
    said = {name: f"{len(other.pairs) - other.differing} of {len(other.pairs)} tokens" for name, _, other in results}
    if len(explaining) == 1:
        name = explaining[0][0]
        return f"the runtime drafts {said[name]} with {name}"
    if explaining:
        names = " or with ".join(name for name, _ in explaining[:4])
        return f"the runtime's tokens come with {names}; these rounds cannot tell which"
    if impossible:
        return f"{impossible} of its tokens are not in the drafter's vocabulary: another map, or another head"
    return ""


def _next_step(explaining: list[tuple[str, str]], step_class: str, path: str, target: str, runtime: str) -> str:
    words = ["featurecontract", "check", path, *(["--target", target] if target else [])]
    words += ["--runtime", runtime] if runtime else []
    check = shlex.join(words)
    parts = list(dict.fromkeys(part for _, part in explaining))
    if len(parts) == 1:
        return _LOOK[parts[0]].format(check=check)
    return f"compare {step_class} of the served copy with the contract: {check} --digests"


def _open(counts: dict[str, int], runtime: str) -> Finding:
    differing, compared = counts["differing"], counts["compared"]
    return finding(
        "inconclusive",
        f"{differing} of {compared} draft tokens {'is' if differing == 1 else 'are'} not what the weights draft on the "
        "captured rows: too few rounds to tell a fault from chance",
        runtime=runtime or "capture",
        details={"about": "draft-tokens-differ"} | counts,
        next_step="send more prompts of different lengths while capture is on, and verify again",
    )


def _hazy(drafted: Drafted, compared: int) -> Finding:
    return finding(
        "inconclusive",
        f"{drafted.near_ties} of {compared} draft tokens are not what the weights draft and lie at near ties: "
        "logits that hardly vary tell no token from another",
        runtime=_where(drafted),
        details={"about": "draft-tokens-differ", "compared": compared, "near_ties": drafted.near_ties},
        cause="an output head or a final norm that is zero or constant, or weights that were never trained",
        next_step="look at the drafter's lm_head and norm; send other prompts while capture is on, and verify again",
    )


def _where(drafted: Drafted) -> str:
    phases = ", ".join(phase for phase in drafted.phases if phase)
    return f"{drafted.runtime or 'capture'}{f' {phases}' if phases else ''}"
