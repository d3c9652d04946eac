"""One pass over one stored sequence: what is wrong with its numbers, without knowing which planes they are."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING

import torch

from featurecontract.identify._states import blank_state, row_sizes
from featurecontract.states._stored import common_rows, plane_widths

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from featurecontract.contract import Wiring
    from featurecontract.states._sample import Sample

__all__ = ["PlaneFault", "Scan", "scan"]

# Enough rows to tell sequences apart; hashing all of a long one would cost more than reading it.
_PRINT_ROWS = 64
_FEWEST_ROWS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaneFault:
    """``slug`` of planes ``slots``; ``rows`` is the first range of rows that shows it, None for all."""

    slug: str
    slots: tuple[int, ...]
    rows: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """What one file was found to hold.

    Attributes:
        source: The file.
        tokens: Its number of tokens.
        width: Columns that go to the projection.
        faults: What is wrong with its planes.
        prints: By slot, a digest of the plane's first rows; empty for a blank plane.
        token_print: A digest of the token ids of the same rows.
        worst_token: The largest token id, or the smallest where one is negative.
        probe_rows: Leading tokens that are the probe's.
    """

    source: str
    tokens: int
    width: int
    faults: tuple[PlaneFault, ...]
    prints: tuple[bytes, ...]
    token_print: bytes
    worst_token: int
    probe_rows: int


def scan(sample: Sample, wiring: Wiring, *, probe_tokens: Sequence[int] = ()) -> Scan:
    """Return what is wrong with a sequence; ``wiring`` says what each stored plane should be, the last one included."""
    widths = plane_widths(sample, wiring)
    planes = _planes(sample, widths)
    states = [blank_state(plane, row_sizes(plane, [(0, int(plane.shape[1]))])[:, 0]) for plane in planes]
    faults = [
        PlaneFault(slug=state, slots=(slot,), rows=_bad_rows(planes[slot]) if state == "non-finite" else None)
        for slot, state in enumerate(states)
        if state and (state != "constant" or len(sample) >= _FEWEST_ROWS)
    ]
    for first, second in combinations(range(len(planes)), 2):
        if not states[first] and not states[second] and not _meant_alike(wiring, first, second):
            a, b = planes[first], planes[second]
            # One row first: equal planes are rare, and a whole comparison reads both.
            if a.shape == b.shape and torch.equal(a[-1], b[-1]) and torch.equal(a, b):
                faults.append(PlaneFault(slug="slot-duplicate", slots=(first, second)))
    low, high = (int(item) for item in sample.token_ids.aminmax())
    return Scan(
        source=sample.source,
        tokens=len(sample),
        width=int(sample.features.shape[1]),
        faults=tuple(faults),
        prints=tuple(b"" if state else _print(plane) for plane, state in zip(planes, states, strict=True)),
        token_print=_print(sample.token_ids),
        worst_token=low if low < 0 else high,
        probe_rows=common_rows(sample.token_ids, torch.tensor(probe_tokens, dtype=torch.int64)),
    )


def _planes(sample: Sample, widths: tuple[int, ...]) -> list[Tensor]:
    starts = [sum(widths[:slot]) for slot in range(len(widths))]
    planes = [sample.features[:, at : at + width] for at, width in zip(starts, widths, strict=True)]
    return planes if sample.last is None else [*planes, sample.last]


def _meant_alike(wiring: Wiring, first: int, second: int) -> bool:
    """Whether both slots are declared to be one tensor: a target whose last plane is fed as well."""
    if second >= len(wiring.features):
        return False
    a, b = wiring.features[first], wiring.features[second]
    return (a.boundary, a.state, a.scale) == (b.boundary, b.state, b.scale)


def _bad_rows(plane: Tensor) -> tuple[int, int]:
    bad = (~torch.isfinite(plane).all(dim=1)).nonzero().flatten()
    first = int(bad[0])
    stop = first + 1
    while stop - first < len(bad) and int(bad[stop - first]) == stop:
        stop += 1
    return first, stop


def _print(values: Tensor) -> bytes:
    data = values[:_PRINT_ROWS].contiguous().view(torch.uint8).numpy()
    return hashlib.blake2b(data.tobytes(), digest_size=16).digest()
