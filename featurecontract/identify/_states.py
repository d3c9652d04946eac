"""Question 3: which state of its plane a slot is in: scaled, normed, part of a sum; and what needs no plane at all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from featurecontract.identify._calibration import Limits, scale_tolerance

if TYPE_CHECKING:
    from torch import Tensor

    from featurecontract.probe._data import FinalNorm

__all__ = ["RowState", "blank_state", "partial_sum", "row_sizes", "row_state", "same_geometry"]

# Rows that differ by less than this part of their largest value are one row; their sizes then differ by little more.
SAME_ROW, SAME_SIZE = 1e-6, 1e-3


def row_sizes(values: Tensor, blocks: list[tuple[int, int]]) -> Tensor:
    """Return the root mean square of each row in each block of columns (start, width), ``[rows, blocks]``.

    The one pass over every captured value; what else needs the full width is asked only of what this leaves open.
    """
    found = [torch.linalg.vector_norm(values[:, at : at + dim], dim=1) / dim**0.5 for at, dim in blocks]
    return torch.stack(found, dim=1)


def blank_state(values: Tensor, sizes: Tensor) -> str:
    """Return ``non-finite``, ``zero``, ``constant`` or empty for a slot ``[rows, dim]`` with row sizes ``[rows]``."""
    # A size may overflow where no value does.
    if not torch.isfinite(sizes).all() and not torch.isfinite(values).all():
        return "non-finite"
    largest = sizes.amax()
    if largest == 0 and not values.any():
        return "zero"
    # One row repeated: a buffer that was written once. Its rows have one size; what has not need not be looked at.
    if len(sizes) > 1 and not (sizes - sizes[0]).abs().amax() > SAME_SIZE * largest:
        first = values[:1]
        if (values - first).abs().amax() <= SAME_ROW * first.abs().amax():
            return "constant"
    return ""


@dataclass(frozen=True, slots=True)
class RowState:
    """How a slot's rows relate to its plane's: ``factor`` of size, and which norm they are behind, empty for none."""

    factor: float
    norm: str = ""


def row_state(
    full: Tensor, sizes: Tensor, picked: Tensor, plane: Tensor, similarity: float, *, last: FinalNorm | None = None
) -> RowState:
    """Compare sizes of rows.

    Behind an RMSNorm every row has exactly one size, whatever noise went before it; a plane's own rows differ. ``last``
    is given where the plane is h[L]: a tensor of one size after division by that norm's weight is the final norm's.

    Args:
        full: ``[rows, dim]``.
        sizes: Of its rows, ``[rows]``.
        picked: Its fingerprint ``[rows, channels]``.
        plane: The plane's, likewise.
        similarity: How alike the two are.
        last: The final norm.
    """
    own = _spread(_sizes(plane))
    if own > Limits.NORM_SPREAD:
        if last is not None and full.shape[1] == last.weight.shape[0]:
            usable = last.weight.abs() > 1e-3 * last.weight.abs().mean()
            inverse = torch.where(usable, last.weight, torch.inf).square().reciprocal()
            if _spread((full.square() @ inverse).clamp(min=1e-30).sqrt()) < own * Limits.NORM_RATIO:
                return RowState(1.0, "final_norm")
        if _spread(sizes.clamp(min=1e-30)) < own * Limits.NORM_RATIO:
            return RowState(1.0, "normed")
    # The size of a row, not its length along the plane: weight noise turns rows more than it changes their size.
    factor = float((_sizes(picked) / _sizes(plane)).median())
    low, high = scale_tolerance(similarity)
    return RowState(1.0 if low <= factor <= high else factor)


def _spread(sizes: Tensor) -> float:
    """Return the deviation of the log of row sizes."""
    return float(sizes.log().std(correction=0))


def _sizes(values: Tensor) -> Tensor:
    return values.square().mean(dim=1).sqrt().clamp(min=1e-30)


def partial_sum(values: Tensor, mid: Tensor, added: Tensor) -> float | None:
    """Return the part of the MLP's output that a tensor between mid-block and boundary holds, None outside of it.

    One rank's share of a sum: mid-block residual plus a part of what the MLP adds, ``[rows, channels]`` each. Both are
    fitted at once, every channel by its own deviation; noise shrinks both coefficients, and their ratio much less
    (measured: docs/identification.md).
    """
    base, more, fed = (item - item.mean(dim=0, keepdim=True) for item in (mid, added, values))
    weight = 1 / ((base + more).square().mean(dim=0, keepdim=True).sqrt() + 1e-30)
    known = torch.stack([(base * weight).flatten(), (more * weight).flatten()], dim=1)
    # Normal equations of two unknowns; a plane that the MLP does not change has no share.
    square, right = known.T @ known, known.T @ (fed * weight).flatten()
    determinant = float(square[0, 0] * square[1, 1] - square[0, 1] ** 2)
    if determinant <= 1e-9 * float(square[0, 0] * square[1, 1]):
        return None
    whole = float(square[1, 1] * right[0] - square[0, 1] * right[1])
    part = float(square[0, 0] * right[1] - square[0, 1] * right[0])
    low, high = Limits.PARTIAL
    share = part / whole if whole > 0 else 0.0
    return share if low <= share <= high else None


def same_geometry(values: Tensor, gram: Tensor) -> float:
    """Return how far rows ``[rows, dim]`` have the golden inner products ``[rows, rows]`` of unit rows: -1..1."""
    unit = torch.nn.functional.normalize(values, dim=1)
    upper = torch.triu_indices(len(values), len(values), offset=1)
    first, second = (unit @ unit.T)[upper[0], upper[1]], gram[upper[0], upper[1]]
    first, second = first - first.mean(), second - second.mean()
    scale = (first.norm() * second.norm()).clamp(min=1e-30)
    return float((first @ second) / scale)
