"""Hold vLLM's counters against replay: rounds and accepted drafts of the same text, under each wiring that was served.

    python compare.py CKPT TARGET STATES --served 0,3,16=served-fixed/served.json --served 3,16,28=...

STATES holds every boundary of the text of the first SERVED (record.py --served), which is that of the right wiring.
Exit status 1: a wrong wiring was accepted at least as often as the right one, or replay and vLLM differ by more than
one round in twenty (equal is what is expected; near ties of two tokens may fall another way in other arithmetic).

`featurecontract replay` averages over all rows. A server drafts from fewer: behind a round of n accepted drafts the
next one starts n + 1 tokens on, so rows where drafts fail are met more often. So the rounds are walked through here.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import load_file

import featurecontract
from featurecontract.checkpoint import open_checkpoint
from featurecontract.replay import acceptance_length, parts_of_checkpoint, read_drafter, unroll

if TYPE_CHECKING:
    from torch import Tensor

    from featurecontract.replay import Drafter, Estimate

TOLERANCE = 20


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkpoint")
    parser.add_argument("target")
    parser.add_argument("states", type=Path)
    parser.add_argument("--served", action="append", required=True, metavar="WIRING=FILE")
    options = parser.parse_args()
    served = {
        wiring: json.loads(Path(file).read_text())
        for wiring, _, file in (item.partition("=") for item in options.served)
    }
    drafter = read(options.checkpoint, options.target)
    texts = [
        load_file(options.states / f"hs_{number}.safetensors") for number in range(len(next(iter(served.values()))))
    ]
    print("| fed | rounds, vLLM | rounds, replay | prompts alike | acceptance length, vLLM | replay |")  # noqa: T201
    print("|---|---|---|---|---|---|")  # noqa: T201
    lengths, problems = [], []
    for wiring, measured in served.items():
        walked = [walk_text(drafter, wiring, text, item) for text, item in zip(texts, measured, strict=True)]
        # Ties of two tokens may fall another way: a text that is not the recorded one is left out of this row.
        both = [(item, other) for item, other in zip(measured, walked, strict=True) if other is not None]
        alike = sum(item["rounds"] == other["rounds"] for item, other in both)
        rounds = [sum(pair[side]["rounds"] for pair in both) for side in (0, 1)]
        counted = length([item["by_step"] for item in measured], [item["rounds"] for item in measured])
        predicted = length([item["by_step"] for item in walked if item], [item["rounds"] for item in walked if item])
        lengths.append(counted.value)
        if abs(rounds[0] - rounds[1]) > rounds[0] / TOLERANCE or not both:
            problems.append(
                f"{wiring}: {rounds[0]} rounds in vLLM, {rounds[1]} as replayed, over {len(both)} equal texts"
            )
        row = [wiring, *rounds, f"{alike} of {len(both)}", said(counted), said(predicted)]
        print("| " + " | ".join(map(str, row)) + " |")  # noqa: T201
    print(f"\n{len(texts)} prompts; 95 % intervals over prompts")  # noqa: T201
    if max(lengths[1:], default=0.0) >= lengths[0]:
        problems.append("a wrong wiring was accepted at least as often as the right one")
    if problems:
        sys.exit("\n".join(problems))


def read(checkpoint: str, target: str) -> Drafter:
    parts = parts_of_checkpoint(open_checkpoint(target))
    return read_drafter(
        open_checkpoint(checkpoint),
        contract=featurecontract.load(checkpoint),
        embedding=parts.embedding,
        head=parts.head,
    )


def walk_text(drafter: Drafter, wiring: str, text: dict[str, Tensor], item: dict[str, Any]) -> dict[str, Any] | None:
    """Return the rounds of one text under a wiring; None where the served text is not the recorded one."""
    if text["token_ids"].tolist() != [*item["prompt"], *item["generated"]]:
        return None
    features = text["hidden_states"][:, [int(boundary) for boundary in wiring.split(",")]].flatten(1)
    drafts = len(item["by_step"])
    return walk(
        accepted_by_row(drafter, features, text["token_ids"], drafts), first=len(item["prompt"]) - 1, drafts=drafts
    )


def accepted_by_row(drafter: Drafter, features: Tensor, tokens: Tensor, drafts: int) -> list[int]:
    """Return, for a round that starts at each row, how many drafts in a row are the text's own."""
    with torch.inference_mode():
        states = drafter.project(features[None])
        right = torch.ones(len(tokens), dtype=torch.bool)
        accepted = torch.zeros(len(tokens), dtype=torch.int64)
        for step in unroll(drafter, states, tokens[None], steps=drafts, own_tokens=True):
            drafted = drafter.tokens(drafter.logits(step.output))[0]
            # Row t is paired with token t + 1 and drafts token t + 2 at step 1; nothing is right behind the end.
            ahead = step.number + 1
            wanted = torch.full_like(tokens, -1)
            wanted[:-ahead] = tokens[ahead:]
            right &= drafted == wanted
            accepted += right
    return accepted.tolist()


def walk(accepted: list[int], *, first: int, drafts: int) -> dict[str, Any]:
    """Return the rounds of a text whose first generated token is the one behind row ``first``, as a server takes them.

    The round at row t is about tokens t + 2 and on; there is one while a token is missing.
    """
    by_step, rounds, row = [0] * drafts, 0, first
    while row + 2 < len(accepted):
        rounds += 1
        for step in range(accepted[row]):
            by_step[step] += 1
        row += accepted[row] + 1
    return {"rounds": rounds, "by_step": by_step}


def length(by_step: list[list[int]], rounds: list[int]) -> Estimate:
    """Return the tokens per round: 1 and the drafts that were accepted, with its interval over prompts."""
    right = torch.tensor(by_step, dtype=torch.float64)
    reached = torch.cat((torch.tensor(rounds, dtype=torch.float64)[:, None], right[:, :-1]), dim=1)
    found = acceptance_length(list(torch.stack((right, reached), dim=1)))
    if found is None:
        sys.exit("no round was drafted")
    return found


def said(estimate: Estimate) -> str:
    if estimate.low is None or estimate.high is None:
        return f"{estimate.value:.2f}"
    return f"{estimate.value:.2f} [{estimate.low:.2f}, {estimate.high:.2f}]"


if __name__ == "__main__":
    main()
