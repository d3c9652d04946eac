"""Start an ordinary ``sglang.Engine`` on the CPU, generate greedily, end: ``python engine_once.py JOB.json``.

``{"target": DIR, "drafter": DIR, "prompts": [[ids]], "tokens": N, "settings": {}}``; tokens go to ``JOB.out.json``.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path


def main():
    job = json.loads(Path(sys.argv[1]).read_text())
    os.environ["SGLANG_USE_CPU_ENGINE"] = "1"
    import sglang

    engine = sglang.Engine(
        model_path=job["target"],
        speculative_algorithm="EAGLE3",
        speculative_draft_model_path=job["drafter"],
        speculative_num_steps=3,
        speculative_eagle_topk=1,
        speculative_num_draft_tokens=4,
        skip_tokenizer_init=True,
        device="cpu",
        dtype="float32",
        attention_backend="triton" if os.environ.get("TRITON_INTERPRET") == "1" else "torch_native",
        sampling_backend="pytorch",
        grammar_backend="none",
        disable_cuda_graph=True,
        disable_overlap_schedule=True,
        mem_fraction_static=0.5,
        max_total_tokens=2048,
        max_running_requests=4,
        random_seed=0,
        **job.get("settings", {}),
    )
    sampling = {"temperature": 0.0, "max_new_tokens": job["tokens"], "ignore_eos": True}
    answers = [engine.generate(input_ids=[ids], sampling_params=sampling)[0]["output_ids"] for ids in job["prompts"]]
    Path(sys.argv[1]).with_suffix(".out.json").write_text(json.dumps(answers))
    # Shutting down kills the scheduler; what came in the last half second may not have been written.
    time.sleep(3)
    engine.shutdown()


if __name__ == "__main__":
    main()
