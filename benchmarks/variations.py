"""Captures that are made from healthy rows by how calls are cut, tagged and kept, not by what the rows hold."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from featurecontract.capture import Call, Capture
from featurecontract.identify.mutators import capture_of, shift_tokens

__all__ = ["capture_faults", "varied"]

KINDS = ("two calls", "padding", "batch", "rejected rows", "cached prefix", "drafter ids")
# Rows that are nobody's, behind the real ones.
MORE = 7


def capture_faults(base: list[torch.Tensor], tokens: list[int]) -> list[tuple[str, str, Any]]:
    """Return (name, slug, capture) of the faults that change no slot: the drafter's ids, and an old buffer."""
    ids = tuple(tokens)
    found = [
        (f"shift tokens {offset:+d}", "tokens-shifted", shift_tokens(capture_of(base, token_ids=ids), offset))
        for offset in (-2, -1, 1, 2)
    ]
    # A second prompt: other rows of the same planes, but for the slot that was not written again.
    for slot in range(len(base)):
        second = [item if index == slot else item.flip(0) for index, item in enumerate(base)]
        calls = tuple(
            Call(values=torch.cat(slots, dim=1), phase="prefill", token_ids=said, requests=(name,) * len(said))
            for name, slots, said in (("a", base, ids), ("b", second, ids[::-1]))
        )
        found.append((f"stale {slot}", "stale", Capture(calls=calls)))
    return found


def varied(capture: Capture, generator: torch.Generator) -> Capture:
    """Return a healthy capture of one prefill as another engine would have run it, drawn at random from `KINDS`."""
    (call,) = capture.calls
    values, ids, count = call.values, call.token_ids, call.values.shape[0]
    assert ids is not None  # noqa: S101 - made with them
    kind = KINDS[int(torch.randint(0, len(KINDS), (1,), generator=generator))]
    cut = int(torch.randint(8, count - 24, (1,), generator=generator))
    at = tuple(range(count))
    longer = torch.cat([values, torch.randn(MORE, values.shape[1], generator=generator) * values.std()])
    if kind == "two calls":
        # The last rows may never come: a bound that was reached.
        end = int(torch.randint(max(cut + 8, 48), count + 1, (1,), generator=generator))
        pieces = ((0, cut), (cut, end))
        calls = [replace(call, values=values[a:b], token_ids=ids[a:b], positions=at[a:b]) for a, b in pieces]
    elif kind == "padding":
        calls = [replace(call, values=longer, token_ids=(*ids, *[0] * MORE), positions=(*at, *[0] * MORE))]
    elif kind == "batch":
        batch = replace(
            call,
            values=torch.cat([values[:cut], values]),
            token_ids=(*ids[:cut], *ids),
            positions=(*at[:cut], *at),
            requests=("a",) * cut + ("b",) * count,
        )
        return shift_tokens(replace(capture, calls=(batch,)))
    elif kind == "rejected rows":
        calls = [replace(call, values=longer, token_ids=None, accepted=(True,) * count + (False,) * MORE)]
    elif kind == "cached prefix":
        calls = [replace(call, values=values[cut:], token_ids=ids[cut:], positions=at[cut:], cached={"": cut})]
    else:
        return shift_tokens(capture)
    return replace(capture, calls=tuple(calls))
