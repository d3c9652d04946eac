"""One target with a probe, drafters with contracts, and real SGLang in processes of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from drafters import VOCAB, make_drafter, make_target
from sglang_cpu import HERE, environment

TOKENS = torch.randperm(VOCAB - 2, generator=torch.Generator().manual_seed(3))[:64].add(2).tolist()


@pytest.fixture(scope="session")
def target(tmp_path_factory):
    return make_target(tmp_path_factory.mktemp("target") / "llama", "llama")


@pytest.fixture(scope="session")
def recorded(target, tmp_path_factory):
    """Return a function that gives a drafter with a contract and a probe."""
    import featurecontract
    from featurecontract.probe import read_probe

    root = tmp_path_factory.mktemp("drafters")
    made = []

    def get(ids, wiring, *, nested=True, change=lambda folder: folder):
        place = change(make_drafter(root / str(len(made)), ids, nested=nested))
        made.append(place)
        contract = featurecontract.record(str(target), out=place, wiring=wiring, token_ids=TOKENS, dtype="float32")
        return SimpleNamespace(place=place, target=target, contract=contract, probe=read_probe(contract, place))

    return get


@pytest.fixture(scope="session")
def prefill(target, tmp_path_factory):
    """Return a function that prefills another prompt and the probe with drafters, one after another in one process."""

    def run(drafters, *, capture=True, timeout=900, **variables):
        out = tmp_path_factory.mktemp("prefill")
        job = {
            "target": str(target),
            "prompts": [TOKENS[::-1], TOKENS],
            "cases": [
                {"drafter": str(place), "out": str(out / f"case-{number}")} for number, place in enumerate(drafters)
            ],
        }
        (out / "job.json").write_text(json.dumps(job))
        with (out / "log").open("wb") as log:
            done = subprocess.run(
                [sys.executable, str(HERE / "prefill.py"), str(out / "job.json")],
                env=environment(**({"FEATURECONTRACT_CAPTURE": str(out / "first")} if capture else {}), **variables),
                stdout=log,
                stderr=subprocess.STDOUT,
                timeout=timeout,
                check=False,
            )
        said = (out / "log").read_text("utf-8", "replace")
        assert done.returncode == 0, said[-3000:]
        answers = json.loads((out / "job.out.json").read_text())
        return [
            SimpleNamespace(captured=Path(case["out"]), log=said, **answer)
            for case, answer in zip(job["cases"], answers, strict=True)
        ]

    return run


@pytest.fixture(scope="session")
def engine_once(tmp_path_factory):
    """Return a function that generates with an engine of its own and returns the tokens."""

    def run(case, *, prompts, tokens=1, settings=None, timeout=900, **variables):
        out = tmp_path_factory.mktemp("engine")
        job = {
            "target": str(case.target),
            "drafter": str(case.place),
            "prompts": prompts,
            "tokens": tokens,
            "settings": settings or {},
        }
        (out / "job.json").write_text(json.dumps(job))
        with (out / "log").open("wb") as log:
            done = subprocess.run(
                [sys.executable, str(HERE / "engine_once.py"), str(out / "job.json")],
                env=environment(**variables),
                stdout=log,
                stderr=subprocess.STDOUT,
                timeout=timeout,
                check=False,
            )
        assert done.returncode == 0, (out / "log").read_text("utf-8", "replace")[-3000:]
        return json.loads((out / "job.out.json").read_text())

    return run


@pytest.fixture(scope="session")
def live(tmp_path_factory):
    """Return a function that runs phases live and returns their results and reports, by phase."""
    from featurecontract.live import live_report, run_live

    def run(case, only, *, timeout=900, options=None, **variables):
        out = tmp_path_factory.mktemp("live")
        with pytest.MonkeyPatch.context() as patch:
            for name, value in environment(**variables).items():
                patch.setenv(name, value)
            found = run_live(
                "sglang",
                case.place,
                case.target,
                case.contract,
                probe=case.probe,
                out=out,
                options=options,
                only=only,
                timeout=timeout,
            )
        reports = {
            item.phase: live_report(item, case.contract, case.probe, runtime="sglang", path=str(case.place))
            for item in found
        }
        return SimpleNamespace(results={item.phase: item for item in found}, reports=reports, out=out)

    return run
