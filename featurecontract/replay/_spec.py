"""What kind of drafter it is: sizes and flags, read from its config, its contract and the shapes of its weights."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from featurecontract.replay._rope import RopeSpec

if TYPE_CHECKING:
    from featurecontract.contract._wiring import PreNorm
    from featurecontract.replay._mla import MlaSpec

__all__ = ["DrafterSpec", "Kind"]

Kind = Literal["eagle3", "eagle"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DrafterSpec:
    """A drafter's structure.

    Attributes:
        kind: ``eagle3``: q/k/v read cat(norm(embedding), norm(state)), 2H wide. ``eagle`` (1 and 2): ``fc`` reads
            cat(embedding, state), then plain decoder layers, with no norm before the head.
        hidden_size: Width of the drafter.
        target_hidden_size: Width of one plane of the target.
        num_layers, num_heads, num_kv_heads, head_dim: Of its decoder layers; head_dim is a query's width.
        mla: Widths of latent attention, None for plain attention.
        feature_width: Columns of ``fc``'s input (of the state alone for ``eagle``); a plane's width without ``fc``.
        draft_vocab_size: Rows of the output head.
        eps: Of every RMSNorm.
        pre_norm: Norm between the features and ``fc``.
        recurrent: What enters the next step: the last layer's output before or after the final norm.
        head_norm: Whether the final norm stands before the head (False: SpecForge's ``norm_output: false``).
        input_norms: Whether the first layer must have its norm of the embedding.
        norm_before_residual: Whether the first layer's residual is taken after ``hidden_norm``.
        activation: Of the MLP.
        rope: Its rotary embedding.
        windows: By layer, the keys that a row may look back on, itself included; None for all.
        token_shift, position_offset: Row t pairs h[.] at t with the embedding of token t + token_shift at position
            t + position_offset.
        notes: What was assumed.
    """

    kind: Kind = "eagle3"
    hidden_size: int
    target_hidden_size: int
    num_layers: int = 1
    num_heads: int
    num_kv_heads: int
    head_dim: int
    mla: MlaSpec | None = None
    feature_width: int
    draft_vocab_size: int
    eps: float = 1e-6
    pre_norm: PreNorm = "none"
    recurrent: Literal["pre_norm", "post_norm"] = "pre_norm"
    head_norm: bool = True
    input_norms: bool = True
    norm_before_residual: bool = False
    activation: str = "silu"
    rope: RopeSpec = field(default_factory=RopeSpec)
    windows: tuple[int | None, ...] = (None,)
    token_shift: int = 1
    position_offset: int = 0
    notes: tuple[str, ...] = ()

    @property
    def slots(self) -> int:
        """Planes that ``fc`` is built for."""
        return self.feature_width // self.target_hidden_size
