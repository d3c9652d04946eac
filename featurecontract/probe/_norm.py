"""The final norm as it is applied: found by trying, since the same class name hides w and 1 + w."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from featurecontract.probe._data import FinalNorm

if TYPE_CHECKING:
    from torch import Tensor, nn

__all__ = ["final_norm_of"]

_EPS_NAMES = ("variance_epsilon", "eps", "epsilon", "norm_eps")
# The norm itself may round twice in the target's dtype.
_ROUNDINGS = 4.0


def final_norm_of(norm: nn.Module, before: Tensor, after: Tensor, *, eps: float) -> FinalNorm | None:
    """Return the RMSNorm that turns ``before`` into ``after``, or None where no reading of the module does.

    Args:
        norm: The module.
        before: float32 ``[rows, hidden]``, h[L].
        after: The same, what the module gave for it.
        eps: Machine epsilon of the target's dtype.
    """
    own_eps = next((float(getattr(norm, n)) for n in _EPS_NAMES if isinstance(getattr(norm, n, None), float)), 1e-6)
    stored = getattr(norm, "weight", None)
    weight = stored.detach().to("cpu", torch.float32) if isinstance(stored, torch.Tensor) else None
    readings = [torch.ones(before.shape[1])] if weight is None else [weight, 1.0 + weight]
    unit = before * torch.rsqrt(before.pow(2).mean(dim=1, keepdim=True) + own_eps)
    for applied in readings:
        if applied.shape != before.shape[1:]:
            continue
        expected = unit * applied
        allowed = _ROUNDINGS * max(eps, 1e-6) * (expected.abs() + after.abs() + 1e-3)
        if bool(((expected - after).abs() <= allowed).all()):
            return FinalNorm(weight=applied.clone(), eps=own_eps)
    return None
