"""Replay: tokens per second against the trainer library's own forward, and what a search costs and finds.

    python -m benchmarks.replay [--short] [--checkpoint CKPT --target DIR --states DIR [--unseen DIR] --truth 0,3,16]

The throughput part builds a drafter with speculators (it runs where that is installed) and gives both the same weights,
rows and threads, turn by turn. The search part wants a trained drafter and states of every boundary of its training
data (examples/smollm2_eagle3 makes both), and may be given some of unseen text; without them it searches for a wiring
that is planted in random weights (benchmarks/planted.py), and says so. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import importlib.util
import resource
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.planted import plant
from benchmarks.table import print_report

if TYPE_CHECKING:
    from collections.abc import Iterable

STEPS, HIDDEN, VOCAB, DRAFT = 3, 576, 49152, 8192
WIRINGS = ("0,3,16", "0,2,16", "3,16,28", "2,15,27", "0,16,3", "0,4,17")


def main() -> None:
    """Run what the installed libraries and the given files allow."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--short", action="store_true", help="fewer turns and seeds")
    parser.add_argument("--checkpoint", help="a trained drafter")
    parser.add_argument("--target", help="its target's directory")
    parser.add_argument("--states", help="states of every boundary, from its training data")
    parser.add_argument("--unseen", help="states of every boundary, of text that it was not trained on")
    parser.add_argument("--truth", default="0,3,16", help="the wiring it was trained with")
    parser.add_argument("--seeds", type=int, default=5, help="seeds of the search")
    options = parser.parse_args()
    figures: dict[str, Any] = {}
    seeds = min(2, options.seeds) if options.short else options.seeds
    with tempfile.TemporaryDirectory() as directory:
        if options.checkpoint and options.states:
            figures["searched"] = "trained"
            case = (options.checkpoint, options.target, options.states, options.truth)
        else:
            figures["searched"] = "planted"
            made = plant(Path(directory))
            case = (str(made.checkpoint), str(made.target), str(made.states), made.truth)
        figures |= search(*case, seeds, prefix="search")
        # Before anything else took more.
        figures["search_max_rss_mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        if options.unseen:
            figures |= search(options.checkpoint, options.target, options.unseen, options.truth, seeds, prefix="unseen")
        figures["accuracy"] = accuracy(*case[:3], wirings=dict.fromkeys((case[3], *WIRINGS)))
    rows = [("what", "figure")]
    rows += [(key, str(value)) for key, value in figures.items() if key != "accuracy"]
    rows += [(f"step-1 accuracy [{name}]", f"{value:.4f}") for name, value in figures["accuracy"].items()]
    if importlib.util.find_spec("speculators") is None:
        rows.append(("tokens per second over speculators", "not run: speculators is not installed"))
    else:
        ratio = throughput(turns=3 if options.short else 9)
        figures["tokens_per_second_over_trainer"] = round(ratio, 3)
        rows.append(("tokens per second over speculators", f"{ratio:.2f}"))
    print_report("replay", rows, figures)


def throughput(*, turns: int, batch: int = 4, length: int = 256) -> float:
    """Return the median, over turns, of the trainer's time by ours: the same weights, rows, steps and threads."""
    import torch
    from speculators import SpeculatorsConfig, VerifierConfig
    from speculators.models.eagle3 import Eagle3DraftModel, Eagle3SpeculatorConfig
    from speculators.proposals.greedy import GreedyTokenProposalConfig
    from transformers import LlamaConfig

    from featurecontract.checkpoint import open_checkpoint
    from featurecontract.replay import read_drafter, unroll

    body = LlamaConfig(
        hidden_size=HIDDEN,
        intermediate_size=1536,
        num_attention_heads=9,
        num_key_value_heads=3,
        head_dim=64,
        num_hidden_layers=1,
        vocab_size=VOCAB,
    )
    config = Eagle3SpeculatorConfig(
        transformer_layer_config=body,
        draft_vocab_size=DRAFT,
        eagle_aux_hidden_state_layer_ids=[0, 3, 16],
        speculators_config=SpeculatorsConfig(
            algorithm="eagle3",
            proposal_methods=[GreedyTokenProposalConfig(speculative_tokens=STEPS)],
            default_proposal_method="greedy",
            verifier=VerifierConfig(name_or_path=None, architectures=["LlamaForCausalLM"]),
        ),
    )
    config.transformer_layer_config._attn_implementation = "eager"  # noqa: SLF001 - as the trainer's own command sets it
    torch.manual_seed(0)
    model = Eagle3DraftModel(config).eval().float()
    for value in model.parameters():
        torch.nn.init.normal_(value, std=0.05)
    kept = torch.arange(DRAFT)
    mask = torch.zeros(VOCAB, dtype=torch.bool)
    mask[kept] = True
    model.load_vocab_mappings(mask, torch.zeros(DRAFT, dtype=torch.int64))
    features, tokens = torch.randn(batch, length, 3 * HIDDEN), torch.randint(VOCAB, (batch, length))
    documents = torch.arange(batch).repeat_interleave(length)[None]
    with tempfile.TemporaryDirectory() as directory:
        model.save_pretrained(directory)
        drafter = read_drafter(open_checkpoint(Path(directory)), target_hidden_size=HIDDEN)

    def theirs() -> None:
        # Sequences side by side in one row, as its trainer packs them.
        model(
            hidden_states=features.reshape(1, -1, 3 * HIDDEN),
            input_ids=tokens.reshape(1, -1),
            document_ids=documents,
            ttt_steps=STEPS,
        )

    def ours() -> None:
        for step in unroll(drafter, drafter.project(features), tokens, steps=STEPS):
            drafter.logits(step.output).argmax(-1)

    ratios = []
    with torch.no_grad():
        for turn in range(turns + 1):
            spent = []
            for run in (theirs, ours):
                start = time.perf_counter()
                run()
                spent.append(time.perf_counter() - start)
            if turn:
                ratios.append(spent[0] / spent[1])
    return statistics.median(ratios)


def search(
    checkpoint: str, target: str | None, states: str, truth: str, seeds: int, *, prefix: str
) -> dict[str, list[Any]]:
    """Return, for each seed, what the search took and what it found.

    The rank of the truth is among the wirings that were replayed in full, None where it is not one of them; a winner is
    named or not. Processor seconds are what a quiet machine needs, over its threads.
    """
    from featurecontract.gate import ReplayOptions, replay

    found: dict[str, list[Any]] = {}
    for seed in range(seeds):
        wall, used = time.perf_counter(), time.process_time()
        report = replay(
            checkpoint,
            options=ReplayOptions(states=states, target=target, planes=_every(states)),
            search=True,
            seed=seed,
        )
        seconds = round(time.perf_counter() - wall, 1), round(time.process_time() - used, 1)
        answer = report.search or {}
        listed = [item["wiring"] for item in answer["ranking"]]
        for name, value in (
            ("seconds", seconds[0]),
            ("cpu_seconds", seconds[1]),
            ("rank_of_truth", listed.index(truth) + 1 if truth in listed else None),
            ("winner", answer["wiring"]),
            ("margin", answer["margin"]),
            ("confidence", answer["confidence"]),
            ("full_replays", answer["full_replays"]),
            ("tokens", answer["tokens"]),
        ):
            found.setdefault(f"{prefix}_{name}", []).append(value)
    return found


def accuracy(checkpoint: str, target: str | None, states: str, *, wirings: Iterable[str]) -> dict[str, float]:
    """Return step-1 accuracy of these wirings."""
    from featurecontract.gate import ReplayOptions, replay

    report = replay(
        checkpoint,
        options=ReplayOptions(states=states, target=target, planes=_every(states)),
        wirings=tuple(wirings),
        steps=1,
    )
    shown = [",".join(str(b) for b in item.wiring.boundaries) for item in report.replayed]
    return {name: round(item.measure[0].value, 4) for name, item in zip(shown, report.replayed, strict=True)}


def _every(states: str) -> str:
    from featurecontract.states import open_states

    sample = open_states(states).read(0)
    count = len(sample.planes()) + (sample.last is not None)
    return ",".join(str(boundary) for boundary in range(count))


if __name__ == "__main__":
    main()
