"""Typed access to the entries of one file: every getter checks form before a value is used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

import torch

from featurecontract.checkpoint._paths import quoted
from featurecontract.errors import InputError
from featurecontract.states._sample import LastState, Sample

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Fields"]

_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.uint8)
_WRITE_AGAIN = "write the file again with the trainer's own script"


class Fields:
    """The entries of one file, with its name for messages."""

    def __init__(self, content: dict[str, Any], source: str) -> None:
        """Keep the entries."""
        self.content, self.source = content, source

    def refuse(self, key: str, message: str, *, slug: str = "checkpoint-unreadable") -> NoReturn:
        """Raise the error for one entry."""
        raise InputError.single(self.source, message, place=key, next_step=_WRITE_AGAIN, slug=slug)

    def flag(self, key: str) -> bool | None:
        """Return a boolean entry (a bool or a tensor of one element), None where there is none."""
        value = self.content.get(key)
        if torch.is_tensor(value) and value.numel() == 1:
            value = bool(value.item())
        if value is not None and not isinstance(value, bool):
            self.refuse(key, "is no boolean")
        return value

    def plane(self, key: str) -> Tensor:
        """Return ``[tokens, columns]`` of an entry, without a leading batch dimension of one."""
        return self._plane(self.content.get(key), key)

    def planes(self, key: str) -> list[Tensor]:
        """Return the planes of a list, ``[tokens, H]`` each: those of the projection, and the last one."""
        found = [self._plane(item, f"{key}[{index}]") for index, item in enumerate(self.content[key])]
        if len(found) < 2:  # noqa: PLR2004
            self.refuse(key, f"holds {len(found)} planes; one for the projection and the last one are the least")
        for index, plane in enumerate(found):
            if plane.shape[0] != found[0].shape[0]:
                what = f"has {plane.shape[0]} rows, the first plane {found[0].shape[0]}"
                self.refuse(f"{key}[{index}]", what, slug="rows-missing")
        return found

    def stack(self, key: str) -> Tensor:
        """Return ``[tokens, planes, H]`` of an entry."""
        value = self._floating(self.content.get(key), key)
        if value.dim() != 3 or value.shape[1] < 2:  # noqa: PLR2004
            shape = list(value.shape)[:6]
            self.refuse(key, f"has shape {shape}, not [tokens, planes, hidden] with at least two planes")
        return value

    def sample(
        self,
        ids_key: str,
        features: Tensor,
        *,
        last: Tensor | None = None,
        last_state: LastState = "unknown",
        dims: tuple[int, ...] | None = None,
    ) -> Sample:
        """Return the sample, all of its tensors as long as the token ids."""
        ids = self._integers(ids_key)
        mask = self._integers("loss_mask").bool() if self.content.get("loss_mask") is not None else None
        parts = [("the projection's input", features), ("the last plane", last), ("loss_mask", mask)]
        for name, part in parts:
            if part is not None and part.shape[0] != ids.shape[0]:
                what = f"there are {ids.shape[0]} token ids, {name} has {part.shape[0]} rows"
                self.refuse(ids_key, what, slug="rows-missing")
        return Sample(
            token_ids=ids.long(),
            features=features,
            last=last,
            last_state=last_state,
            loss_mask=mask,
            dims=dims,
            source=self.source,
        )

    def _floating(self, value: Any, key: str) -> Tensor:
        if not torch.is_tensor(value) or not value.is_floating_point():
            self.refuse(key, f"is {quoted(getattr(value, 'dtype', type(value).__name__))}, no floating-point tensor")
        tensor: Tensor = value
        return tensor

    def _plane(self, value: Any, key: str) -> Tensor:
        tensor = self._floating(value, key)
        if tensor.dim() == 3 and tensor.shape[0] == 1:  # noqa: PLR2004
            tensor = tensor[0]
        if tensor.dim() != 2 or not tensor.shape[0] or not tensor.shape[1]:  # noqa: PLR2004
            self.refuse(key, f"has shape {list(tensor.shape)[:6]}, not [tokens, columns] of one sequence")
        return tensor

    def _integers(self, key: str) -> Tensor:
        value = self.content.get(key)
        if not torch.is_tensor(value) or value.dtype not in (*_INTEGERS, torch.bool):
            self.refuse(key, f"is {quoted(getattr(value, 'dtype', type(value).__name__))}, no tensor of whole numbers")
        tensor: Tensor = value
        if tensor.dim() == 2 and tensor.shape[0] == 1:  # noqa: PLR2004
            tensor = tensor[0]
        if tensor.dim() != 1 or not len(tensor):
            self.refuse(key, f"has shape {list(tensor.shape)[:6]}, not [tokens] of one sequence")
        return tensor
