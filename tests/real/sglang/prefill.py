"""Prefill prompts through SGLang's own target and draft workers in this process, one drafter after another.

``python prefill.py JOB.json``: ``{"target": DIR, "prompts": [[ids]], "cases": [{"drafter": DIR, "out": DIR}]}``. What
SGLang's scheduler does for one request is done here by hand, because a scheduler takes 20 s to start; target,
drafter, layer ids, weights and the prefill are SGLang's own. Captures are made by the plugin, which SGLang loads as a
server does; where FEATURECONTRACT_CAPTURE is not set nothing is captured. Writes what was generated to
``JOB.out.json``.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from array import array
from pathlib import Path


def main():
    job = json.loads(Path(sys.argv[1]).read_text())
    os.environ["SGLANG_USE_CPU_ENGINE"] = "1"
    from sglang.srt.plugins import load_plugins

    load_plugins()
    answers = []
    for number, case in enumerate(job["cases"]):
        if os.environ.get("FEATURECONTRACT_CAPTURE"):
            from featurecontract.capture import _sglang_worker
            from featurecontract.capture.sglang import version

            _sglang_worker.configure(case["out"], version=version())
        try:
            answers.append(run(job["target"], case["drafter"], job["prompts"], first=number == 0))
        except Exception as error:  # noqa: BLE001 - a refusal of SGLang is an answer
            traceback.print_exc()
            answers.append({"error": f"{type(error).__name__}: {error}"})
    finish()
    Path(sys.argv[1]).with_suffix(".out.json").write_text(json.dumps(answers))
    sys.stdout.flush()
    os._exit(0)


def run(target_path, drafter_path, prompts, *, first):
    target, draft = workers(target_path, drafter_path, first=first)
    fed = []
    for prompt in prompts:
        result = prefill(target, draft, prompt)
        drafted = result.next_draft_input.topk_index
        fed.append({"next": result.next_token_ids.tolist(), "drafted": drafted.tolist()})
    model = target.model_runner.model
    return {
        "fed": fed,
        "layers_to_capture": list(model.model.layers_to_capture),
        "drafter": type(draft.draft_worker.draft_runner.model).__name__,
    }


def workers(target_path, drafter_path, *, first):
    """Build SGLang's workers as its scheduler does (srt/managers/scheduler.py, 0.5.23)."""
    from sglang.benchmark import one_batch
    from sglang.srt.configs.model_config import ModelConfig
    from sglang.srt.distributed import bootstrap
    from sglang.srt.managers.tp_worker import TpModelWorker
    from sglang.srt.runtime_context import SpawnRanks, publish
    from sglang.srt.server_args import PortArgs, ServerArgs
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    arguments = ServerArgs(
        model_path=target_path,
        speculative_algorithm="EAGLE3",
        speculative_draft_model_path=drafter_path,
        speculative_num_steps=3,
        speculative_eagle_topk=1,
        speculative_num_draft_tokens=4,
        device="cpu",
        dtype="float32",
        attention_backend="torch_native",
        sampling_backend="pytorch",
        disable_cuda_graph=True,
        disable_overlap_schedule=True,
        disable_radix_cache=True,
        mem_fraction_static=0.5,
        max_total_tokens=1024,
        max_running_requests=4,
        random_seed=0,
    )
    arguments.resolve_once()
    ports = PortArgs.init_new(arguments)
    publish(arguments, role="scheduler", ranks=SpawnRanks(world_rank=0, gpu_id=0))
    if first:
        one_batch._init_process_global_configs()
        bootstrap.init_parallel_runtime(server_args=arguments, device="cpu", dist_port=ports.nccl_port)
    bootstrap.init_layer_runtime(model_config=ModelConfig.from_server_args(arguments))
    place = {"server_args": arguments, "gpu_id": 0, "nccl_port": ports.nccl_port}
    target = TpModelWorker(**place)
    draft = SpeculativeAlgorithm.from_string("EAGLE3").create_worker(arguments)(**place, target_worker=target)
    runner = target.model_runner
    runner.account_preloaded_weights(target.preloaded_weights_bytes + draft.preloaded_weights_bytes)
    target.alloc_memory_pool(draft_parallel_layout=draft.draft_parallel_layout)
    pool, allocator = target.get_memory_pool()
    draft.alloc_memory_pool(
        memory_pool_config=runner.memory_pool_config,
        req_to_token_pool=pool,
        token_to_kv_pool_allocator=allocator,
    )
    for part in (target, draft):
        part.init_attention_backends()
    for part in (target, draft):
        part.init_cuda_graphs()
    return target, draft


def prefill(target, draft, prompt):
    """Send one prompt through ``EAGLEWorkerV2.forward_batch_generation`` and forget it."""
    import torch
    from sglang.benchmark import one_batch
    from sglang.srt.managers.schedule_batch import Req, ScheduleBatch
    from sglang.srt.sampling.sampling_params import SamplingParams
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    runner = target.model_runner
    ids = array("q", prompt)
    request = Req(
        rid=f"prompt-{prompt[0]}",
        origin_input_text="",
        origin_input_ids=ids,
        sampling_params=SamplingParams(temperature=0, max_new_tokens=4),
    )
    request.sampling_params.normalize(None)
    request.full_untruncated_fill_ids, request.logprob_start_len, request.extend_end = ids, -1, len(ids)
    tree = one_batch.TreeCacheNamespace(
        page_size=1, device=runner.device, token_to_kv_pool_allocator=runner.token_to_kv_pool_allocator
    )
    batch = ScheduleBatch.init_new(
        reqs=[request],
        req_to_token_pool=runner.req_to_token_pool,
        token_to_kv_pool_allocator=runner.token_to_kv_pool_allocator,
        tree_cache=tree,
        model_config=runner.model_config,
        enable_overlap=False,
        spec_algorithm=SpeculativeAlgorithm.from_string("EAGLE3"),
    )
    batch.prepare_for_extend()
    if batch.input_ids is None:
        batch.input_ids, batch.prefill_input_ids_cpu = batch.prefill_input_ids_cpu.to(batch.device), None
    with torch.no_grad():
        result = draft.forward_batch_generation(batch)
    runner.req_to_token_pool.clear()
    runner.token_to_kv_pool_allocator.clear()
    return result


def finish():
    """Write what the capture's thread has not written yet."""
    from featurecontract.capture import _sglang_worker

    held = _sglang_worker._Process.worker
    if held is not None:
        held.flush()


if __name__ == "__main__":
    main()
