"""A checkpoint's weights become a reference drafter; every shape is checked against the structure first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from featurecontract.checkpoint import check_vocab_map
from featurecontract.errors import InputError, Problem, UsageError
from featurecontract.replay._drafter import Drafter
from featurecontract.replay._mla import FUSED, latent_parts
from featurecontract.replay._names import ATTENTION_PARTS, MLP_PARTS, plain_names
from featurecontract.replay._structure import read_spec

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from torch import Tensor

    from featurecontract.checkpoint import Checkpoint
    from featurecontract.contract import Contract
    from featurecontract.replay._spec import DrafterSpec

__all__ = ["build_drafter", "read_drafter", "read_tensor"]

_DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_STEP = "export the checkpoint again from the run that trained it"


def read_tensor(checkpoint: Checkpoint, name: str) -> Tensor:
    """Return one floating-point tensor of a checkpoint, on the CPU.

    Raises:
        InputError: it is missing, quantised, truncated or cannot be read.
    """
    facts = (checkpoint.tensors or {}).get(name)
    if facts is not None and facts.dtype not in _DTYPES:
        raise InputError.single(
            str(checkpoint.path),
            f"{name} is {facts.dtype}; replay computes with plain floating-point weights only",
            place=name,
            next_step="replay the checkpoint that was trained, before it was quantised",
        )
    data = checkpoint.read_bytes(name)
    assert facts is not None  # noqa: S101 - read_bytes refuses a name that is not there
    dtype = _DTYPES[facts.dtype]
    if len(data) == 0:
        return torch.zeros(facts.shape, dtype=dtype)
    flat = torch.frombuffer(data, dtype=dtype)
    if flat.numel() != _elements(facts.shape):
        raise InputError.single(
            str(checkpoint.path), "has another size than its shape says", place=name, next_step=_STEP
        )
    return flat.reshape(facts.shape)


def _elements(shape: tuple[int, ...]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count


def read_drafter(
    checkpoint: Checkpoint,
    *,
    contract: Contract | None = None,
    target_hidden_size: int | None = None,
    embedding: Tensor | None = None,
    head: Tensor | None = None,
    target_vocab_size: int | None = None,
    device: str = "cpu",
    dtype: torch.dtype = torch.float32,
    **overrides: Any,
) -> Drafter:
    """Read a drafter.

    Args:
        checkpoint: Its files.
        contract: What it was trained on, where known: it wins over the config.
        target_hidden_size: Width of one plane of the target, where neither says it.
        embedding: The target's ``[vocabulary, hidden]``, for a drafter without its own.
        head: The target's output head, likewise.
        target_vocab_size: Tokens of the target, where no embedding says it.
        device: Where to compute.
        dtype: In what to compute.
        **overrides: Fields of `DrafterSpec` to replace, such as ``recurrent="post_norm"``.

    Raises:
        InputError: a tensor is missing or has another shape, a map leaves the vocabulary, or the drafter is of a kind
            that is not replayed here.
    """
    if checkpoint.tensors is None:
        raise InputError.single(
            str(checkpoint.path), checkpoint.tensors_reason, next_step="name the directory with the weights"
        )
    names = plain_names(checkpoint.tensors, source=str(checkpoint.path))
    shapes = {plain: checkpoint.tensors[name].shape for name, plain in names.items()}
    own_embedding = contract is None or contract.drafter.embedding == "own" or embedding is None
    if "embed.weight" not in shapes or not own_embedding:
        if embedding is None:
            raise _absent(checkpoint, "embed_tokens.weight", "the drafter shares the target's embedding")
        shapes["embed.weight"] = tuple(embedding.shape)
    else:
        embedding = None
    if "head.weight" not in shapes:
        if head is None:
            raise _absent(checkpoint, "lm_head.weight", "the drafter shares the target's head")
        shapes["head.weight"] = tuple(head.shape)
    else:
        head = None
    check_device(device)
    spec = read_spec(checkpoint, shapes, contract=contract, target_hidden_size=target_hidden_size, **overrides)
    _check(checkpoint, spec, shapes)
    weights = {
        plain: read_tensor(checkpoint, name).to(device, dtype)
        for name, plain in names.items()
        if not (plain == "embed.weight" and embedding is not None)
    }
    if embedding is not None:
        weights["embed.weight"] = embedding.to(device, dtype)
    if head is not None:
        weights["head.weight"] = head.to(device, dtype)
    for plain, tensor in weights.items():
        if not bool(torch.isfinite(tensor).all()):
            raise InputError.single(str(checkpoint.path), "holds NaN or infinity", place=plain, next_step=_STEP)
    vocabulary = target_vocab_size or shapes["embed.weight"][0]
    return build_drafter(spec, weights, _map(checkpoint, spec, vocabulary))


def check_device(device: str) -> None:
    """Raise UsageError for a device that this torch does not know or cannot use."""
    try:
        torch.zeros(1, device=device).cpu()
    # A build without CUDA asserts, a driver that is missing or a name that is none is a RuntimeError.
    except (AssertionError, RuntimeError, NotImplementedError) as error:
        text = " ".join(str(error).split())[:200]
        raise UsageError(f"--device {device!r} cannot be used: {text}") from error


def build_drafter(spec: DrafterSpec, weights: Mapping[str, Tensor], to_target: Tensor | None) -> Drafter:
    """Return the drafter; a map that is the identity is left out."""
    if to_target is not None and torch.equal(to_target, torch.arange(len(to_target))):
        to_target = None
    return Drafter(spec, weights, to_target)


def _absent(checkpoint: Checkpoint, tensor: str, why: str) -> InputError:
    return InputError.single(
        str(checkpoint.path),
        f"has no {tensor}: {why}",
        place=tensor,
        next_step="give the target's weights: --target DIR",
        slug="tensor-missing",
    )


def _map(checkpoint: Checkpoint, spec: DrafterSpec, vocabulary: int) -> Tensor | None:
    """Return the target's token of each draft token; None where they are the same."""
    facts = check_vocab_map(checkpoint, target_vocab_size=vocabulary, draft_vocab_size=spec.draft_vocab_size)
    if facts.kind == "absent" and spec.draft_vocab_size == vocabulary:
        return None
    name = next((item for item in facts.present if item.split(".")[-1] == "d2t"), None)
    if (
        facts.kind not in ("offset", "absolute", "identity")
        or facts.problems
        or (name is None and facts.kind != "identity")
    ):
        why = facts.why or "; ".join(facts.problems)
        raise InputError.single(
            str(checkpoint.path),
            f"the map from {spec.draft_vocab_size} draft tokens to {vocabulary} of the target cannot be used: {why}",
            place="d2t",
            next_step="export d2t again, or name the target that the drafter was trained for",
            slug="vocab-map",
        )
    if name is None:
        return None
    values = torch.tensor(checkpoint.read_values(name), dtype=torch.int64)
    return values + torch.arange(len(values)) if facts.kind == "offset" else values


def _check(checkpoint: Checkpoint, spec: DrafterSpec, shapes: Mapping[str, tuple[int, ...]]) -> None:
    problems = [
        Problem(
            place=name,
            message=f"is {list(shapes[name])}, the drafter needs {list(wanted)}"
            if name in shapes
            else "is missing from the checkpoint",
            next_step=_STEP,
        )
        for name, wanted in _needed(spec, shapes)
        if shapes.get(name) != wanted
    ]
    if problems:
        slug = "width" if all(problem.place in shapes for problem in problems) else "tensor-missing"
        raise InputError(str(checkpoint.path), tuple(problems), slug=slug)


def _needed(spec: DrafterSpec, shapes: Mapping[str, tuple[int, ...]]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield what must be there, and what may be, with its shape."""
    hidden = spec.hidden_size
    yield "embed.weight", (shapes["embed.weight"][0], hidden)
    yield "head.weight", (spec.draft_vocab_size, hidden)
    if spec.kind == "eagle":
        yield "fc.weight", (hidden, 2 * hidden)
    else:
        yield "layers.0.hidden_norm.weight", (hidden,)
        if "fc.weight" in shapes:
            yield "fc.weight", (hidden, spec.feature_width)
        if spec.input_norms:
            yield "layers.0.input_layernorm.weight", (hidden,)
    if spec.pre_norm == "joint":
        yield "input_norm.weight", (spec.feature_width,)
    if spec.pre_norm == "per_feature":
        for slot in range(spec.slots):
            yield f"fc_norm.{slot}.weight", (spec.target_hidden_size,)
    if spec.head_norm or spec.recurrent == "post_norm":
        yield "norm.weight", (hidden,)
    for layer in range(spec.num_layers):
        yield from _layer(spec, layer, shapes)
    if "fc.bias" in shapes:
        yield "fc.bias", (hidden,)


def _layer(
    spec: DrafterSpec, layer: int, shapes: Mapping[str, tuple[int, ...]]
) -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden, name = spec.hidden_size, f"layers.{layer}"
    wide = 2 * hidden if spec.kind == "eagle3" and layer == 0 else hidden
    middle = shapes.get(f"{name}.mlp.up_proj.weight", (0,))[0]
    mlp = zip(MLP_PARTS, ((middle, hidden), (middle, hidden), (hidden, middle)), strict=True)
    for part, size in (*_attention(spec, f"{name}.self_attn", wide, shapes), *((f"{name}.{p}", s) for p, s in mlp)):
        yield part, size
        if f"{part.removesuffix('weight')}bias" in shapes:
            yield f"{part.removesuffix('weight')}bias", size[:1]
    yield f"{name}.post_attention_layernorm.weight", (hidden,)
    if layer or f"{name}.input_layernorm.weight" in shapes:
        yield f"{name}.input_layernorm.weight", (hidden,)
    for norm in ("q_norm", "k_norm") if spec.mla is None else ():
        if f"{name}.self_attn.{norm}.weight" in shapes:
            yield f"{name}.self_attn.{norm}.weight", (spec.head_dim,)


def _attention(
    spec: DrafterSpec, name: str, wide: int, shapes: Mapping[str, tuple[int, ...]]
) -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden = spec.hidden_size
    if spec.mla is not None:
        fused = f"{name}.{FUSED}.weight" in shapes
        parts = latent_parts(spec.mla, heads=spec.num_heads, width=wide, hidden=hidden, fused=fused)
        yield from ((f"{name}.{part}", size) for part, size in parts)
        return
    query, key = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    sizes = ((query, wide), (key, wide), (key, wide), (hidden, query))
    yield from ((f"{name}.{part}", size) for part, size in zip(ATTENTION_PARTS, sizes, strict=True))
