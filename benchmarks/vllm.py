"""What the plugin costs a vLLM engine: `python -m benchmarks.vllm [--short]`, where vLLM is installed.

Three engines in processes of their own take turns with the same prompt: one that knows nothing of this package, one
with the plugin loaded and not asked for, one that captures. Ratios are of one round, and their median stands with its
95 % interval. The models are tiny, so a step is a few milliseconds and the plugin's share is the largest it can be.
The figures inform; the exit status is 0 whatever they are.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.intervals import interleaved, median_of
from benchmarks.table import print_report

__all__ = ["main"]

ROOT = Path(__file__).resolve().parents[1]
ROUNDS, SHORT_ROUNDS = 100, 20
PROMPT, TOKENS = 32, 48
BARE, OFF, ON = "without featurecontract", "plugin loaded, capture off", "capture on"


def main(arguments: list[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.vllm", description=__doc__)
    parser.add_argument("--short", action="store_true", help=f"{SHORT_ROUNDS} rounds instead of {ROUNDS}")
    parser.add_argument("--engine", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.engine:
        serve(*options.engine)
        return
    if importlib.util.find_spec("vllm") is None:
        print("vLLM is not installed here: not run (make real-vllm builds an environment)")
        print(json.dumps({"ran": False}))
        return
    rounds = SHORT_ROUNDS if options.short else ROUNDS
    with tempfile.TemporaryDirectory() as folder:
        target, drafter = models(Path(folder))
        sides = {
            BARE: Engine(target, drafter, VLLM_PLUGINS=""),
            OFF: Engine(target, drafter),
            ON: Engine(target, drafter, FEATURECONTRACT_CAPTURE=str(Path(folder) / "captures")),
        }
        try:
            seconds = interleaved({name: side.generate for name, side in sides.items()}, rounds=rounds)
        finally:
            for side in sides.values():
                side.close()
        kept = len(list((Path(folder) / "captures").glob("capture-*.json")))
    ratios = {
        name: median_of([mine / bare for mine, bare in zip(seconds[name], seconds[BARE], strict=True)])
        for name in (OFF, ON)
    }
    spent = register_microseconds()
    step = median_of(seconds[BARE]).median / TOKENS * 1e3
    figures: dict[str, Any] = {
        "ran": True,
        "off_over_bare": round(ratios[OFF].median, 4),
        "off_over_bare_interval": [round(ratios[OFF].low, 4), round(ratios[OFF].high, 4)],
        "on_over_bare": round(ratios[ON].median, 4),
        "on_over_bare_interval": [round(ratios[ON].low, 4), round(ratios[ON].high, 4)],
        "token_ms": round(step, 3),
        "register_us": round(spent, 1),
        "captured": kept,
    }
    rows = [["what", "measured"]]
    rows += [[f"{name} / without", str(ratios[name])] for name in (OFF, ON)]
    rows += [
        ["a token without", f"{step:.2f} ms"],
        ["the plugin's call, capture off", f"{spent:.0f} us, once a process"],
    ]
    print_report(f"vLLM, {rounds} rounds of {TOKENS} tokens, tiny random models", rows, figures)


def models(folder: Path) -> tuple[Path, Path]:
    """Write the tests' tiny target and drafter."""
    sys.path.insert(0, str(ROOT / "tests/real/vllm"))
    make = importlib.import_module("tiny_models")
    return make.make_target(folder / "target", "llama"), make.make_drafter(folder / "drafter", [1, 3, 5])


class Engine:
    """An engine in a process of its own that generates once for each line it is sent."""

    def __init__(self, target: Path, drafter: Path, **environment: str) -> None:
        """Start it and wait until it is up."""
        plain = {name: value for name, value in os.environ.items() if name != "FEATURECONTRACT_CAPTURE"}
        plain |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
        # One thread, bound nowhere: engines that take turns must not hold each other up.
        plain |= {"OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
        plain |= {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_LOGGING_LEVEL": "ERROR"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.vllm", "--engine", str(target), str(drafter)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=ROOT,
            env=plain | environment,
        )
        self._wait("READY")

    def generate(self) -> None:
        """Generate once; the caller takes the time."""
        print(file=self.process.stdin, flush=True)
        self._wait("DONE")

    def close(self) -> None:
        """End it."""
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()

    def _wait(self, word: str) -> None:
        for line in self.process.stdout or ():
            if line.strip() == word:
                return
        raise RuntimeError(f"the engine ended with status {self.process.wait()}")


def serve(target: str, drafter: str) -> None:
    """Be an engine: generate for each line of standard input."""
    from vllm import LLM, SamplingParams

    llm = LLM(
        model=target,
        dtype="float32",
        enforce_eager=True,
        max_model_len=128,
        max_num_seqs=1,
        enable_prefix_caching=False,
        speculative_config={"method": "eagle3", "model": drafter, "num_speculative_tokens": 3},
        seed=0,
    )
    prompt = {"prompt_token_ids": list(range(2, 2 + PROMPT))}
    sampling = SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True, detokenize=False)
    print("\nREADY", flush=True)
    for _ in sys.stdin:
        llm.generate([prompt], sampling, use_tqdm=False)
        print("\nDONE", flush=True)


def register_microseconds() -> float:
    """Return what the plugin's call costs a process that does not ask for it, its import aside."""
    from featurecontract.capture.vllm import register

    began = time.perf_counter()
    for _ in range(1000):
        register()
    return (time.perf_counter() - began) * 1e3


if __name__ == "__main__":
    main()
