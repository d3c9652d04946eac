"""What a capture holds, in memory: calls of the projection, each with what was known of its rows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, get_args

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

__all__ = ["POINTS", "Call", "Capture", "CapturePoint"]

CapturePoint = Literal["features", "projection_input", "recurrent"]
POINTS: tuple[CapturePoint, ...] = get_args(CapturePoint)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Call:
    """One captured call.

    Attributes:
        values: float32 ``[rows, width]``, cloned when it was captured.
        point: ``features`` before any pre-projection norm, ``projection_input`` what the projection itself receives,
            ``recurrent`` the hidden state that enters draft step 2.
        phase: ``prefill``, ``chunked-prefill``, ``batch``, ``decode``, ``prefix-hit``, or empty when nobody said.
        token_ids: The target's token of each row, or None.
        positions: The position of each row in its request, or None: rows then count on from the call before.
        requests: The request of each row (any labels), or None for a single one.
        accepted: Whether each row belongs to an accepted token, or None for all; other rows are not compared.
        cached: Leading positions of each request that the runtime declared cached, by request label.
        drafter_token_ids: The drafter's own input ids, or None.
        draft_tokens: The draft tokens produced, or None.
        rank: Tensor-parallel rank; shard: ``(index, count)`` of the columns or rows held, None for all of them.
        stage: Pipeline stage.
        dtype: Dtype at capture time, such as ``bfloat16``.
    """

    values: Tensor
    point: CapturePoint = "features"
    phase: str = ""
    token_ids: tuple[int, ...] | None = None
    positions: tuple[int, ...] | None = None
    requests: tuple[str, ...] | None = None
    accepted: tuple[bool, ...] | None = None
    cached: Mapping[str, int] = field(default_factory=dict)
    drafter_token_ids: tuple[int, ...] | None = None
    draft_tokens: tuple[int, ...] | None = None
    rank: int = 0
    shard: tuple[int, int] | None = None
    stage: int = 0
    dtype: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Capture:
    """Calls of one process, in order, with what the process said of itself.

    ``failure`` is empty, or the one line that the capturing hook left when it detached: nothing can be concluded then.
    ``dropped`` counts calls beyond the bounds that were not kept.
    """

    calls: tuple[Call, ...]
    runtime: str = ""
    contract_sha256: str = ""
    failure: str = ""
    dropped: int = 0
    source: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict)
