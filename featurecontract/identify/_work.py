"""One observation while it is being made."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from featurecontract.contract import Feature
from featurecontract.findings import Finding, SlotReading, finding

if TYPE_CHECKING:
    from torch import Tensor

    from featurecontract.contract import Contract, Wiring
    from featurecontract.probe._data import ProbeData

__all__ = ["Work", "add", "picked_of", "undecided"]


@dataclass(slots=True)
class Work:
    """What an observation is made from, and what was found so far.

    ``dtype`` and ``quantization`` are what the capture says of the runtime, empty where it says nothing.
    """

    contract: Contract
    probe: ProbeData
    confidence: float
    dtype: str = ""
    quantization: str = ""
    findings: list[Finding] = field(default_factory=list)


def add(work: Work, slug: str, message: str, slots: tuple[int, ...], **fields: Any) -> None:
    columns = [work.contract.wiring.columns(slot) for slot in slots if slot < len(work.contract.features)]
    work.findings.append(
        finding(slug, message, slots=slots, columns=tuple(item for item in columns if item is not None), **fields)
    )


def undecided(declared: Wiring, slot: int, dim: int) -> SlotReading:
    wanted = declared.features[slot] if slot < len(declared.features) else Feature(slot=slot, boundary=None)
    return SlotReading(slot=slot, feature=replace(wanted, slot=slot, dim=dim))


def picked_of(channels: Tensor, dim: int) -> Tensor:
    """Return the fingerprint's channels that a slot of ``dim`` columns has."""
    return channels if int(channels.max()) < dim else channels[channels < dim]
