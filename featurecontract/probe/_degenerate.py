"""What must not be recorded: tokens or planes on which nothing can be told apart."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from featurecontract.errors import InputError, Problem
from featurecontract.probe._tokens import MIN_DISTINCT

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import Tensor

    from featurecontract.probe._data import ProbeData
    from featurecontract.probe._planes import Plane

__all__ = ["check_boundaries", "check_probe", "check_tokens", "plane_fault"]

_TOKENS_STEP = "give another text's tokens with --tokens FILE: one sequence, no loops"
_PLANE_STEP = "the target's weights, dtype or module paths are wrong; record from a target that answers sensibly"


def check_tokens(token_ids: Sequence[int], *, vocab_size: int | None = None) -> None:
    """Refuse tokens of which fewer than 48 differ, that loop, or that the vocabulary does not have.

    Raises:
        InputError: ``probe-degenerate``.
    """
    problems = []
    distinct = len(set(token_ids))
    if distinct < MIN_DISTINCT:
        message = f"{distinct} different tokens in {len(token_ids)} rows, at least {MIN_DISTINCT} are needed"
        problems.append(Problem(place="", message=message, next_step=_TOKENS_STEP))
    period = _loop(token_ids)
    if period:
        message = f"the last {len(token_ids) // 4} tokens repeat every {period}"
        problems.append(Problem(place="", message=message, next_step=_TOKENS_STEP))
    outside = [item for item in token_ids if item < 0 or (vocab_size is not None and item >= vocab_size)]
    if outside:
        message = f"token {outside[0]} is not in the target's vocabulary of {vocab_size}"
        problems.append(Problem(place="", message=message, next_step="give tokens of this target's tokenizer"))
    if problems:
        raise InputError("the probe's tokens", tuple(problems), slug="probe-degenerate")


def _loop(token_ids: Sequence[int]) -> int:
    """Return the period in which the tail repeats at least four times, 0 for none: how a stuck generation ends."""
    tail = list(token_ids[-(len(token_ids) // 4) :])
    return next((p for p in range(1, len(tail) // 4 + 1) if tail[p:] == tail[:-p]), 0)


def plane_fault(values: Tensor) -> str:
    """Say why rows ``[rows, channels]`` are no plane to compare with; empty when they are."""
    if not bool(torch.isfinite(values).all()):
        return "has NaN or infinite values"
    if not bool(values.any()):
        return "is zero"
    if bool((values == values[:1]).all()):
        return "is constant: every row is the same"
    if bool((values == values[:, :1]).all()):
        return "is constant: every channel is the same"
    return ""


def check_boundaries(named: Sequence[tuple[Plane, Tensor]]) -> None:
    """Refuse planes that are zero, constant, not finite, or bit for bit another one.

    Args:
        named: Each plane with its rows ``[rows, channels]``.

    Raises:
        InputError: ``probe-degenerate``, with every such plane.
    """
    problems = tuple(_faults(named))
    if problems:
        raise InputError("the probe", problems, slug="probe-degenerate")


def _faults(named: Sequence[tuple[Plane, Tensor]]) -> Iterator[Problem]:
    seen: dict[bytes, Plane] = {}
    for plane, values in named:
        fault = plane_fault(values)
        if fault:
            yield Problem(place=str(plane), message=fault, next_step=_PLANE_STEP)
            continue
        key = values.to(torch.float32).contiguous().numpy().tobytes()
        twin = seen.setdefault(key, plane)
        if twin is not plane:
            message = f"is bit for bit {twin}: a layer that does nothing, or a tap in the wrong place"
            yield Problem(place=str(plane), message=message, next_step=_PLANE_STEP)


def check_probe(data: ProbeData) -> None:
    """Refuse a probe on which nothing can be told apart; ``write_probe`` asks this before it writes.

    Raises:
        InputError: ``probe-degenerate``, with every reason.
    """
    check_tokens(data.token_ids.tolist())
    check_boundaries(list(zip(data.bank.planes, data.bank.values, strict=True)))
    if not bool(torch.isfinite(data.golden).all()):
        message = "the golden rows have NaN or infinite values"
        raise InputError.single("the probe", message, next_step=_PLANE_STEP, slug="probe-degenerate")
