"""Whether the contract is about the drafter that lies here: its method, its sizes, its norms, its projection."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from featurecontract.contract import Block
from featurecontract.dialects.specforge import USE_AUX
from featurecontract.findings import Finding, finding

if TYPE_CHECKING:
    from collections.abc import Iterator

    from featurecontract.contract import Contract
    from featurecontract.dialects import DraftConfig
    from featurecontract.gate._inputs import Inputs

__all__ = ["PROJECTED", "block_of", "drafter_findings", "has_projection", "norm_before_projection", "stated_norms"]

# Methods whose several planes go through one projection, and which draft from a reduced vocabulary by d2t.
PROJECTED = ("eagle3", "p_eagle", "dflash", "dspark")
# The projection under any exporter's name, quantised or not.
_PROJECTION = re.compile(r"(?:^|\.)(?:fc|eh_proj|main_proj)\.")
_JOINT_FLAGS = ("norm_before_fc", "eagle_config.norm_before_fc")
_EACH_FLAGS = ("fc_norm", "use_aux_norm", "eagle_config.fc_norm")
# Dialects that are recognised by what is absent from a config, or by a key that others might share.
_WEAK = ("eagle1", "mtp-native", "eagle3-reference")
# Methods of one format: which of the two it is, the config does not say or says by one key.
_ONE_FORMAT = (frozenset(("eagle", "hass")),)
_NEAR = (frozenset(("dflash", "dspark")),)
_STEP = "copy the contract that belongs to these files, or write it again with `init --force`"


def block_of(config: DraftConfig) -> Block | None:
    """Return the block that the config states; None without a usable size."""
    size = config.get("dflash_config.block_size") or config.get("block_size") or config.get("dspark_block_size")
    mask = next(
        (
            value
            for key in ("dflash_config.mask_token_id", "mask_token_id", "dspark_noise_token_id")
            if isinstance(value := config.get(key), int) and not isinstance(value, bool) and value >= 0
        ),
        None,
    )
    if not isinstance(size, int) or isinstance(size, bool) or not 1 <= size <= 100_000:  # noqa: PLR2004
        return None
    return Block(size=size, mask_token_id=mask)


def has_projection(inputs: Inputs) -> bool:
    """Whether the file has a tensor that can be the projection; True where it could not be read."""
    tensors = inputs.checkpoint.tensors
    return tensors is None or any(_PROJECTION.search(name) for name in tensors)


def stated_norms(inputs: Inputs) -> tuple[bool, bool]:
    """Return whether the config asks for the joint norm before the projection, and for one of each feature."""
    config = inputs.recognition.config
    return bool(config.any_flag(*_JOINT_FLAGS)), bool(config.any_flag(*_EACH_FLAGS))


def norm_before_projection(inputs: Inputs) -> str:
    """Return the norm before the projection: the flag, or the tensors that only that norm has; ``both`` if open."""
    joint, each = stated_norms(inputs)
    joint_there, each_there = _norm_tensors(inputs)
    if joint and each and joint_there == each_there:
        return "both"
    if (each and not joint) or (each_there and not (joint and joint_there)):
        return "per_feature"
    return "joint" if joint or joint_there else "none"


def _norm_tensors(inputs: Inputs) -> tuple[bool, bool]:
    tensors = inputs.checkpoint.tensors or {}
    # A norm as wide as the projection's input can be no other, whatever an exporter calls it.
    width = inputs.projection.shape[-1:] if inputs.projection is not None else ()
    joint = any(
        name.endswith("input_norm.weight") or ("norm" in name and facts.shape == width != (inputs.target.hidden_size,))
        for name, facts in tensors.items()
    )
    return joint, any("fc_norm." in name or "aux_norm" in name for name in tensors)


def drafter_findings(inputs: Inputs, contract: Contract) -> Iterator[Finding]:
    """Yield every statement of the contract about the drafter that the files contradict."""
    yield from _method(inputs, contract)
    yield from _sizes(inputs, contract)
    yield from _norms(inputs)
    tensors = inputs.checkpoint.tensors
    if tensors is None:
        return
    if contract.method == "p_eagle" and not any(name.endswith("mask_hidden") for name in tensors):
        yield _absent("mask_hidden", "P-EAGLE feeds it at the positions that are drafted in parallel")
    if (
        contract.method in PROJECTED
        and not contract.projections
        and len(contract.features) > 1
        and not has_projection(inputs)
        and inputs.recognition.config.any_flag(*USE_AUX) is not False
    ):
        yield _absent("fc.weight", f"nothing projects the {len(contract.features)} features of the contract")


def _absent(tensor: str, why: str) -> Finding:
    return finding(
        "tensor-missing",
        f"{tensor} is not in the checkpoint: {why}",
        details={"tensor": tensor},
        next_step="export the checkpoint again from the run that trained it",
    )


def _method(inputs: Inputs, contract: Contract) -> Iterator[Finding]:
    found = inputs.recognition
    declared, read = contract.method, found.method
    pair = frozenset((declared, read))
    if found.family is None or len(pair) == 1 or "other" in pair or pair in _ONE_FORMAT:
        return
    if declared in ("eagle", "hass") and found.config.any_flag(*USE_AUX) is False:
        # One last state and no planes: an EAGLE-3 export of what EAGLE-1 reads.
        return
    unsure = found.dialect in _WEAK or pair in _NEAR
    yield finding(
        "drafter-mismatch",
        f"the contract is of a drafter by {declared}, its config is of {read} ({found.dialect})",
        severity="warning" if unsure else "error",
        expected={"method": declared},
        actual={"method": read},
        details={"key": "method"},
        next_step=_STEP,
    )


def _sizes(inputs: Inputs, contract: Contract) -> Iterator[Finding]:
    config, drafter = inputs.recognition.config, contract.drafter
    yield from _differs("hidden_size", drafter.hidden_size, config.integer("hidden_size") or config.integer("emb_dim"))
    known = [name for name in config.architectures if name]
    if drafter.architecture and known and drafter.architecture not in known:
        yield from _differs("architecture", drafter.architecture, known[0], severity="warning")
    block = block_of(config)
    if drafter.block is not None and block is not None:
        yield from _differs("block.size", drafter.block.size, block.size)
        yield from _differs("block.mask_token_id", drafter.block.mask_token_id, block.mask_token_id)
    draft = config.integer("draft_vocab_size")
    if None not in (contract.vocab.draft_vocab_size, draft) and contract.vocab.draft_vocab_size != draft:
        yield finding(
            "vocab-map",
            f"draft_vocab_size is {draft} in the config, the contract says {contract.vocab.draft_vocab_size}",
            expected={"draft_vocab_size": contract.vocab.draft_vocab_size},
            actual={"draft_vocab_size": draft},
            details={"key": "draft_vocab_size"},
            next_step=_STEP,
        )
    width, streams = config.body("target_hidden_size"), inputs.target.hc_mult or 1
    if type(width) is int and width not in (contract.target.hidden_size, contract.target.hidden_size * streams):
        yield finding(
            "target-mismatch",
            f"the config's target_hidden_size is {width}, the contract was written for {contract.target.hidden_size}",
            expected={"hidden_size": contract.target.hidden_size},
            actual={"hidden_size": width},
            details={"key": "target_hidden_size"},
            next_step=_STEP,
        )


def _differs(key: str, wanted: Any, given: Any, *, severity: Any = "error") -> Iterator[Finding]:
    if wanted is not None and given is not None and wanted != given:
        yield finding(
            "drafter-mismatch",
            f"the contract was written for a drafter of {key} {wanted}, the config says {given}",
            severity=severity,
            expected={key: wanted},
            actual={key: given},
            details={"key": key},
            next_step=_STEP,
        )


def _norms(inputs: Inputs) -> Iterator[Finding]:
    joint, each = stated_norms(inputs)
    if joint and each:
        yield finding(
            "norm-before-fc",
            "the config asks for a norm of all features together and for one of each; the contract can state one",
            severity="warning",
            details={"key": "norm_before_fc"},
            next_step="keep the flag that the drafter was trained with",
        )
    if inputs.checkpoint.tensors is None:
        return
    joint_there, each_there = _norm_tensors(inputs)
    for flag, stated, there, tensor in (
        ("norm_before_fc", joint, joint_there, "input_norm.weight"),
        ("fc_norm", each, each_there, "fc_norm.0.weight"),
    ):
        if stated and not there:
            yield _absent(tensor, f"the config sets {flag}, and its weight would be left at its initial value")
