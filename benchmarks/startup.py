"""What a check costs before it does anything: `python -m benchmarks.startup [--short] [--profile]`.

Ratios of cold processes, measured in interleaved pairs so that a busy machine slows both sides alike. The figures
inform; the exit status is 0 whatever they are.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from benchmarks.table import print_report

__all__ = ["main"]

ROOT = Path(__file__).resolve().parents[1]
BUDGETS = {"check_over_imports": 2.0, "sharded_over_small": 1.5, "pytest_unused_ms": 5.0}
PAIRS, SHORT_PAIRS = 15, 3
SHARDS, PARAMETERS = 64, 10**12
WIDTH, DEPTH = 7168, 61
IMPORTS = "import json, click, jsonschema"
# What the plugin costs a session that does not use it: its import, its options, its configure hook.
PLUGIN = """
import time, pytest
from _pytest.config.argparsing import Parser
import featurecontract.pytest_plugin as plugin
parser = Parser(_ispytest=True)
class Config:
    def getoption(self, name, *_): return None
    def getini(self, name): return None
start = time.perf_counter()
plugin.pytest_addoption(parser)
plugin.pytest_configure(Config())
print(time.perf_counter() - start)
"""


class Ratio(NamedTuple):
    """Median seconds of both sides of interleaved pairs, and the median of the pairs' ratios."""

    first: float
    second: float
    ratio: float


def measure(first: list[str], second: list[str], *, pairs: int) -> Ratio:
    """Run both commands in turn, one warm-up pair and then ``pairs`` that count."""
    times: list[tuple[float, float]] = []
    for number in range(pairs + 1):
        # The side that runs second may find the machine in another state: take turns.
        order = (first, second) if number % 2 else (second, first)
        seconds = [run(command) for command in order]
        times.append((seconds[0], seconds[1]) if number % 2 else (seconds[1], seconds[0]))
    counted = times[1:]
    return Ratio(
        statistics.median(a for a, _ in counted),
        statistics.median(b for _, b in counted),
        statistics.median(a / b for a, b in counted),
    )


def run(command: list[str]) -> float:
    """Return the seconds of one process; a check that finds something exits with 1."""
    start = time.perf_counter()
    finished = subprocess.run(command, cwd=ROOT, capture_output=True, check=False)
    seconds = time.perf_counter() - start
    if finished.returncode not in (0, 1) or finished.stderr:
        raise SystemExit(f"{command}: {finished.returncode}: {finished.stderr.decode()[-2000:]}")
    return seconds


def check_command(checkpoint: Path) -> list[str]:
    """Return the command line of a check: the installed script where there is one."""
    script = Path(sys.executable).parent / "featurecontract"
    program = [str(script)] if script.is_file() else [sys.executable, "-m", "featurecontract.cli"]
    target = f"Kimi-K2.5:{DEPTH},{WIDTH},KimiK25ForConditionalGeneration"
    return [*program, "check", str(checkpoint), "--target", target, "--runtime", "sglang==0.5.12", "-o", "json"]


# --- checkpoints --------------------------------------------------------------------------------------------------

DRAFTER = {"fc.weight": [WIDTH, 3 * WIDTH], "midlayer.self_attn.q_proj.weight": [WIDTH, 2 * WIDTH]}


def write_small(directory: Path) -> Path:
    """Write a drafter of one tensor file; its data is a hole."""
    write_json(directory)
    write_tensors(directory / "model.safetensors", DRAFTER)
    return directory


def write_sharded(directory: Path, *, tensors: int) -> Path:
    """Write a checkpoint of 64 shards and a trillion parameters in ``tensors`` tensors, all holes."""
    write_json(directory)
    side = round((PARAMETERS / tensors) ** 0.5)
    weight_map: dict[str, str] = {}
    for shard in range(SHARDS):
        name = f"model-{shard + 1:05}-of-{SHARDS:05}.safetensors"
        held = {f"model.layers.{i}.mlp.experts.weight": [side, side] for i in range(shard, tensors, SHARDS)}
        held |= DRAFTER if shard == 0 else {}
        write_tensors(directory / name, held)
        weight_map |= dict.fromkeys(held, name)
    index = {"metadata": {"total_size": 2 * PARAMETERS}, "weight_map": weight_map}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    return directory


def write_json(directory: Path) -> None:
    """Write the config and the contract of the story: trained on the embedding, h[3], h[31]."""
    directory.mkdir()
    config = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_size": WIDTH,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": [2, 30, 58]},
    }
    contract = {
        "contract_version": "1.0",
        "name": "drafter",
        "method": "eagle3",
        "target": {"num_hidden_layers": DEPTH, "hidden_size": WIDTH},
        "drafter": {"hidden_size": WIDTH},
        "features": [{"slot": slot, "boundary": b, "dim": WIDTH} for slot, b in enumerate((0, 3, 31))],
    }
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "feature_contract.json").write_text(json.dumps(contract))


def write_tensors(path: Path, shapes: dict[str, list[int]]) -> None:
    """Write a bfloat16 safetensors file whose data takes no space on disk."""
    header, end = {}, 0
    for name, shape in shapes.items():
        size = 2 * shape[0] * shape[1]
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [end, end + size]}
        end += size
    raw = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(raw)) + raw)
    os.truncate(path, 8 + len(raw) + end)


# --- import times -------------------------------------------------------------------------------------------------


def import_times(arguments: list[str]) -> list[tuple[str, int]]:
    """Return (module, own microseconds) of every import of a process, in order."""
    command = [sys.executable, "-X", "importtime", *arguments]
    finished = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    out = []
    for line in finished.stderr.splitlines():
        head, _, name = line.rpartition("|")
        own = head.removeprefix("import time:").split("|")[0].strip()
        if line.startswith("import time:") and own.isdigit():
            out.append((name.strip(), int(own)))
    return out


def plugin_milliseconds(*, runs: int) -> float:
    """Return the median import time of the plugin beyond pytest's own, plus the time in its two hooks."""
    totals = []
    for _ in range(runs):
        command = [sys.executable, "-X", "importtime", "-c", PLUGIN]
        finished = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        lines = [line.split("|") for line in finished.stderr.splitlines() if line.startswith("import time:")]
        modules = [(name.strip(), own.removeprefix("import time:").strip()) for own, _, name in lines]
        ours = sum(int(own) for name, own in modules if name.split(".")[0] == "featurecontract")
        totals.append(ours / 1000 + float(finished.stdout) * 1000)
    return statistics.median(totals)


def main(arguments: list[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.startup", description=__doc__)
    parser.add_argument("--short", action="store_true", help=f"{SHORT_PAIRS} pairs instead of {PAIRS}")
    parser.add_argument("--profile", action="store_true", help="list the slowest imports of a check")
    options = parser.parse_args(arguments)
    pairs = SHORT_PAIRS if options.short else PAIRS
    with tempfile.TemporaryDirectory(prefix="featurecontract-") as name:
        folder = Path(name)
        small = check_command(write_small(folder / "small"))
        sharded = check_command(write_sharded(folder / "sharded", tensors=1024))
        imports = measure(small, [sys.executable, "-c", IMPORTS], pairs=pairs)
        shards = measure(sharded, small, pairs=pairs)
        plugin = plugin_milliseconds(runs=pairs)
        loaded = import_times(["-m", "featurecontract.cli", *small[small.index("check") :]])
        many = measure(check_command(write_sharded(folder / "moe", tensors=65_536)), small, pairs=SHORT_PAIRS)
    figures = {
        "check_over_imports": round(imports.ratio, 3),
        "sharded_over_small": round(shards.ratio, 3),
        "pytest_unused_ms": round(plugin, 3),
        "check_ms": round(imports.first * 1000, 1),
        "imports_ms": round(imports.second * 1000, 1),
        "experts_over_small": round(many.ratio, 3),
        "torch_imported": any(module.split(".")[0] == "torch" for module, _ in loaded),
    }
    rows = [
        ("what", "measured", "budget", ""),
        (
            f"check over `{IMPORTS}`",
            f"{imports.ratio:.2f}x",
            f"{BUDGETS['check_over_imports']:.1f}x",
            f"{imports.first * 1000:.0f} ms over {imports.second * 1000:.0f} ms",
        ),
        (
            f"{SHARDS} shards, 1 T parameters, over small",
            f"{shards.ratio:.2f}x",
            f"{BUDGETS['sharded_over_small']:.1f}x",
            f"{shards.first * 1000:.0f} ms over {shards.second * 1000:.0f} ms",
        ),
        ("the same in 65,536 tensors", f"{many.ratio:.2f}x", "", f"{many.first * 1000:.0f} ms"),
        ("unused pytest plugin", f"{plugin:.2f} ms", f"{BUDGETS['pytest_unused_ms']:.0f} ms", "import and hooks"),
        ("torch imported by a check", "yes" if figures["torch_imported"] else "no", "no", ""),
    ]
    if options.profile:
        slowest = sorted(loaded, key=lambda item: -item[1])[:25]
        rows += [(f"import {module}", f"{own / 1000:.2f} ms", "", "") for module, own in slowest]
    print_report(f"Start-up, median of {pairs} interleaved pairs of cold processes", rows, figures)


if __name__ == "__main__":
    main()
