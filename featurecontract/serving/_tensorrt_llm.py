"""TensorRT-LLM's ``speculative_config``: decoding type and draft length."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from featurecontract.errors import UsageError
from featurecontract.serving._acceptance import forced_acceptance
from featurecontract.serving._arguments import shown
from featurecontract.serving._effective import Effective, Setting, shaped
from featurecontract.serving._rules import rules_of

if TYPE_CHECKING:
    from featurecontract.serving._arguments import Arguments

__all__ = ["effective_tensorrt_llm"]

_NAME = "tensorrt-llm"


def effective_tensorrt_llm(version: str, arguments: Arguments, *, method: str, drafter_path: str | None) -> Effective:
    """Return what TensorRT-LLM serves; raises UsageError for a value that it cannot take."""
    config = arguments.speculative or {}
    switches = forced_acceptance(_NAME, version, arguments)
    source = rules_of(_NAME)["decoding_types"]["source"]
    given = config.get("decoding_type")
    if given is not None and not isinstance(given, str):
        raise UsageError(f"{arguments.source}: decoding_type: {shown(given)} is not a text")
    wanted = next(iter(rules_of(_NAME)["methods"].get(method, ())), "Eagle3")
    if given is None:
        reason = "no speculative_config.decoding_type: TensorRT-LLM serves the target alone"
        if arguments.unread:
            reason += f"; {shown(arguments.unread[0])} was not read: --serve-args @FILE reads it"
        requested = "drafting" if config else None
        off = Setting(
            requested=requested, origin="off", reason=reason, source=source, next_step=f"set decoding_type: {wanted}"
        )
        return Effective(algorithm=off, forced_acceptance=switches)
    shape = _shape(arguments, block=given in rules_of(_NAME)["decoding_types"]["block"])
    shape["draft_path"] = _path(config, given, drafter_path)
    algorithm = Setting(requested=given[:40], effective=given[:40], source=source)
    return replace(
        shaped(shape, algorithm=algorithm, method=_method(given, method)),
        forced_acceptance=switches,
    )


def _method(decoding_type: str, method: str) -> Setting:
    rules = rules_of(_NAME)
    allowed = rules["methods"].get(method)
    if allowed is None or decoding_type in allowed:
        return Setting()
    step = f"set decoding_type: {allowed[0]}" if allowed else f"TensorRT-LLM has no decoding type for {method}"
    return Setting(
        requested=method,
        effective=decoding_type[:40],
        origin="forced",
        reason=f"decoding_type {shown(decoding_type)} does not feed a drafter of method {method}",
        source=rules["decoding_types"]["source"],
        next_step=step,
    )


def _shape(arguments: Arguments, *, block: bool) -> dict[str, Setting]:
    rules = rules_of(_NAME)
    config = arguments.speculative or {}
    length = arguments.setting("max_draft_len")
    top_k = arguments.setting("dynamic_tree_max_topK")
    total = arguments.setting("max_total_draft_tokens")
    tree = bool(config.get("eagle_choices")) or (top_k or 1) > 1
    source = rules["linear"]["source"]
    steps = Setting(requested=length, effective=length, source=rules["decoding_types"]["source"])
    if tree:
        reason = "max_total_draft_tokens is not set: TensorRT-LLM chooses it for a tree"
        rows = Setting(requested=total, effective=total, source=source)
        rows = rows if total is not None else Setting(origin="unknown", reason=reason, source=source)
        return {"num_steps": steps, "top_k": Setting(requested=top_k, effective=top_k), "num_draft_tokens": rows}
    if length is None or (total is not None and top_k is None):
        return {} if block else {"num_steps": steps}
    # Contract and SGLang count the sampled token's row, TensorRT-LLM's lengths do not.
    requested = None if total is None else total + 1
    rows = Setting(
        requested=requested,
        effective=length + 1,
        origin="forced" if requested not in {None, length + 1} else "request",
        reason=f"a chain of max_draft_len {length} drafts is {length + 1} verified rows",
        source=source,
        next_step=f"set max_draft_len: {total or length}",
        follows=not block,
    )
    if block:
        return {"num_draft_tokens": rows}
    return {
        "num_steps": steps,
        "top_k": Setting(requested=top_k, effective=1 if top_k else None, follows=True),
        "num_draft_tokens": rows,
    }


def _path(config: Any, decoding_type: str, drafter_path: str | None) -> Setting:
    path = config.get("speculative_model_dir") or config.get("speculative_model")
    if path is not None or decoding_type not in rules_of(_NAME)["decoding_types"]["feeding"]:
        return Setting(requested=path, effective=path)
    return Setting(
        origin="unknown",
        reason="speculative_config names no speculative_model: nothing says where the drafter is",
        source=rules_of(_NAME)["decoding_types"]["source"],
        next_step=f"set speculative_model: {drafter_path or 'DRAFTER'}",
    )
