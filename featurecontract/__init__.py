"""Contract tests for the hidden states that a drafter is trained on and a serving runtime feeds.

Everything here is imported on first use: ``import featurecontract`` loads none of torch, jsonschema, hypothesis, rich.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from featurecontract._version import __version__

if TYPE_CHECKING:
    from featurecontract.contract import Contract, Feature, Wiring, load, save
    from featurecontract.findings import diff
    from featurecontract.gate import predict, record, verify

__all__ = ["Contract", "Feature", "Wiring", "__version__", "diff", "load", "predict", "record", "save", "verify"]

_HOMES = {
    "Contract": "featurecontract.contract",
    "Feature": "featurecontract.contract",
    "Wiring": "featurecontract.contract",
    "load": "featurecontract.contract",
    "save": "featurecontract.contract",
    "verify": "featurecontract.gate",
    "diff": "featurecontract.findings",
    "predict": "featurecontract.gate",
    "record": "featurecontract.gate",
}


def __getattr__(name: str) -> Any:
    """Import a public name from its home on first use."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    """List the public names, imported or not."""
    return sorted(__all__)
