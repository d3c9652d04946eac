"""One target of each kind with a probe, and engines that are started where they are needed."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest
from tiny_models import TOKENS, make_drafter, make_target

# Before vLLM is imported by anybody.
os.environ |= {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "WARNING",
}
os.environ.setdefault("OMP_NUM_THREADS", "2")


@pytest.fixture(scope="session")
def targets(tmp_path_factory):
    """Return a function that makes each kind of target once."""
    root = tmp_path_factory.mktemp("targets")
    made = {}

    def get(kind):
        if kind not in made:
            made[kind] = make_target(root / kind, kind)
        return made[kind]

    return get


@pytest.fixture(scope="session")
def recorded(targets, tmp_path_factory):
    """Return a function that gives a drafter with a contract and a probe, by target, its ids and what it declares."""
    import featurecontract
    from featurecontract.probe import read_probe

    root = tmp_path_factory.mktemp("drafters")
    made = {}

    def get(kind, ids, wiring, *, nested=True):
        key = (kind, str(ids), wiring, nested)
        if key not in made:
            place = make_drafter(root / str(len(made)), ids, nested=nested)
            contract = featurecontract.record(
                str(targets(kind)), out=place, wiring=wiring, token_ids=TOKENS, dtype="float32"
            )
            made[key] = SimpleNamespace(
                place=place, target=targets(kind), contract=contract, probe=read_probe(contract, place)
            )
        return made[key]

    return get


@pytest.fixture
def engine():
    """Return a function that starts an engine for a recorded drafter; the one before is ended."""
    from featurecontract.live._job import Job, other_prompts
    from featurecontract.live.vllm_engine import Engine

    running = []

    def start(case, **options):
        for before in running:
            before.close()
        running.clear()
        ids = tuple(case.probe.token_ids.tolist())
        job = Job(
            runtime="vllm",
            checkpoint=str(case.place),
            target=str(case.target),
            out="",
            phases=(),
            token_ids=ids,
            others=other_prompts(ids),
            options={"dtype": "float32"} | options,
        )
        found = Engine(job)
        running.append(found)
        return found

    yield start
    for before in running:
        before.close()


@pytest.fixture
def fed(tmp_path):
    """Return a function that sends the probe through an engine and gives the report of what was captured."""
    from featurecontract.capture import load
    from featurecontract.gate import verify_captures

    count = iter(range(100))

    def run(engine, case, *, prompts=None):
        place = tmp_path / str(next(count))
        engine.call("reset")
        for prompt in prompts or (engine.job.others[0], engine.job.token_ids):
            engine.run([prompt])
        engine.call("save", str(place))
        return verify_captures(case.contract, case.probe, load(place), path=str(case.place))

    return run
