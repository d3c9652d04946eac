"""CPU only: plain torch versions of the few kernels of ``sgl_kernel`` that an EAGLE chain needs in SGLang 0.5.23.

PyPI has no CPU build of sgl_kernel. These move KV rows, fill slot tables, build the (unbranched) draft tree and accept
its greedy prefix; no hidden state passes through any of them. Every other name exists and raises when it is called.
The argument lists are those of SGLang's callers in sglang/kernels/ops.
"""

from __future__ import annotations

import ctypes

import torch

FULL_MASK, QUERY_MASK = 0, 1


def copy_all_layer_kv_cache_cpu(pointers, row_bytes, to, source):
    """Copy KV rows ``source`` over rows ``to`` in every layer's buffer."""
    for base, size in zip(pointers.tolist(), row_bytes.tolist(), strict=True):
        held = [ctypes.string_at(base + row * size, size) for row in source.tolist()]
        for row, data in zip(to.tolist(), held, strict=True):
            ctypes.memmove(base + row * size, data, size)


def fill_bonus_tokens_cpu(accepted, lengths, out, stride):
    """Write each request's last accepted token."""
    rows = torch.arange(len(lengths))
    out.copy_(accepted.reshape(-1)[rows * stride + lengths.long() - 1])


def fill_accept_out_cache_loc_cpu(accepted, slots, out):
    """Write the slots of accepted rows, packed."""
    kept = accepted.reshape(-1)
    kept = kept[kept >= 0].long()
    out.reshape(-1)[: len(kept)] = slots.reshape(-1)[kept].to(out.dtype)


def _slots(requests, table, starts, stops, out):
    found = [
        table[request, start:stop]
        for request, start, stop in zip(requests.tolist(), starts.tolist(), stops.tolist(), strict=True)
    ]
    flat = torch.cat(found).to(out.dtype)
    out.reshape(-1)[: len(flat)] = flat


def assign_draft_cache_locs_contiguous_cpu(requests, table, lengths, out, _columns, topk, steps):
    """Write the slots behind each request's tokens."""
    _slots(requests, table, lengths, lengths + topk * steps, out)


def assign_extend_cache_locs_cpu(requests, table, starts, stops, out, _columns):
    """Write the slots between two positions of each request."""
    _slots(requests, table, starts, stops, out)


def assign_req_to_token_pool_cpu(requests, table, starts, stops, slots, *_):
    """Write slots into the table, request by request."""
    at = 0
    for request, start, stop in zip(requests.tolist(), starts.tolist(), stops.tolist(), strict=True):
        table[request, start:stop] = slots.reshape(-1)[at : at + stop - start].to(table.dtype)
        at += stop - start


def build_tree_kernel_efficient_cpu(
    _parents, _scores, lengths, mask, positions, index, next_token, next_sibling, topk, _depth, width, mode
):
    """Describe a chain: row j sees the prompt and rows up to j, and is followed by row j + 1."""
    if topk != 1:
        raise NotImplementedError("only an unbranched draft (topk 1) is built on the CPU")
    count = len(lengths)
    step = torch.arange(width)
    index.reshape(count, width).copy_(torch.arange(count * width).reshape(count, width))
    next_token.reshape(count, width).copy_(torch.where(step + 1 < width, step + 1, -1))
    next_sibling.fill_(-1)
    positions.reshape(count, width).copy_(lengths.reshape(-1, 1) + step)
    chain = torch.ones(width, width, dtype=torch.bool).tril()
    if int(mode) == QUERY_MASK:
        flat = chain.reshape(-1).repeat(count)
    elif int(mode) == FULL_MASK:
        flat = torch.cat(
            [torch.cat([torch.ones(width, n, dtype=torch.bool), chain], 1).reshape(-1) for n in lengths.tolist()]
        )
    else:
        raise NotImplementedError(f"tree mask mode {mode}")
    mask.reshape(-1)[: len(flat)] = flat.to(mask.dtype)


def verify_tree_greedy_cpu(
    predicts,
    accept_index,
    accept_token_num,
    candidates,
    retrive_index,
    retrive_next_token,
    retrive_next_sibling,
    target_predict,
):
    """Accept each draft token that is what the target predicts in the row before it, until the first that is not."""
    del retrive_next_token, retrive_next_sibling
    for request, drafted in enumerate(candidates.tolist()):
        rows = retrive_index[request].tolist()
        wanted = target_predict.reshape(len(candidates), -1)[request].tolist()
        most = accept_index.shape[1] - 1
        good = 0
        while good < most and good + 1 < len(drafted) and drafted[good + 1] == wanted[good]:
            good += 1
        for step in range(good + 1):
            accept_index[request, step] = rows[step]
            predicts[rows[step]] = wanted[step]
        accept_token_num[request] = good


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)

    def absent(*_args, **_kwargs):
        raise RuntimeError(f"sgl_kernel.{name} was called: this CPU stand-in has no such kernel")

    return absent
