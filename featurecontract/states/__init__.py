"""Stored hidden states: readers for the files that trainers write, one value type for all. torch is loaded on use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from featurecontract.states._formats import FORMATS, StateFormat
    from featurecontract.states._sample import LastState, Sample
    from featurecontract.states._set import StateSet, open_states

__all__ = ["FORMATS", "LastState", "Sample", "StateFormat", "StateSet", "open_states"]

_HOMES = {
    "_formats": ("FORMATS", "StateFormat"),
    "_sample": ("LastState", "Sample"),
    "_set": ("StateSet", "open_states"),
}


def __getattr__(name: str) -> Any:
    """Import a public name from its module on first use."""
    from importlib import import_module

    for module, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"featurecontract.states.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
