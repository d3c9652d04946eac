"""The next step of a wiring finding: the key and the value to write for this runtime, or from which version on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from featurecontract.runtimes import NAMES, Spelled, choose, express, express_from

if TYPE_CHECKING:
    from featurecontract.contract import Wiring
    from featurecontract.runtimes import Query, RuntimeChoice

__all__ = ["advise", "spelled_text"]

_FILES = {"drafter": "the drafter's config.json", "target": "the target's config.json", "serving": "the server options"}


def spelled_text(spelled: Spelled) -> str:
    """Return an edit as words that can be pasted."""
    if spelled.ids is None:
        return "leave the ids out: the default list is the declared one"
    ids = list(spelled.ids)
    if spelled.where == "serving":
        return f"serve with {spelled.key}: {ids}"
    *parents, last = spelled.key.split(".")
    text = f'"{last}": {ids}'
    for parent in reversed(parents):
        text = f'"{parent}": {{{text}}}'
    return f"write {text} in {_FILES[spelled.where]}"


def advise(choice: RuntimeChoice, query: Query, declared: Wiring) -> str:
    """Return what to do so that this runtime feeds the declared wiring."""
    title, version = choice.rules.title, choice.version
    found = express(choice.rules, choice.runner, version, query, declared)
    if found is not None:
        return spelled_text(found)
    later = express_from(choice.rules, choice.runner, version, query, declared)
    what = f"{title} {version} cannot express [{declared}] on this target"
    if later is not None:
        return f"{what}; from {later.version} on {spelled_text(later)}"
    boundaries = [item for item in declared.boundaries if item is not None]
    if boundaries != sorted(boundaries):
        ascending = sorted(range(len(boundaries)), key=lambda slot: boundaries[slot])
        return (
            f"{what}: it feeds blocks in ascending order; permute the column blocks of the projection's weight to "
            f"{ascending} and the contract's features with them"
        )
    others = _elsewhere(choice, query, declared)
    elsewhere = f"serve with {others}" if others else "serve with another runtime"
    return f"{what}, nor can any version up to {choice.rules.newest}; {elsewhere}, or retrain"


def _elsewhere(choice: RuntimeChoice, query: Query, declared: Wiring) -> str:
    """Return up to two other runtimes that can feed the declared wiring, with the edit for the first."""
    found: list[str] = []
    for name in NAMES:
        for other in choose(name):
            if other.rules.runtime == choice.rules.runtime:
                continue
            spelled = express(other.rules, other.runner, other.version, query, declared)
            if spelled is not None:
                found.append(f"{other.key} ({spelled_text(spelled)})" if not found else other.key)
        if len(found) > 1:
            break
    return " or ".join(found[:2])
