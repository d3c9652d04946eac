"""What capture and identification cost: `python -m benchmarks.capture [--short]`.

Decode steps are interleaved, so that a busy machine slows all sides alike; ratios are of one round, and their median
stands with its 95 % interval. The figures inform; the exit status is 0 whatever they are.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from benchmarks.decoder import SMOLLM2, Decoder
from benchmarks.intervals import Interval, interleaved, median_of
from benchmarks.table import print_report
from featurecontract.capture import Call, Capture, capturing
from featurecontract.contract import Contract, Drafter, Feature, Projection, Target
from featurecontract.identify import identify
from featurecontract.probe import Bank, FinalNorm, ProbeData, all_planes, write_probe

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["main"]

BUDGETS = {"step_over_bare": 1.02, "identify_over_matmul": 4.0, "probe_mib": 8.0}
STEPS, SHORT_STEPS = 200, 30
DEPTH, WIDTH, CHANNELS, SLOTS = 61, 7168, 128, (0, 3, 31)
ROWS, STORED_ROWS, MATMUL_COLUMNS = 512, 64, 160


def main(arguments: list[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.capture", description=__doc__)
    parser.add_argument("--short", action="store_true", help=f"{SHORT_STEPS} steps instead of {STEPS}")
    options = parser.parse_args(arguments)
    steps = SHORT_STEPS if options.short else STEPS
    torch.manual_seed(0)
    ratios, bare_ms = step_ratios(steps)
    hook_us = hook_microseconds()
    runs = 3 if options.short else 9
    identified, named = identify_ratio(ROWS, runs)
    few, _ = identify_ratio(STORED_ROWS, runs)
    size = probe_mib()
    figures: dict[str, Any] = {
        "step_over_bare": round(ratios["tapped"].median, 4),
        "step_over_bare_interval": [round(ratios["tapped"].low, 4), round(ratios["tapped"].high, 4)],
        "ring_over_bare": round(ratios["ring"].median, 4),
        "step_over_naive_hook": round(ratios["tapped_over_naive"].median, 4),
        "step_ms": round(bare_ms, 3),
        "hook_us": {name: round(value, 2) for name, value in hook_us.items()},
        "identify_over_matmul": round(identified.median, 3),
        "identify_over_matmul_interval": [round(identified.low, 3), round(identified.high, 3)],
        "identify_named": named,
        "identify_64_over_matmul": round(few.median, 3),
        "probe_mib": round(size, 3),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
    }
    note = f"bare {bare_ms:.2f} ms, {SMOLLM2.layers} layers of {SMOLLM2.width}, float32, batch 1"
    table = [
        ("what", "measured", "budget", ""),
        ("decode step, tapped over bare", str(ratios["tapped"]), f"{BUDGETS['step_over_bare']}", note),
        ("decode step, ring (graphs=True) over bare", str(ratios["ring"]), "", ""),
        ("decode step, naive hook with .cpu() over bare", str(ratios["naive"]), "", "on the CPU .cpu() copies nothing"),
        ("decode step, tapped over naive", str(ratios["tapped_over_naive"]), "", ""),
        *((f"one call of the hook, {name}", f"{value:.1f} us", "", "") for name, value in hook_us.items()),
        (
            f"identify {len(SLOTS)} slots, {ROWS} rows of {WIDTH}, over one matmul",
            str(identified),
            f"{BUDGETS['identify_over_matmul']}",
            f"boundaries named: {named}; a probe of {ROWS} rows",
        ),
        (f"the same, a probe of {STORED_ROWS} rows", str(few), "", ""),
        (f"probe and bank, L={DEPTH}, H={WIDTH}", f"{size:.2f} MiB", f"{BUDGETS['probe_mib']} MiB", "on disk"),
    ]
    print_report(f"Capture, {steps} interleaved steps, {torch.get_num_threads()} threads", table, figures)


# --- the hook -----------------------------------------------------------------------------------------------------


@torch.inference_mode()
def step_ratios(steps: int) -> tuple[dict[str, Interval], float]:
    """Return ratios of whole decode steps, and the median milliseconds of the bare one."""
    model = Decoder(SMOLLM2).eval()
    token, position = torch.tensor([17]), torch.tensor([5])
    # One body, four projections that share their weight: nothing is attached or removed between steps.
    projections: dict[str, nn.Linear] = {
        name: nn.Linear(1, 1, bias=False) for name in ("bare", "tapped", "ring", "naive")
    }
    for projection in projections.values():
        projection.weight = model.fc.weight
    kept: list[Tensor] = []
    projections["naive"].register_forward_pre_hook(lambda _module, args: kept.append(args[0].detach().cpu()))

    def step(projection: nn.Linear) -> Callable[[], object]:
        def run() -> object:
            model.fc = projection
            return model(token, position)

        return run

    with capturing(projections["tapped"]) as tapped, capturing(projections["ring"], graphs=True) as ring:
        seconds = interleaved({name: step(projection) for name, projection in projections.items()}, rounds=steps)
    for recording in (tapped, ring):
        if len(recording.capture().calls) < steps or recording.failure:
            raise SystemExit(f"the tap has lost calls: {recording.failure}")
    ratios = {
        name: median_of([a / b for a, b in zip(seconds[name], seconds["bare"], strict=True)])
        for name in ("tapped", "ring", "naive")
    }
    pairs = zip(seconds["tapped"], seconds["naive"], strict=True)
    ratios["tapped_over_naive"] = median_of([a / b for a, b in pairs])
    return ratios, median_of(seconds["bare"]).median * 1000


@torch.inference_mode()
def hook_microseconds() -> dict[str, float]:
    """Return what one call costs beyond the same module without a hook."""
    x = torch.randn(1, 3 * SMOLLM2.width)
    bare, tapped, ring = nn.Identity(), nn.Identity(), nn.Identity()

    def many(module: nn.Module) -> Callable[[], object]:
        return lambda: [module(x) for _ in range(100)]

    rows = 100_000
    with capturing(tapped, max_rows=rows, max_bytes=2**30), capturing(ring, graphs=True):
        sides = {"bare": many(bare), "list": many(tapped), "ring": many(ring)}
        seconds = interleaved(sides, rounds=30)
    medians = {name: median_of(values).median / 100 * 1e6 for name, values in seconds.items()}
    return {name: medians[name] - medians["bare"] for name in ("list", "ring")}


# --- identification -----------------------------------------------------------------------------------------------


def simulated(rows: int) -> tuple[ProbeData, Contract]:
    """Return a probe of a simulated target of Kimi-K2.5's size: a residual stream that drifts layer by layer."""
    generator = torch.Generator().manual_seed(1)
    channels = torch.arange(CHANNELS) * (WIDTH // CHANNELS)
    stream = torch.randn(rows, WIDTH, generator=generator)
    planes = all_planes(DEPTH)
    values = torch.empty(len(planes), rows, CHANNELS)
    golden: list[Tensor] = []
    for boundary in range(DEPTH + 1):
        values[boundary] = stream[:, channels]
        if boundary in SLOTS:
            golden.append(stream.clone())
        if boundary < DEPTH:
            stream = stream + 0.2 * torch.randn(rows, WIDTH, generator=generator)
            values[DEPTH + 1 + boundary] = stream[:, channels]
            output = 0.2 * torch.randn(rows, WIDTH, generator=generator)
            values[2 * DEPTH + 1 + boundary] = output[:, channels]
            stream = stream + output
    unit = [nn.functional.normalize(slot, dim=1) for slot in golden]
    probe = ProbeData(
        token_ids=torch.arange(1, rows + 1),
        golden=torch.cat(golden, dim=1),
        bank=Bank(planes=planes, values=values, channels=channels),
        final_norm=FinalNorm(weight=torch.ones(WIDTH), eps=1e-6),
        gram=torch.stack([slot @ slot.T for slot in unit]),
    )
    contract = Contract(
        name="benchmark",
        method="eagle3",
        target=Target(num_hidden_layers=DEPTH, hidden_size=WIDTH),
        drafter=Drafter(hidden_size=WIDTH),
        features=tuple(Feature(slot=slot, boundary=b, dim=WIDTH) for slot, b in enumerate(SLOTS)),
        projections=(
            Projection(tensor="fc.weight", role="fc", slots=(0, 1, 2), in_features=3 * WIDTH, out_features=WIDTH),
        ),
    )
    return probe, contract


def identify_ratio(rows: int, runs: int) -> tuple[Interval, list[int | None]]:
    """Return identification of 512 rows over one matmul of them, and the boundaries it named."""
    probe, contract = simulated(rows)
    noise = torch.Generator().manual_seed(2)
    captured = torch.randn(ROWS, len(SLOTS) * WIDTH, generator=noise)
    captured[:rows] = probe.golden + 0.01 * captured[:rows]
    capture = Capture(calls=(Call(values=captured, phase="prefill", positions=tuple(range(ROWS))),))
    by_slot, columns = captured.view(ROWS * len(SLOTS), WIDTH), torch.randn(WIDTH, MATMUL_COLUMNS, generator=noise)
    sides: dict[str, Callable[[], object]] = {
        "identify": lambda: identify(probe, contract, capture),
        "matmul": lambda: by_slot @ columns,
    }
    seconds = interleaved(sides, rounds=runs)
    pairs = zip(seconds["identify"], seconds["matmul"], strict=True)
    observed = identify(probe, contract, capture)
    named = [feature.boundary for feature in observed[0].wiring.features] if observed else []
    return median_of([a / b for a, b in pairs]), named


def probe_mib() -> float:
    """Return the size on disk of a probe of 64 rows, without its contract."""
    probe, contract = simulated(STORED_ROWS)
    with tempfile.TemporaryDirectory(prefix="featurecontract-") as name:
        write_probe(probe, contract, name)
        sizes = [file.stat().st_size for file in Path(name).iterdir() if file.suffix != ".json"]
    if not sizes:
        raise SystemExit("the probe was not written")
    return sum(sizes) / 2**20


if __name__ == "__main__":
    main()
