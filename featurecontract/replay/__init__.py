"""Replay: a drafter's own weights on recorded hidden states, under any wiring. torch is loaded on first use only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from featurecontract.replay._alternatives import Alternative, alternatives
    from featurecontract.replay._drafter import Drafter, State
    from featurecontract.replay._estimate import (
        Comparison,
        Estimate,
        acceptance_length,
        paired,
        paired_counts,
        paired_sums,
        step_accuracies,
    )
    from featurecontract.replay._fed import Fed, drafted_tokens, fed_rows, text_of_rows
    from featurecontract.replay._live import LiveTexts, cut
    from featurecontract.replay._localise import Place, beyond_chance, localise
    from featurecontract.replay._measure import Tally, measure
    from featurecontract.replay._read import read_drafter, read_tensor
    from featurecontract.replay._redraft import Redrafted, TokenPair, redraft, rounded
    from featurecontract.replay._rope import RopeSpec
    from featurecontract.replay._rounds import Round, Rounds, rounds_of
    from featurecontract.replay._search import Found, Ranked, search
    from featurecontract.replay._spec import DrafterSpec
    from featurecontract.replay._target import TargetParts, parts_of_checkpoint, parts_of_model
    from featurecontract.replay._texts import (
        PlaneName,
        RecordedTexts,
        Text,
        Texts,
        batches,
        distinct,
        names_of,
        wiring_planes,
    )
    from featurecontract.replay._unroll import Step, unroll

__all__ = [
    "Alternative",
    "Comparison",
    "Drafter",
    "DrafterSpec",
    "Estimate",
    "Fed",
    "Found",
    "LiveTexts",
    "Place",
    "PlaneName",
    "Ranked",
    "RecordedTexts",
    "Redrafted",
    "RopeSpec",
    "Round",
    "Rounds",
    "State",
    "Step",
    "Tally",
    "TargetParts",
    "Text",
    "Texts",
    "TokenPair",
    "acceptance_length",
    "alternatives",
    "batches",
    "beyond_chance",
    "cut",
    "distinct",
    "drafted_tokens",
    "fed_rows",
    "localise",
    "measure",
    "names_of",
    "paired",
    "paired_counts",
    "paired_sums",
    "parts_of_checkpoint",
    "parts_of_model",
    "read_drafter",
    "read_tensor",
    "redraft",
    "rounded",
    "rounds_of",
    "search",
    "step_accuracies",
    "text_of_rows",
    "unroll",
    "wiring_planes",
]

_HOMES = {
    "_alternatives": ("Alternative", "alternatives"),
    "_drafter": ("Drafter", "State"),
    "_estimate": (
        "Comparison",
        "Estimate",
        "acceptance_length",
        "paired",
        "paired_counts",
        "paired_sums",
        "step_accuracies",
    ),
    "_fed": ("Fed", "drafted_tokens", "fed_rows", "text_of_rows"),
    "_live": ("LiveTexts", "cut"),
    "_localise": ("Place", "beyond_chance", "localise"),
    "_measure": ("Tally", "measure"),
    "_read": ("read_drafter", "read_tensor"),
    "_redraft": ("Redrafted", "TokenPair", "redraft", "rounded"),
    "_rope": ("RopeSpec",),
    "_rounds": ("Round", "Rounds", "rounds_of"),
    "_search": ("Found", "Ranked", "search"),
    "_spec": ("DrafterSpec",),
    "_target": ("TargetParts", "parts_of_checkpoint", "parts_of_model"),
    "_texts": ("PlaneName", "RecordedTexts", "Text", "Texts", "batches", "distinct", "names_of", "wiring_planes"),
    "_unroll": ("Step", "unroll"),
}


def __getattr__(name: str) -> Any:
    """Import a public name from its module on first use."""
    from importlib import import_module

    for module, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"featurecontract.replay.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
