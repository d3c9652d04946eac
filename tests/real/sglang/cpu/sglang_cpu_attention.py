"""CPU only: a plugin of SGLang that lets its EAGLE worker start without a GPU's attention backends.

SGLang's one CPU backend for speculative decoding needs AMX. With ``torch_native`` the draft steps behind the first
have no backend: the worker is built without one, so prefills run and decoding does not. With ``triton``, under
TRITON_INTERPRET=1, everything runs, and reads the full tree mask, which is what SGLang builds for it on a GPU.
Nothing here touches hidden states, layer ids, ``fc`` or tokens.
"""

from __future__ import annotations

UTILS = "sglang.srt.speculative.eagle_utils"
WORKER = "sglang.srt.speculative.eagle_worker_v2"


def plugin():
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(f"{UTILS}.default_tree_mask_mode", full_mask, HookType.REPLACE)
    HookRegistry.register(f"{WORKER}.EagleDraftWorker.init_attention_backend", attention, HookType.AROUND)


def full_mask():
    from sglang.srt.speculative.eagle_utils import TreeMaskMode

    return TreeMaskMode.FULL_MASK


def attention(original, worker):
    from sglang.srt.runtime_context import attention_backends

    if "torch_native" not in attention_backends():
        return original(worker)
    worker.draft_attn_backend = worker.draft_extend_attn_backend = None
    worker.draft_runner.draft_attn_backend = None
    worker.tree_mask_mode = full_mask()
    return None
