"""``python -m featurecontract.live.sglang_engine JOB.json``: the phases of a live run in a real ``sglang.Engine``.

The plugin captures in SGLang's scheduler processes, one file per rank; after each phase the calls of its requests are
taken from there, by request id. Phases whose settings are equal share an engine. The settings are safe ones; the job's
options (arguments of ``sglang.Engine``) win.
"""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from featurecontract.live._engine import CannotRun, phase, run_engine, say
from featurecontract.live._sglang_phases import ACCEPTED, PHASES, SglangRun
from featurecontract.live._sglang_plugin import prepare, usable_version

if TYPE_CHECKING:
    from collections.abc import Iterator

    from featurecontract.live._job import Job

__all__ = ["main", "settings"]

_ALGORITHMS = {"eagle3": "EAGLE3", "eagle": "EAGLE"}
_STEPS = 3


def main(job: Job) -> None:
    """Run the job's phases."""
    if job.method not in _ALGORITHMS:
        raise CannotRun(
            f"a drafter of method {job.method} is not run live in SGLang (methods: {', '.join(_ALGORITHMS)})"
        )
    version = usable_version()
    _before_import()
    captured = prepare(job, accepted=ACCEPTED)
    for names, given in _groups(job):
        if isinstance(given, str):
            for name in names:
                with phase(job, name):
                    raise CannotRun(given)
            continue
        say(f"starting SGLang {version} for {', '.join(names)}")
        run = SglangRun(job, given, captured)
        try:
            run.check_plugin()
            for name in names:
                with phase(job, name) as running:
                    running.note(f"sglang=={version}, {run.facts}")
                    PHASES[name](run, running)
        finally:
            run.close()


def _groups(job: Job) -> Iterator[tuple[list[str], dict[str, Any] | str]]:
    """Yield phases with the settings that they share, or with the reason why they cannot be run."""
    waiting = list(job.phases)
    while waiting:
        given = settings(job, waiting[0])
        names = [name for name in waiting if settings(job, name) == given]
        waiting = [name for name in waiting if name not in names]
        yield names, given


def settings(job: Job, name: str) -> dict[str, Any] | str:
    """Return the engine's arguments for a phase, or why it cannot be run here."""
    rows = len(job.token_ids)
    safe: dict[str, Any] = {
        "model_path": job.target,
        "speculative_algorithm": _ALGORITHMS[job.method],
        "speculative_draft_model_path": job.checkpoint,
        "speculative_num_steps": _STEPS,
        "speculative_eagle_topk": 1,
        "speculative_num_draft_tokens": _STEPS + 1,
        "skip_tokenizer_init": True,
        "max_running_requests": 8,
        "max_total_tokens": max(4096, 16 * rows),
        "random_seed": 0,
        # First come, first served: the prompts of a phase have an order.
        "schedule_policy": "fcfs",
        "log_level": "warning",
    }
    if name == "chunked":
        safe["chunked_prefill_size"] = max(16, rows // 3)
    else:
        # Room for four prompts in one step, and for the ones behind.
        safe["chunked_prefill_size"] = 8 * rows
    if _on_cpu():
        backend = job.options.get("attention_backend") or _cpu_backend(name)
        if not backend:
            return (
                "without AMX, SGLang has no CPU attention for the draft steps behind the first; "
                "set TRITON_INTERPRET=1 to run them in Triton's interpreter"
            )
        safe |= {
            "device": "cpu",
            "dtype": "float32",
            "attention_backend": backend,
            "sampling_backend": "pytorch",
            "grammar_backend": "none",
            "disable_cuda_graph": True,
            "disable_overlap_schedule": True,
            # What other programs take counts against it; max_total_tokens bounds the cache itself.
            "mem_fraction_static": 0.5,
        }
    return safe | job.options


def _on_cpu() -> bool:
    import torch

    return not torch.cuda.is_available()


def _cpu_backend(name: str) -> str:
    interpreted = os.environ.get("TRITON_INTERPRET") == "1"
    if name == "decode":
        return "triton" if interpreted else ""
    return "triton" if name == "drafts" and interpreted else "torch_native"


def _before_import() -> None:
    """Say what SGLang needs to know before it is imported, here and in its child processes."""
    if not _on_cpu():
        return
    os.environ.setdefault("SGLANG_USE_CPU_ENGINE", "1")
    if find_spec("sgl_kernel") is None:
        raise CannotRun(
            f"{sys.executable} finds no GPU and no sgl_kernel: SGLang runs on a CPU only with its CPU kernels, "
            "or with the stand-ins of docs/sglang.md on PYTHONPATH"
        )


if __name__ == "__main__":
    run_engine(main)
