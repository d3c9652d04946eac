"""Which 16-bit dtype keeps a tensor best: float16 has three more bits, bfloat16 does not overflow."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["rounded", "storage_dtype"]


def storage_dtype(values: Tensor) -> torch.dtype:
    """Return float16 or bfloat16 for ``[..., rows, channels]``, whichever loses less of what channels do over rows.

    A channel of 3000 +- 10 is lost in bfloat16 (steps of 16) and fine in float16 (steps of 2); one of 70000 does not
    exist in float16. So the rounding error is measured against each channel's own deviation, and a lost channel counts
    as one, however far off it is.
    """
    return min((torch.float16, torch.bfloat16), key=lambda dtype: _loss(values, dtype))


def rounded(values: Tensor) -> Tensor:
    """Return float32 values as they will be read back from disk."""
    return values.to(storage_dtype(values)).float()


def _loss(values: Tensor, dtype: torch.dtype) -> float:
    error = (values.to(dtype).float() - values).pow(2).mean(dim=-2).sqrt()
    spread = values.std(dim=-2, correction=0).clamp(min=1e-30)
    # An overflow leaves an infinite error, or none where infinity meets itself.
    lost = torch.nan_to_num(error / spread, nan=1.0, posinf=1.0).clamp(max=1.0).mean()
    overflow = not bool(torch.isfinite(values.to(dtype)).all())
    return float(lost) + (10.0 if overflow else 0.0)
