"""Draft again what a runtime drafted, from the rows that it was fed, and compare token by token.

Each step is fed the runtime's own token of the step before, so that one difference does not cause the next.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch.nn import functional

from featurecontract.replay._drafter import Drafter
from featurecontract.replay._measure import pad
from featurecontract.replay._rounds import chunks
from featurecontract.replay._unroll import unroll

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import Tensor

    from featurecontract.replay._rounds import History, Rounds

__all__ = ["TOLERANCE", "Redrafted", "TokenPair", "redraft", "rounded"]

#: How far the logit of the runtime's token may lie below our best one, in standard deviations of the row's logits, for
#: the difference to be numerics: by the dtype of the captured rows. Measured on 80 random drafters: the same weights
#: run in that dtype draft another token at gaps up to 0.0036 (float16) and 0.11 (bfloat16, 1 of 30,720; else 0.055),
#: in float32 at none; real vLLM and SGLang at none in float32 and at 0.01 at most in bfloat16 (docs/draft-tokens.md).
#: A GPU's float32 may be TF32, whose mantissa is float16's.
TOLERANCE = {"float64": 0.02, "float32": 0.02, "float16": 0.02, "bfloat16": 0.25}
_DEFAULT = "bfloat16"
_ROWS = 4096
# Elements of one piece of logits.
_MAX_LOGITS = 2**24
_INFINITE = "the replayed logits are not finite"


class TokenPair(NamedTuple):
    """One token that was drafted twice.

    Attributes:
        step: 1..K.
        position: Of the row that the round was drafted from.
        ours: What the weights draft, in the target's vocabulary.
        theirs: What the runtime drafted.
        gap: How far the logit of ``theirs`` lies below the best, in standard deviations of the row's logits; infinite
            where the drafter's vocabulary does not hold it.
        near: Whether that is within numerics.
        phase: Of the call.
    """

    step: int
    position: int
    ours: int
    theirs: int
    gap: float
    near: bool
    phase: str = ""

    @property
    def equal(self) -> bool:
        """Whether both drafted the same."""
        return self.ours == self.theirs

    @property
    def differs(self) -> bool:
        """Whether they drafted other tokens, beyond numerics."""
        return not self.equal and not self.near


@dataclass(slots=True, kw_only=True)
class Redrafted:
    """Every token of every round, and what could not be drafted again, by reason."""

    pairs: list[TokenPair] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)

    @property
    def differing(self) -> int:
        """Tokens that differ beyond numerics."""
        return sum(pair.differs for pair in self.pairs)


def rounded(drafter: Drafter, dtype: str) -> Drafter:
    """Return a drafter whose weights are what a runtime of that dtype loads, computed with as before."""
    kind = {"bfloat16": torch.bfloat16, "float16": torch.float16}.get(dtype)
    if kind is None:
        return drafter
    weights = {name: value.to(kind).to(value.dtype) for name, value in drafter.weights.items()}
    return Drafter(drafter.spec, weights, drafter.to_target)


def redraft(drafter: Drafter, rounds: Rounds, *, advance: bool = True) -> Redrafted:
    """Draft every round again.

    Args:
        drafter: The weights.
        rounds: Of a capture; features are ``[rows, drafter.spec.feature_width]``.
        advance: Whether steps 2 and on stand at the next positions; False is a runtime's fault.
    """
    out = Redrafted()
    tolerance = TOLERANCE.get(rounds.dtype, TOLERANCE[_DEFAULT])
    with torch.inference_mode():
        for group in chunks(rounds.histories, _ROWS):
            _group(drafter, group, rounds.point, tolerance, out, advance=advance)
    return out


def _group(
    drafter: Drafter, group: Sequence[History], point: str, tolerance: float, out: Redrafted, *, advance: bool
) -> None:
    steps = max(len(item.drafted) for history in group for item in history.rounds)
    features = pad([history.features.to(drafter.device, drafter.dtype) for history in group])
    fed = torch.zeros((*features.shape[:2], steps), dtype=torch.int64)
    for number, history in enumerate(group):
        fed[number, : len(history.token_ids), 0] = torch.tensor(history.token_ids)
        for item in history.rounds:
            fed[number, item.row, 1 : len(item.drafted)] = torch.tensor(item.drafted[:-1])
    states = drafter.project(features) if point == "features" else drafter.project_normed(features)
    passes = unroll(drafter, states, fed.to(drafter.device), steps=steps, advance=advance)
    for step in passes:
        places = [
            (number, item)
            for number, history in enumerate(group)
            for item in history.rounds
            if len(item.drafted) >= step.number
        ]
        rows = step.output[[number for number, _ in places], [item.row for _, item in places]]
        theirs = torch.tensor([item.drafted[step.number - 1] for _, item in places], device=drafter.device)
        judged = _judge(drafter, rows, theirs)
        for (_, item), ours, token, gap in zip(places, *judged, strict=True):
            if gap != gap:  # noqa: PLR0124 - NaN
                out.skipped[_INFINITE] += 1
                continue
            pair = TokenPair(step.number, item.row, ours, token, gap, gap <= tolerance, item.phase)
            out.pairs.append(pair)


def _judge(drafter: Drafter, rows: Tensor, theirs: Tensor) -> tuple[list[int], list[int], list[float]]:
    """Return our tokens, theirs, and the gap between their logits; the head runs in bounded pieces."""
    found: list[tuple[Tensor, Tensor]] = list(_pieces(drafter, rows, theirs))
    ours = torch.cat([item for item, _ in found]).tolist()
    gaps = torch.cat([item for _, item in found]).tolist()
    return ours, theirs.tolist(), gaps


def _pieces(drafter: Drafter, rows: Tensor, theirs: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    block = max(1, _MAX_LOGITS // drafter.spec.draft_vocab_size)
    for piece, tokens in zip(torch.split(rows, block), torch.split(theirs, block), strict=True):
        logits = drafter.logits(piece).float()
        best = logits.max(dim=-1)
        ours = drafter.target_ids(best.indices)
        # [rows, draft vocabulary] only where tokens differ: of tokens that several draft ids stand for, the best.
        held = _logit_of(drafter, logits, tokens)
        spread = logits.std(dim=-1, correction=0).clamp(min=torch.finfo(torch.float32).tiny)
        gap = torch.where(ours == tokens, 0.0, (best.values - held) / spread)
        yield ours, torch.where(torch.isfinite(logits).all(-1), gap, float("nan"))


def _logit_of(drafter: Drafter, logits: Tensor, tokens: Tensor) -> Tensor:
    """Return the logit of a target token in each row, minus infinity where no draft token stands for it."""
    size = int(max(int(tokens.max()) + 1, drafter.spec.draft_vocab_size))
    if drafter.to_target is None:
        padded = functional.pad(logits, (0, size - logits.shape[-1]), value=float("-inf"))
        return padded.gather(-1, tokens[:, None])[:, 0]
    same = drafter.to_target[None] == tokens[:, None]
    return logits.masked_fill(~same, float("-inf")).max(dim=-1).values
