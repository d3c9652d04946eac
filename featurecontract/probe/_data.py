"""What a probe holds, in memory: golden rows of the contract's slots, the bank of every plane, the final norm."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from featurecontract.probe._planes import Plane

__all__ = ["Bank", "FinalNorm", "ProbeData"]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Bank:
    """Small fingerprints of every plane, for the probe's rows.

    Attributes:
        planes: What each fingerprint is of.
        values: float32 ``[planes, rows, channels]``, as they were stored (rounded).
        channels: int64 ``[channels]``: which of the hidden channels they are, ascending, stratified over column blocks.
    """

    planes: tuple[Plane, ...]
    values: Tensor
    channels: Tensor


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class FinalNorm:
    """The target's final RMSNorm: ``weight`` ``[hidden]`` as applied (1 + w where the model adds one), and epsilon."""

    weight: Tensor
    eps: float


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ProbeData:
    """A probe.

    Attributes:
        token_ids: int64 ``[rows]``; row t is token t of one sequence that starts at position 0.
        golden: float32 ``[rows, width]``: the contract's slots side by side, ``width`` the projection's in_features, as
            they were stored (rounded). A slot's scale is applied, its row offset is not: row t is of token t.
        bank: Fingerprints of every plane.
        final_norm: The target's final norm, None when it is not an RMSNorm.
        gram: float32 ``[slots, rows, rows]``: inner products of the rows of each golden slot, unit rows.
        floor: Similarity of the probe with itself in a second dtype or batch shape, 1.0 for none: the noise floor.
        notes: What the recording left out, and why.
        unrecorded: Slots that no target tensor feeds (mask rows, the drafter's own embedding); their columns are zero.
    """

    token_ids: Tensor
    golden: Tensor
    bank: Bank
    final_norm: FinalNorm | None = None
    gram: Tensor | None = None
    floor: float = 1.0
    notes: tuple[str, ...] = field(default=())
    unrecorded: tuple[int, ...] = ()
