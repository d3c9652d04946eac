"""What one stored sequence holds, whatever trainer wrote it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from featurecontract.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["LastState", "Sample"]

LastState = Literal["residual", "final_norm", "unknown"]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Sample:
    """One sequence; row t of every tensor belongs to token t.

    Attributes:
        token_ids: int64 ``[tokens]``.
        features: ``[tokens, k * H]``: the columns that go to the projection, in the file's order and dtype.
        last: ``[tokens, H]``: the plane beside them, of which the trainer makes the target's logits, or None.
        last_state: What the format says of it: ``residual`` is h[L], ``final_norm`` is norm(h[L]).
        loss_mask: bool ``[tokens]``: where the trainer counts a loss; None when the file does not say: everywhere.
        dims: Width of each plane in ``features`` where the format keeps planes apart; None where they are one tensor.
        source: The file, for messages.
    """

    token_ids: Tensor
    features: Tensor
    last: Tensor | None = None
    last_state: LastState = "unknown"
    loss_mask: Tensor | None = None
    dims: tuple[int, ...] | None = None
    source: str = ""

    def __len__(self) -> int:
        """Return the number of tokens."""
        return int(self.features.shape[0])

    @property
    def hidden_size(self) -> int | None:
        """Width of one plane, where the file itself says it: by its planes, or by the last one."""
        if self.dims:
            return self.dims[0]
        return int(self.last.shape[1]) if self.last is not None else None

    def planes(self, hidden_size: int | None = None) -> tuple[Tensor, ...]:
        """Return ``features`` as its planes, ``[tokens, H]`` views; the last plane is not among them.

        Raises:
            InputError: the columns are no whole number of planes, or nobody says how wide one is.
        """
        width = int(self.features.shape[1])
        dims = self.dims
        if dims is None:
            one = hidden_size or self.hidden_size
            if not one or width % one:
                what = f"{width} columns are no whole number of planes" + (f" of {one}" if one else "")
                raise InputError.single(self.source, what, next_step="give the target's hidden size", slug="width")
            dims = (one,) * (width // one)
        starts = [sum(dims[:slot]) for slot in range(len(dims))]
        return tuple(self.features[:, at : at + dim] for at, dim in zip(starts, dims, strict=True))
