"""The noise floor: the same probe again, in a second dtype or another batch shape."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import torch

from featurecontract.errors import InputError
from featurecontract.probe._similarity import similarity
from featurecontract.probe._taps import tap

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch import Tensor, nn

    from featurecontract.probe._layout import Layout

__all__ = ["noise_floor"]

_FLOATS = (torch.float32, torch.float16, torch.bfloat16)


def noise_floor(
    model: nn.Module,
    layout: Layout,
    token_ids: Tensor,
    planes: Sequence[tuple[int, Tensor]],
    channels: Tensor,
    *,
    second_dtype: torch.dtype | None,
    forward: Callable[[nn.Module, Tensor], Any] | None = None,
) -> tuple[float, str]:
    """Return the lowest similarity of some boundaries with themselves in a second run, and a note on how.

    The parameters are cast in place and put back. Where the target already runs in ``second_dtype``, or cannot be
    cast, the second run has another sequence beside the probe's in its batch.

    Args:
        model: The target.
        layout: Where its parts are.
        token_ids: int64 ``[1, rows]``.
        planes: Boundaries with their float32 rows ``[rows, width]``.
        channels: The channels that are compared.
        second_dtype: The other dtype, None for another batch shape.
        forward: How the target is run.
    """
    if second_dtype is not None and _castable(model, second_dtype):
        with contextlib.suppress(RuntimeError, TypeError, ValueError, InputError):
            with _cast(model, second_dtype):
                again = tap(model, layout, token_ids, blocks=False, forward=forward).boundaries
            return _lowest(planes, again, channels), f"noise floor: parameters in {_name(second_dtype)}"
    with contextlib.suppress(RuntimeError, TypeError, ValueError, InputError):
        both = torch.cat([token_ids, token_ids.flip(1)])
        again = tap(model, layout, both, blocks=False, forward=forward).boundaries
        return _lowest(planes, again, channels), "noise floor: a batch of two sequences"
    return 1.0, "noise floor: not measured, the target ran in no second dtype and no other batch shape"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _lowest(planes: Sequence[tuple[int, Tensor]], again: list[Tensor], channels: Tensor) -> float:
    found = [similarity(values[:, channels], again[boundary][:, channels]) for boundary, values in planes]
    lowest = min(found, default=1.0)
    if lowest != lowest:  # noqa: PLR0124 - NaN: the second dtype overflows
        raise ValueError("the second run is not finite")
    return min(lowest, 1.0)


def _castable(model: nn.Module, dtype: torch.dtype) -> bool:
    floats = [p for p in model.parameters() if p.dtype in _FLOATS]
    return (
        bool(floats)
        and all(p.device.type != "meta" for p in floats)
        and any(p.dtype != dtype for p in floats)
        # A target in float32 with a few parameters in bfloat16 is cast; one in bfloat16 with some in float32 is not.
        and sum(p.numel() for p in floats if p.dtype != dtype) * 2 > sum(p.numel() for p in floats)
    )


@contextlib.contextmanager
def _cast(model: nn.Module, dtype: torch.dtype) -> Iterator[None]:
    """Cast the parameters one by one: ``model.to`` refuses a model that says it is quantized, as one from GGUF does."""
    kept = [(p, p.data) for p in model.parameters() if p.dtype in _FLOATS and p.dtype != dtype]
    try:
        for parameter, _ in kept:
            parameter.data = parameter.data.to(dtype)
        yield
    finally:
        for parameter, data in kept:
            parameter.data = data
