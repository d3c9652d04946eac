"""How often the drafter is right, by step: counts for each sequence, taken for several wirings in one pass."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from featurecontract.replay._unroll import unroll

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from torch import Tensor

    from featurecontract.replay._drafter import Drafter
    from featurecontract.replay._texts import PlaneName, Text

__all__ = ["Tally", "measure", "pad"]

# Elements of one piece of logits.
_MAX_LOGITS = 2**24


@dataclass(slots=True, eq=False)
class Tally:
    """Counts for one wiring; each list has one float64 ``[2, K]`` for each sequence: right, and of how many.

    Attributes:
        full: Draft token = the text's next token, over all rows.
        chained: The same, over rows whose earlier steps were all right.
        agree: Draft token = the target's own greedy choice, over all rows.
        agree_chained: The same, over rows whose earlier steps all agreed.
    """

    full: list[Tensor] = field(default_factory=list)
    chained: list[Tensor] = field(default_factory=list)
    agree: list[Tensor] = field(default_factory=list)
    agree_chained: list[Tensor] = field(default_factory=list)

    @property
    def rows(self) -> int:
        """Rows that were drafted from."""
        return int(sum(float(item[1, 0]) for item in self.full))

    @property
    def sequences(self) -> int:
        """Sequences that had at least one such row."""
        return sum(float(item[1, 0]) > 0 for item in self.full)


def measure(
    drafter: Drafter,
    groups: Iterable[list[Text]],
    wirings: Sequence[Sequence[PlaneName]],
    *,
    steps: int,
    progress: Callable[[int], None] | None = None,
) -> list[Tally]:
    """Replay every wiring on every batch of sequences.

    A row counts at step k when the token that it drafts stands in the text (and in ``counted``). The text's own tokens
    are fed at every step, as in training; what is fed does not depend on what was drafted.

    Args:
        drafter: The weights.
        groups: Batches of sequences, read once.
        wirings: The planes of each.
        steps: K.
        progress: Called with the number of sequences done.
    """
    tallies = [Tally() for _ in wirings]
    done = 0
    with torch.inference_mode():
        for group in groups:
            for names, tally in zip(wirings, tallies, strict=True):
                _one(drafter, group, names, steps, tally)
            done += len(group)
            if progress is not None:
                progress(done)
    return tallies


def pad(rows: Sequence[Tensor]) -> Tensor:
    """Stack tensors of different lengths, zeros behind the shorter ones."""
    return torch.nn.utils.rnn.pad_sequence(list(rows), batch_first=True)


def _one(drafter: Drafter, group: list[Text], names: Sequence[PlaneName], steps: int, tally: Tally) -> None:
    features = pad([text.features(names).to(drafter.device, drafter.dtype) for text in group])
    tokens = pad([text.token_ids for text in group]).to(drafter.device)
    lengths = torch.tensor([len(text.token_ids) for text in group], device=drafter.device)
    known = all(text.answers is not None for text in group)
    answers = pad([text.answers for text in group if text.answers is not None]).to(drafter.device) if known else None
    counted = pad([_counted(text) for text in group]).to(drafter.device)
    rows = features.shape[1]
    shift = drafter.spec.token_shift
    right = torch.ones(len(group), rows, dtype=torch.bool, device=drafter.device)
    agreed = right.clone()
    found: dict[str, list[Tensor]] = {name: [] for name in ("full", "chained", "agree", "agree_chained")}
    for step in unroll(drafter, drafter.project(features), tokens, steps=steps):
        label = torch.arange(rows, device=drafter.device) + shift + step.number
        inside = label[None] < lengths[:, None]
        at = label.clamp(max=rows - 1)[None].expand(len(group), -1)
        valid = inside & counted.gather(1, at)
        drafted = _drafted(drafter, step.output, valid)
        hit = valid & (drafted == tokens.gather(1, at))
        found["full"].append(torch.stack((hit.sum(1), valid.sum(1))))
        found["chained"].append(torch.stack(((hit & right).sum(1), (valid & right).sum(1))))
        right &= hit
        if answers is not None:
            same = valid & (drafted == answers.gather(1, (at - 1).clamp(min=0)))
            found["agree"].append(torch.stack((same.sum(1), valid.sum(1))))
            found["agree_chained"].append(torch.stack(((same & agreed).sum(1), (valid & agreed).sum(1))))
            agreed &= same
    for name, counts in found.items():
        if counts:
            getattr(tally, name).extend(torch.stack(counts, dim=-1).double().permute(1, 0, 2).cpu())


def _counted(text: Text) -> Tensor:
    return torch.ones(len(text.token_ids), dtype=torch.bool) if text.counted is None else text.counted.bool()


def _drafted(drafter: Drafter, output: Tensor, valid: Tensor) -> Tensor:
    """Return the drafted token of every row that counts, -1 elsewhere; the head runs in bounded pieces."""
    out = torch.full(valid.shape, -1, dtype=torch.int64, device=output.device)
    rows = output[valid]
    block = max(1, _MAX_LOGITS // drafter.spec.draft_vocab_size)
    pieces = []
    for piece in torch.split(rows, block):
        logits = drafter.logits(piece)
        # An argmax over NaN is a token like any other: a drafter that overflows must not pass for one that drafts.
        pieces.append(torch.where(torch.isfinite(logits).all(-1), drafter.tokens(logits), -1))
    if pieces:
        out[valid] = torch.cat(pieces)
    return out
