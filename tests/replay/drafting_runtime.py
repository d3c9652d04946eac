"""Captures of a runtime that drafts with the oracle that decodes row by row, healthy or faulty."""

from __future__ import annotations

import torch
from one_by_one import OneByOne

from featurecontract.capture import Call, Capture

STEPS = 3


class Runtime(OneByOne):
    """What drafts; ``stuck`` leaves the position of steps 2 and on where step 1 was."""

    def __init__(self, tensors, tiny, *, stuck=False, whole=False, **flags):
        super().__init__(tensors, tiny, **flags)
        self.stuck, self.whole = stuck, whole
        self.at = None

    def to_target(self, drafted):
        """``whole``: the head's rows are the target's tokens."""
        return drafted if self.whole or "d2t" not in self.t else super().to_target(drafted)

    def one(self, state, token, position, keys, values):
        return super().one(state, token, position if self.at is None else self.at, keys, values)

    def round(self, features, ids, steps=STEPS):
        """Draft from the last of the rows: features ``[rows, width]``, ids are the drafter's own."""
        keys, values, found = [], [], []
        for row, (feature, token) in enumerate(zip(features, ids, strict=True)):
            output = self.one(self.start(feature), int(token), row + self.offset, keys, values)
        for step in range(steps):
            normed = self.final(output)
            found.append(self.to_target(int((self.t["lm_head.weight"] @ normed).argmax())))
            if step + 1 < steps:
                self.at = len(ids) - 1 if self.stuck else None
                state = normed if self.post else output
                output = self.one(state, found[-1], len(ids) + step + self.offset, keys, values)
                self.at = None
        return found

    def final(self, output):
        from one_by_one import norm

        return norm(output, self.t["norm.weight"], 1e-5)


def prompts(tiny, lengths, *, seed=5):
    """Return features and tokens of prompts of these lengths; one token more than rows."""
    g = torch.Generator().manual_seed(seed)
    width = tiny.planes * tiny.target_hidden
    return [
        (torch.randn(length, width, generator=g), torch.randint(tiny.vocab, (length + 1,), generator=g))
        for length in lengths
    ]


def prefills(runtime, given, *, dtype="float32", steps=STEPS, request="r"):
    """Return a capture of one prefill for each prompt."""
    calls = []
    for number, (features, tokens) in enumerate(given):
        ids = tokens[1:].tolist()
        calls.append(
            Call(
                values=features,
                phase="prefill",
                positions=tuple(range(len(ids))),
                requests=(f"{request}{number}",) * len(ids),
                drafter_token_ids=tuple(ids),
                draft_tokens=tuple(runtime.round(features, ids, steps)),
                dtype=dtype,
            )
        )
    return Capture(calls=tuple(calls), runtime="mine==1.0", source="made")


def decoded(runtime, features, tokens, *, prompt=6, width=4, accepted=(3, 0, 2, 1), label="a"):
    """Return the calls of one request: a prefill, then verify steps of ``width`` rows, some of them rejected."""
    ids = tokens[1:].tolist()
    calls = [
        Call(
            values=features[:prompt],
            phase="prefill",
            positions=tuple(range(prompt)),
            requests=(label,) * prompt,
            drafter_token_ids=tuple(ids[:prompt]),
            draft_tokens=tuple(runtime.round(features[:prompt], ids[:prompt])),
            dtype="float32",
        )
    ]
    start = prompt
    for good in accepted:
        kept, wrong = good + 1, width - good - 1
        rows = torch.cat([features[start : start + kept], torch.full((wrong, features.shape[1]), 9.0)])
        stop = start + kept
        calls.append(
            Call(
                values=rows,
                phase="decode",
                positions=tuple(range(start, start + width)),
                requests=(label,) * width,
                accepted=(True,) * kept + (False,) * wrong,
                drafter_token_ids=(*ids[start:stop], *[0] * wrong),
                draft_tokens=tuple(runtime.round(features[:stop], ids[:stop])),
                dtype="float32",
            )
        )
        start = stop
    return calls
