"""What a JSON Schema cannot say: statements of a contract that contradict each other."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from featurecontract.errors import Problem

if TYPE_CHECKING:
    from collections.abc import Iterator

    from featurecontract.contract._contract import Contract

__all__ = ["consistency_problems", "is_plain_name"]


def is_plain_name(name: str) -> bool:
    """Whether a name from a file's contents may be opened beside that file: no folder, no ``..``, no drive."""
    return bool(re.fullmatch(r"[A-Za-z0-9_.+\-][A-Za-z0-9_.+\- ]{0,254}", name)) and name.strip(".") != ""


def consistency_problems(contract: Contract) -> Iterator[Problem]:
    """Yield every contradiction, with the JSON path of the statement to change."""
    yield from _features(contract)
    yield from _projections(contract)
    if contract.probe and not is_plain_name(contract.probe.file):
        yield Problem(
            place="probe.file", message=f"{contract.probe.file!r} is not a plain file name", next_step="name no folder"
        )
    draft, full = contract.vocab.draft_vocab_size, contract.target.vocab_size
    if draft is not None and full is not None and draft > full:
        yield Problem(place="vocab.draft_vocab_size", message=f"{draft} is more than the target's vocabulary of {full}")


def _features(contract: Contract) -> Iterator[Problem]:
    depth = contract.target.num_hidden_layers
    for index, feature in enumerate(contract.features):
        place = f"features[{index}]"
        if feature.slot != index:
            yield Problem(
                place=f"{place}.slot", message=f"is {feature.slot} at position {index}", next_step="list slots in order"
            )
        if feature.source != "target":
            if feature.boundary is not None:
                yield Problem(
                    place=f"{place}.boundary", message=f"a slice whose source is {feature.source} has no boundary"
                )
            continue
        if feature.boundary is None:
            yield Problem(place=f"{place}.boundary", message="is missing", next_step=f"write a boundary 0..{depth}")
        elif feature.boundary > depth:
            yield Problem(
                place=f"{place}.boundary",
                message=f"h[{feature.boundary}] does not exist on a target of {depth} layers",
                next_step=f"write a boundary 0..{depth}",
            )
        elif feature.state == "final_norm" and feature.boundary != depth:
            yield Problem(
                place=f"{place}.state",
                message=f"final_norm is the norm of h[{depth}], not of h[{feature.boundary}]",
                next_step=f"write boundary {depth}, or state residual",
            )


def _projections(contract: Contract) -> Iterator[Problem]:
    count = len(contract.features)
    for index, projection in enumerate(contract.projections):
        place = f"projections[{index}]"
        beyond = [slot for slot in projection.slots if slot >= count]
        if beyond:
            yield Problem(
                place=f"{place}.slots", message=f"slot {beyond[0]} does not exist; there are {count} features"
            )
            continue
        width = sum(contract.features[slot].dim or 0 for slot in projection.slots)
        if width != projection.in_features:
            yield Problem(
                place=f"{place}.in_features",
                message=f"is {projection.in_features}, but its {len(projection.slots)} slots are {width} wide together",
                next_step=f"write {width}, or correct the slots' dim",
            )
