"""Serve prompts in real vLLM: capture what it feeds the drafter, and read its own counters of accepted drafts.

    python serve.py CKPT TARGET PROMPTS OUT [--tokens 64] [--drafts 3]

PROMPTS is a JSON list of lists of token ids. OUT/captured is the capture of the checkpoint's probe; OUT/served.json
has, for each prompt, the drafting rounds, the tokens accepted at each draft step, and what was generated (greedily, in
float32). Runs in an environment that has vLLM and featurecontract.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

# Before vLLM is imported.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")


def main() -> None:
    """Capture first, then let go and measure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkpoint")
    parser.add_argument("target")
    parser.add_argument("prompts", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--tokens", type=int, default=64, help="tokens to generate for each prompt")
    parser.add_argument("--drafts", type=int, default=3, help="draft tokens of a round")
    options = parser.parse_args()
    prompts = json.loads(options.prompts.read_text())
    llm = start(options, longest=max(map(len, prompts)))
    capture(llm, options.checkpoint, options.out / "captured", before=prompts[0])
    # This file comes last: where it is, the whole run is there.
    part = options.out / "served.part"
    part.write_text(json.dumps(measure(llm, prompts, options.tokens)))
    part.replace(options.out / "served.json")
    # Engines leave threads that would keep this process.
    sys.stderr.flush()
    os._exit(0)


def start(options: argparse.Namespace, *, longest: int) -> Any:
    from vllm import LLM

    return LLM(
        model=options.target,
        dtype="float32",
        seed=0,
        max_model_len=max(128, longest + options.tokens + options.drafts + 1),
        max_num_seqs=1,
        enforce_eager=True,
        enable_prefix_caching=False,
        disable_log_stats=False,
        speculative_config={"method": "eagle3", "model": options.checkpoint, "num_speculative_tokens": options.drafts},
        worker_extension_cls="featurecontract.capture.vllm.CaptureExtension",
    )


def capture(llm: Any, checkpoint: str, out: Path, *, before: list[int]) -> None:
    """Send another prompt and then the probe, with capture on: a buffer that is left over shows only then."""
    import featurecontract

    contract = featurecontract.load(checkpoint)
    facts = llm.collective_rpc("feature_capture_install")[0]
    say(f"vLLM {facts['vllm']}, layers {facts['aux_layer_ids']}")
    generate(llm, before, 1)
    llm.collective_rpc("feature_capture_reset", args=("prefill",))
    generate(llm, list(contract.probe.token_ids), 1)
    llm.collective_rpc("feature_capture_save", args=(str(out),))
    llm.collective_rpc("feature_capture_remove")


def measure(llm: Any, prompts: list[list[int]], tokens: int) -> list[dict[str, Any]]:
    """Generate for one prompt at a time, so that the counters tell them apart."""
    before, found = counters(llm), []
    begin = time.perf_counter()
    for number, prompt in enumerate(prompts, start=1):
        text = generate(llm, prompt, tokens)
        after = counters(llm)
        gained = {name: after[name] - before[name] for name in ("rounds", "accepted")}
        steps = [new - old for new, old in zip(after["by_step"], before["by_step"], strict=True)]
        found.append({"prompt": prompt, "generated": text, "by_step": steps} | gained)
        before = after
        say(f"vLLM: {number} of {len(prompts)} prompts, {time.perf_counter() - begin:.0f} s")
    return found


def generate(llm: Any, prompt: list[int], tokens: int) -> list[int]:
    from vllm import SamplingParams

    sampling = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True, detokenize=False)
    answer = llm.generate([{"prompt_token_ids": prompt}], sampling, use_tqdm=False)
    return list(answer[0].outputs[0].token_ids)


def counters(llm: Any) -> dict[str, Any]:
    """Return vLLM's counters of speculative decoding as they stand."""
    found = {metric.name.removeprefix("vllm:spec_decode_num_"): metric for metric in llm.get_metrics()}
    return {
        "rounds": found["drafts"].value,
        "accepted": found["accepted_tokens"].value,
        "by_step": list(found["accepted_tokens_per_pos"].values),
    }


def say(line: str) -> None:
    """Tell the progress."""
    sys.stderr.write(f"{line}\n")


if __name__ == "__main__":
    main()
