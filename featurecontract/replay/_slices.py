"""``fc`` by slices: each (slot, plane) pair is projected once, and any wiring's state is a sum of such pieces."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn import functional

from featurecontract.replay._drafter import rms_norm

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from featurecontract.replay._drafter import Drafter
    from featurecontract.replay._texts import PlaneName

__all__ = ["Slices"]


class Slices:
    """Projections of every plane through every slot's columns of ``fc``.

    A norm over the whole row couples the slots only by one number, the mean square of the row, which is itself a sum
    over planes; a norm of each slice does not couple them at all. So nothing is approximated.

    Args:
        drafter: The weights.
        planes: ``[batch, rows, H]`` each, on the drafter's device, in its dtype.
    """

    def __init__(self, drafter: Drafter, planes: Mapping[PlaneName, Tensor]) -> None:
        """Project everything; ``slots * planes`` products of ``[rows, H]`` by ``[H, hidden]``."""
        self.drafter = drafter
        spec, weights = drafter.spec, drafter.weights
        self.joint = spec.pre_norm == "joint"
        columns = torch.split(weights["fc.weight"], spec.target_hidden_size, dim=1)
        self.pieces: dict[tuple[int, PlaneName], Tensor] = {}
        self.squares = {name: plane.float().pow(2).sum(-1, keepdim=True) for name, plane in planes.items()}
        for slot, matrix in enumerate(columns):
            for name, plane in planes.items():
                self.pieces[slot, name] = functional.linear(self._normed(slot, plane), matrix)
        self.mean = {
            slot: torch.stack([self.pieces[slot, name] for name in planes]).mean(0) for slot in range(len(columns))
        }

    def _normed(self, slot: int, plane: Tensor) -> Tensor:
        spec, weights = self.drafter.spec, self.drafter.weights
        if self.joint:
            width = spec.target_hidden_size
            return plane * weights["input_norm.weight"][slot * width : (slot + 1) * width]
        if spec.pre_norm == "per_feature":
            return rms_norm(plane, weights[f"fc_norm.{slot}.weight"], spec.eps)
        return plane

    def state(self, wiring: Sequence[PlaneName | None]) -> Tensor:
        """Return ``project``'s state for a wiring; None in a slot stands for the mean over all planes."""
        total: Tensor | None = None
        for slot, name in enumerate(wiring):
            piece = self.mean[slot] if name is None else self.pieces[slot, name]
            total = piece if total is None else total + piece
        assert total is not None  # noqa: S101 - a wiring has a slot
        if self.joint:
            known = [self.squares[name] for name in wiring if name is not None]
            rest = torch.stack(list(self.squares.values())).mean(0)
            square = sum(known, torch.zeros_like(rest)) + rest * (len(wiring) - len(known))
            scale = torch.rsqrt(square / self.drafter.spec.feature_width + self.drafter.spec.eps)
            total = total * scale.to(total.dtype)
        bias = self.drafter.weights.get("fc.bias")
        return total if bias is None else total + bias
