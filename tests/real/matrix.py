"""The matrix: what real trainers export, served by real runtimes: ``python tests/real/matrix.py --out DIR``.

Every pair is predicted from its files, then served, and what entered the projection is identified. Three statements
are held of each: the prediction is what was observed, the verdict on the trainer's own contract is the one that is
known, and its findings are. A config that is edited here is a fault that must be caught. ``--results FILE`` keeps the
results, of which docs/make_compatibility.py makes docs/compatibility.md.

Runs in the project's own environment (`make matrix`); the libraries stand in theirs, in the folder that
FEATURECONTRACT_VENVS names. What cannot be set up is *not run*, and says so; anything else that fails is red.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from featurecontract.findings import Finding, Report

HERE = Path(__file__).resolve().parent
IDS = "eagle_aux_hidden_state_layer_ids"
#: Runtime -> its environment below FEATURECONTRACT_VENVS, and the name and version that the rules know.
RUNTIMES = {"vllm": ("vllm-cpu", "vllm-v1==0.32.0"), "sglang": ("sglang-cpu", "sglang==0.5.23")}
LIBRARIES = ("speculators", "specforge", "modelopt")


def nested(*ids: int) -> Callable[[dict[str, Any]], None]:
    """Return an edit that writes ids where SGLang and vLLM's first runner read them."""

    def edit(config: dict[str, Any]) -> None:
        config["eagle_config"] = config.get("eagle_config", {}) | {IDS: list(ids), "use_aux_hidden_state": True}

    return edit


def without_ids(config: dict[str, Any]) -> None:
    """Take the ids away, as an export that forgets them."""
    config.get("eagle_config", {}).pop(IDS, None)
    config.pop(IDS, None)


def as_llama(config: dict[str, Any]) -> None:
    """Flatten a speculators config into what SGLang loads, with the ids copied as they are."""
    layer = config.pop("transformer_layer_config")
    ids = config.pop(IDS)
    # Null, as speculators writes it, is a width of None to SGLang 0.5.23.
    for key in ("auto_map", "target_hidden_size"):
        config.pop(key, None)
    config |= {key: value for key, value in layer.items() if key not in ("architectures", "torch_dtype", "dtype")}
    config |= {"architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama"}
    nested(*ids)(config)


@dataclass(frozen=True, kw_only=True)
class Pair:
    """One drafter on one runtime: how its config is edited first, and what must come of it."""

    drafter: str
    runtime: str
    change: str = ""
    edit: Callable[[dict[str, Any]], None] | None = None
    verdict: str = "pass"
    slugs: tuple[str, ...] = ()
    short: bool = False


@dataclass(kw_only=True)
class Result:
    """What came of a pair; ``status`` is ``as predicted``, ``not run`` or what is wrong."""

    drafter: str
    trainer: str
    runtime: str
    change: str
    date: str
    declared: str = ""
    predicted: str = ""
    observed: str = ""
    verdict: str = ""
    findings: list[str] = field(default_factory=list)
    status: str = "not run"
    reason: str = ""


PAIRS = (
    Pair(drafter="speculators", runtime="vllm", short=True),
    Pair(drafter="speculators", runtime="sglang", verdict="could-not-check", slugs=("nothing-captured",)),
    Pair(
        drafter="speculators",
        runtime="sglang",
        change="as a Llama config, its ids copied into eagle_config",
        edit=as_llama,
        verdict="fail",
        slugs=("layer-shift",),
        short=True,
    ),
    Pair(drafter="specforge-default", runtime="sglang", short=True),
    Pair(drafter="specforge-default", runtime="vllm"),
    Pair(drafter="specforge-override", runtime="sglang", verdict="fail", slugs=("layer-shift",)),
    Pair(drafter="specforge-override", runtime="vllm", verdict="fail", slugs=("layer-shift",), short=True),
    Pair(
        drafter="specforge-override",
        runtime="sglang",
        change="the run's ids written into eagle_config",
        edit=nested(0, 2, 5),
    ),
    Pair(drafter="modelopt", runtime="sglang", short=True),
    Pair(drafter="modelopt", runtime="vllm", verdict="fail", slugs=("layer-shift",), short=True),
    Pair(
        drafter="modelopt",
        runtime="vllm",
        change="its ids written as layer inputs",
        edit=nested(2, 4, 5),
    ),
    Pair(
        drafter="modelopt",
        runtime="vllm",
        change="the first id lost: the embedding asked for instead",
        edit=nested(0, 4, 5),
        verdict="fail",
        slugs=("layer-shift",),
    ),
    Pair(
        drafter="modelopt",
        runtime="sglang",
        change="ids in another order",
        edit=nested(4, 1, 3),
    ),
    Pair(
        drafter="modelopt",
        runtime="sglang",
        change="no ids",
        edit=without_ids,
    ),
)


def main() -> int:
    """Make the drafters, serve the pairs, and say what differs from what is known."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for drafters, captures and logs")
    parser.add_argument("--short", action="store_true", help="one pair of each kind")
    parser.add_argument("--results", type=Path, help="write the results here, as JSON")
    options = parser.parse_args()
    out = options.out.resolve()
    versions = make_drafters(out)
    results = []
    for pair in PAIRS:
        if pair.short or not options.short:
            started = time.monotonic()
            found = run_pair(pair, out, versions)
            results.append(found)
            print(f"{found.status:<14} {title(found)} ({time.monotonic() - started:.0f} s) {found.reason}", flush=True)
    if options.results:
        text = json.dumps([asdict(item) for item in results], indent=1, ensure_ascii=False) + "\n"
        options.results.write_text(text, "utf-8")
    for item in results:
        if item.status == "not run":
            print(f"NOT RUN {title(item)}: {item.reason}")
    wrong = [item for item in results if item.status not in ("as known", "not run")]
    print(f"{len(results)} pairs: {sum(item.status == 'as known' for item in results)} as known, {len(wrong)} not")
    return 1 if wrong else 0


def title(item: Result) -> str:
    """Return the pair in words."""
    return f"{item.drafter} ({item.trainer}) on {item.runtime}" + (f", {item.change}" if item.change else "")


def make_drafters(out: Path) -> dict[str, str]:
    """Train and export with every library that is there; return library -> version."""
    script = HERE / "trainers" / "make_drafters.py"
    subprocess.run([sys.executable, str(script), str(out / "drafters")], check=False, timeout=1800)
    return {name: lock(name, name if name != "modelopt" else "nvidia-modelopt") for name in LIBRARIES}


def lock(name: str, distribution: str) -> str:
    """Return ``NAME==VERSION`` as the lock file pins it."""
    lines = (HERE.parents[1] / "requirements" / f"{name}.txt").read_text("utf-8").splitlines()
    return next(line.strip() for line in lines if line.startswith(f"{distribution}=="))


def run_pair(pair: Pair, out: Path, versions: Mapping[str, str]) -> Result:
    """Predict, serve and compare one pair."""
    environment, key = RUNTIMES[pair.runtime]
    library = pair.drafter.partition("-")[0]
    found = Result(
        drafter=pair.drafter,
        trainer=versions[library],
        runtime=key,
        change=pair.change,
        date=dt.datetime.now(dt.timezone.utc).date().isoformat(),
    )
    python = Path(os.environ.get("FEATURECONTRACT_VENVS", ".venvs")).resolve() / environment / "bin" / "python"
    source = out / "drafters" / pair.drafter
    if not (source / "feature_contract.json").exists():
        return replace(found, reason=f"{library} left no drafter; its environment may not be there")
    if not python.exists():
        return replace(found, reason=f"there is no environment {environment} (requirements/make_environment.sh)")
    place = out / "pairs" / f"{pair.drafter}-{pair.runtime}-{PAIRS.index(pair)}"
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(source, place / "drafter")
    if pair.edit:
        config = place / "drafter" / "config.json"
        value = json.loads(config.read_text("utf-8"))
        pair.edit(value)
        config.write_text(json.dumps(value, indent=1), "utf-8")
    report = served(pair.runtime, place, out / "drafters" / "target", python)
    return judged(found, pair, report, place / "drafter", out / "drafters" / "target")


def served(runtime: str, place: Path, target: Path, python: Path) -> Report:
    """Run the prefill phase on the real runtime and return the report of what it fed."""
    from featurecontract.contract import load
    from featurecontract.live import live_report, run_live
    from featurecontract.probe import read_probe

    contract = load(place / "drafter")
    probe = read_probe(contract, place / "drafter")
    before = dict(os.environ)
    os.environ.update({"HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_LOGGING_LEVEL": "WARNING"})
    if runtime == "sglang":
        # Stand-ins for the CUDA kernels; they touch KV copies and trees, never the features.
        sys.path.insert(0, str(HERE / "sglang"))
        from sglang_cpu import environment

        os.environ.update(environment())
    try:
        results = run_live(
            runtime,
            place / "drafter",
            target,
            contract,
            probe=probe,
            out=place / "live",
            python=str(python),
            options={"dtype": "float32"},
            only=("prefill",),
            timeout=600,
        )
    finally:
        os.environ.clear()
        os.environ.update(before)
    return live_report(results[0], contract, probe, runtime=runtime, path=str(place / "drafter"))


def judged(found: Result, pair: Pair, report: Report, drafter: Path, target: Path) -> Result:
    """Compare what came with what is known of the pair, and the prediction with the observation."""
    from featurecontract.gate import predict

    predicted = predict(str(drafter), target=str(target), runtimes=[found.runtime]).predicted
    named = predicted[0] if predicted else None
    slugs = sorted({item.slug for item in report.findings if counts(item)})
    seen = [item for item in report.observed if item.rows]
    found.declared = str(report.declared)
    found.predicted = "" if named is None else crashes(named.crash) or str(named.wiring or named.reason)
    found.observed = str(seen[0].wiring) if seen else ""
    found.verdict = report.verdict
    said = (f"{item.slug}: {item.message}".replace(str(drafter), "CKPT")[:300] for item in report.findings)
    found.findings = list(dict.fromkeys(said))
    wrong = []
    if seen and (named is None or named.wiring is None or named.wiring.boundaries != seen[0].wiring.boundaries):
        wrong.append("what was observed is not what was predicted")
    if not seen and named is not None and not named.crash and named.wiring is not None:
        wrong.append("a wiring was predicted and nothing was observed")
    if report.verdict != pair.verdict or slugs != sorted(pair.slugs):
        wrong.append(f"expected {pair.verdict} {list(pair.slugs)}, found {report.verdict} {slugs}")
    return replace(found, status="differs" if wrong else "as known", reason="; ".join(wrong))


def crashes(where: str) -> str:
    """Return a predicted crash in words, empty for none."""
    return f"crash {where}" if where else ""


def counts(item: Finding) -> bool:
    """Whether a finding decides a verdict."""
    return item.severity == "error" or item.unchecked


if __name__ == "__main__":
    sys.exit(main())
