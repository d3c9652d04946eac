"""Training-time test: draft steps 1..K of every row at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from featurecontract.replay._drafter import State

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from featurecontract.replay._drafter import Drafter

__all__ = ["Step", "unroll"]


class Step(NamedTuple):
    """One draft step of every row.

    Attributes:
        number: 1..K.
        output: ``[batch, rows, hidden]``, the last layer's, before the final norm; ``Drafter.logits`` reads it.
        token_ids: int64 ``[batch, rows]``, the drafter's input at this step.
    """

    number: int
    output: Tensor
    token_ids: Tensor


def unroll(
    drafter: Drafter,
    states: Tensor,
    token_ids: Tensor,
    *,
    steps: int,
    own_tokens: bool = False,
    advance: bool = True,
) -> Iterator[Step]:
    """Yield steps 1..K.

    Row t of ``states`` belongs to token t. At step k it is paired with token ``t + token_shift + k - 1`` at position
    ``t + k - 1 + position_offset``. Rows whose token lies behind the end are fed token 0: nobody may read them, and no
    other row sees them.

    Args:
        drafter: The weights.
        states: ``[batch, rows, hidden]``, what ``Drafter.project`` made of the features.
        token_ids: int64 ``[batch, tokens]``; at least as many tokens as rows. Or ``[batch, rows, K]``: what each row
            is fed at each step, whatever the text says.
        steps: K.
        own_tokens: Feed each step the token that the step before drafted, as serving does, and not the text's.
        advance: Turn the position of step k by k - 1; False stands for a runtime that forgets to.
    """
    batch, rows = states.shape[:2]
    spec = drafter.spec
    carry = State(spec.num_layers)
    if token_ids.dim() == 3:  # noqa: PLR2004 - [batch, rows, K]
        fed = list(token_ids.unbind(-1))
    else:
        padded = torch.cat((token_ids, token_ids.new_zeros(batch, spec.token_shift + steps)), dim=1)
        starts = range(spec.token_shift, spec.token_shift + steps)
        fed = [padded[:, start : start + rows] for start in starts]
    positions = torch.arange(rows, device=states.device)[None] + spec.position_offset
    ids = fed[0]
    for number in range(1, steps + 1):
        output = drafter.step(states, ids, positions, carry)
        yield Step(number, output, ids)
        if number == steps:
            return
        positions = positions + 1 if advance else positions
        ids = drafter.tokens(drafter.logits(output)) if own_tokens else fed[number]
        states = drafter.recurrent(output)
