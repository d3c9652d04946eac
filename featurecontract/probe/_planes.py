"""Planes: every tensor of the target that could be fed, named without a model at hand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

__all__ = ["KINDS", "Plane", "PlaneKind", "all_planes"]

PlaneKind = Literal["boundary", "mid_block", "mlp_output"]
KINDS: tuple[PlaneKind, ...] = get_args(PlaneKind)


@dataclass(frozen=True, slots=True, order=True)
class Plane:
    """One tensor of the target, ``[rows, hidden]``.

    ``boundary`` b is h[b]. ``mid_block`` b is h[b] + attention inside layer b, before its MLP. ``mlp_output`` b is the
    bare output of layer b - 1's MLP, the last summand of h[b].
    """

    kind: PlaneKind
    boundary: int

    def __str__(self) -> str:
        """Return ``h[3]``, ``mid-block h[3]``, ``MLP output to h[3]``."""
        name = f"h[{self.boundary}]"
        return {"boundary": name, "mid_block": f"mid-block {name}", "mlp_output": f"MLP output to {name}"}[self.kind]


def all_planes(num_hidden_layers: int) -> tuple[Plane, ...]:
    """Return every plane of a target of L layers: L + 1 boundaries, L mid-block residuals, L MLP outputs."""
    depth = num_hidden_layers
    return (
        *(Plane("boundary", b) for b in range(depth + 1)),
        *(Plane("mid_block", b) for b in range(depth)),
        *(Plane("mlp_output", b) for b in range(1, depth + 1)),
    )
