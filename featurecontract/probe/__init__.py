"""Probes: golden features for fixed tokens and fingerprints of every plane. torch is loaded on first use only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from featurecontract.probe._data import Bank, FinalNorm, ProbeData
    from featurecontract.probe._degenerate import check_probe, check_tokens
    from featurecontract.probe._file import write_probe
    from featurecontract.probe._layout import Layout, find_layout, text_config, vocab_size_of
    from featurecontract.probe._load import LoadedTarget, dtype_of, load_target, require_torch
    from featurecontract.probe._planes import KINDS, Plane, PlaneKind, all_planes
    from featurecontract.probe._read import read_probe
    from featurecontract.probe._record import Recording, record_probe
    from featurecontract.probe._similarity import similarity
    from featurecontract.probe._taps import Tapped, tap
    from featurecontract.probe._tokens import choose_tokens, read_tokens

__all__ = [
    "KINDS",
    "Bank",
    "FinalNorm",
    "Layout",
    "LoadedTarget",
    "Plane",
    "PlaneKind",
    "ProbeData",
    "Recording",
    "Tapped",
    "all_planes",
    "check_probe",
    "check_tokens",
    "choose_tokens",
    "dtype_of",
    "find_layout",
    "load_target",
    "read_probe",
    "read_tokens",
    "record_probe",
    "require_torch",
    "similarity",
    "tap",
    "text_config",
    "vocab_size_of",
    "write_probe",
]

_HOMES = {
    "_data": ("Bank", "FinalNorm", "ProbeData"),
    "_degenerate": ("check_probe", "check_tokens"),
    "_file": ("write_probe",),
    "_layout": ("Layout", "find_layout", "text_config", "vocab_size_of"),
    "_load": ("LoadedTarget", "dtype_of", "load_target", "require_torch"),
    "_planes": ("KINDS", "Plane", "PlaneKind", "all_planes"),
    "_read": ("read_probe",),
    "_record": ("Recording", "record_probe"),
    "_similarity": ("similarity",),
    "_taps": ("Tapped", "tap"),
    "_tokens": ("choose_tokens", "read_tokens"),
}


def __getattr__(name: str) -> Any:
    """Import a public name from its module on first use."""
    from importlib import import_module

    for module, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"featurecontract.probe.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
