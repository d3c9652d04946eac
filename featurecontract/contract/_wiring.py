"""What enters the projection: an ordered tuple of features and the flags around it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, get_args

from featurecontract.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["DECLARED_STATES", "Feature", "PreNorm", "Recurrent", "Source", "State", "Wiring", "parse_wiring"]

Source = Literal["target", "drafter_embedding", "mask_row", "unknown"]
State = Literal[
    "residual",
    "final_norm",
    "block_output",
    "mlp_output",
    "mid_block",
    "normed",
    "zero",
    "constant",
    "unknown",
]
PreNorm = Literal["none", "joint", "per_feature", "unknown"]
Recurrent = Literal["pre_norm", "post_norm", "none", "unknown"]
Reduction = Literal["none", "mean", "concat"]

SOURCES: tuple[str, ...] = get_args(Source)
REDUCTIONS: tuple[str, ...] = get_args(Reduction)
RECURRENT: tuple[str, ...] = get_args(Recurrent)

# A contract states what a drafter was trained on; the other states describe faults that a capture can see.
DECLARED_STATES: tuple[State, ...] = ("residual", "final_norm")


@dataclass(frozen=True, slots=True, kw_only=True)
class Feature:
    """One slice of the projection's input.

    Attributes:
        slot: Position in the concatenation, from 0.
        source: Where the slice comes from; only ``target`` has a boundary.
        boundary: b in 0..L: the tensor that enters decoder layer b, residual added, before any final norm.
        state: ``residual`` for h[b] itself, ``final_norm`` for norm(h[L]); the others are faults of a capture.
        dim: Width of the slice in columns of the projection; None when nobody stated it.
        row_offset: Row t of the slice belongs to token t + row_offset (EAGLE-1 and MTP: 1 for the embedding).
        scale: Factor on the tensor, 1.0 for none.
        reduction: How the streams of a multi-stream target become one slice.
        streams: Number of residual streams of the target, 1 for nearly all.
        extra: Keys of a newer contract version, kept so that they survive a rewrite.
    """

    slot: int
    source: Source = "target"
    boundary: int | None = None
    state: State = "residual"
    dim: int | None = None
    row_offset: int = 0
    scale: float = 1.0
    reduction: Reduction = "none"
    streams: int = 1
    extra: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def __str__(self) -> str:
        """Return the slice as people write it: ``embedding``, ``h[31]``, ``norm(h[61])``."""
        if self.source == "drafter_embedding":
            return "drafter embedding"
        if self.source == "mask_row":
            return "mask row"
        if self.state in ("zero", "constant") or self.boundary is None:
            return f"<{self.state}>"
        name = "embedding" if self.boundary == 0 else f"h[{self.boundary}]"
        return name if self.state == "residual" else _STATE_FORMS[self.state].format(name)


_STATE_FORMS = {
    "final_norm": "norm({})",
    "block_output": "block output to {} without its residual",
    "mlp_output": "MLP output to {} without its residual",
    "mid_block": "{} + attention (mid-block)",
    "normed": "normed {}",
    "unknown": "unknown, nearest {}",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Wiring:
    """An ordered tuple of features and the flags that change what enters or leaves the projection.

    Attributes:
        features: The slices, in the order of their columns.
        pre_norm: RMSNorm before the projection: over the whole row (``joint``) or one for each slice.
        recurrent_state: The hidden state that enters draft step 2: before or after the drafter's last norm.
        norm_before_residual: Whether the drafter's residual is taken after its hidden norm; None: no such choice.
        bias: Whether the projection adds its bias; None: nobody stated it.
    """

    features: tuple[Feature, ...]
    pre_norm: PreNorm = "none"
    recurrent_state: Recurrent = "unknown"
    norm_before_residual: bool | None = None
    bias: bool | None = None

    @classmethod
    def from_boundaries(
        cls,
        boundaries: tuple[int, ...],
        *,
        dim: int | None = None,
        final_norm: bool = False,
    ) -> Wiring:
        """Build a wiring of residual boundaries; ``final_norm`` makes the last slice norm(h[b])."""
        last = len(boundaries) - 1
        return cls(
            features=tuple(
                Feature(
                    slot=slot,
                    boundary=boundary,
                    state="final_norm" if final_norm and slot == last else "residual",
                    dim=dim,
                )
                for slot, boundary in enumerate(boundaries)
            )
        )

    def with_dim(self, dim: int | None) -> Wiring:
        """Return the wiring with every slice ``dim`` columns wide."""
        return replace(self, features=tuple(replace(feature, dim=dim) for feature in self.features))

    @property
    def boundaries(self) -> tuple[int | None, ...]:
        """The boundary of every slot, None where a slice has none."""
        return tuple(feature.boundary for feature in self.features)

    @property
    def width(self) -> int | None:
        """Columns of the projection's input, None while a slice's width is unknown."""
        total = 0
        for feature in self.features:
            if feature.dim is None:
                return None
            total += feature.dim
        return total

    def columns(self, slot: int) -> tuple[int, int] | None:
        """Return ``(start, stop)`` of a slot's columns, None while a width before it is unknown."""
        start = 0
        for feature in self.features[: slot + 1]:
            if feature.dim is None:
                return None
            start += feature.dim
        return start - (self.features[slot].dim or 0), start

    def __str__(self) -> str:
        """Return the comma list that ``--features`` and ``--wiring`` read."""
        return ", ".join(str(feature) for feature in self.features)


def parse_wiring(text: str, *, num_hidden_layers: int | None = None, dim: int | None = None) -> Wiring:
    """Read a wiring from the command line: boundaries, ``embedding`` and ``final_norm``, separated by commas.

    ``0,3,31`` and ``embedding,3,31`` are the same. Raises UsageError, naming the item, for anything else.
    """
    features: list[Feature] = []
    for slot, item in enumerate(part.strip() for part in text.split(",")):
        if item == "embedding":
            features.append(Feature(slot=slot, boundary=0, dim=dim))
            continue
        if item == "final_norm":
            if num_hidden_layers is None:
                raise UsageError(f"{text!r}: final_norm needs the target's depth; give --target")
            features.append(Feature(slot=slot, boundary=num_hidden_layers, state="final_norm", dim=dim))
            continue
        # isdigit alone would accept other scripts' digits; a boundary never has more than a few.
        if not (item.isascii() and item.isdigit() and len(item) < 7):  # noqa: PLR2004
            raise UsageError(
                f"{text!r}: {item!r} is not a boundary; write a comma list of integers 0..L, embedding and final_norm"
            )
        boundary = int(item)
        if num_hidden_layers is not None and boundary > num_hidden_layers:
            raise UsageError(
                f"{text!r}: h[{boundary}] does not exist on a target of {num_hidden_layers} layers; "
                f"write 0 to {num_hidden_layers}"
            )
        features.append(Feature(slot=slot, boundary=boundary, dim=dim))
    return Wiring(features=tuple(features))
