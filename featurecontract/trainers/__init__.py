"""Trainers leave a contract and its probe beside their checkpoints; one call or one line for each (docs/trainers.md).

Nothing of a trainer is imported before it is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from featurecontract.trainers._attach import Attachment
    from featurecontract.trainers._emitter import Emitter, emit
    from featurecontract.trainers._ids import LayerIds
    from featurecontract.trainers._modelopt import attach_modelopt
    from featurecontract.trainers._specforge import attach_specforge
    from featurecontract.trainers._speculators import attach_speculators
    from featurecontract.trainers._transformers import trainer_callback

__all__ = [
    "Attachment",
    "Emitter",
    "LayerIds",
    "attach_modelopt",
    "attach_specforge",
    "attach_speculators",
    "emit",
    "trainer_callback",
]

_HOMES = {
    "_attach": ("Attachment",),
    "_emitter": ("Emitter", "emit"),
    "_ids": ("LayerIds",),
    "_modelopt": ("attach_modelopt",),
    "_specforge": ("attach_specforge",),
    "_speculators": ("attach_speculators",),
    "_transformers": ("trainer_callback",),
}


def __getattr__(name: str) -> Any:
    """Import a public name from its module on first use."""
    from importlib import import_module

    for module, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"featurecontract.trainers.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
