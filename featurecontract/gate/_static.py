"""Contract against checkpoint: what the files themselves say, no runtime involved."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from featurecontract.checkpoint import check_vocab_map
from featurecontract.dialects import lookup
from featurecontract.findings import Finding, finding

if TYPE_CHECKING:
    from collections.abc import Iterator

    from featurecontract.contract import Contract
    from featurecontract.gate._inputs import Inputs

__all__ = ["static_findings", "width_findings"]

# Tensors through which the interface can change without any config key changing.
_INTERFACE_SUFFIXES = ("fc.weight", "fc.bias", "input_norm.weight", "mask_hidden")
_NORM_PREFIXES = ("fc_norm.", "aux_norm_", "model.fc_norm.", "input_norm.")


def static_findings(inputs: Inputs, *, digests: bool = False) -> tuple[tuple[Finding, ...], int]:
    """Return what is wrong between the contract and the checkpoint, and how many statements were compared."""
    contract = inputs.contract
    found = [*inputs.findings]
    found += [item for item in inputs.recognition.findings if item.slug != "features-missing" or contract is None]
    if contract is None:
        found += width_findings(inputs)
        return tuple(found), 0
    compared = 1
    tensors = inputs.checkpoint.tensors
    if tensors is None:
        if contract.projections or contract.drafter.tensors:
            found.append(
                finding(
                    "checkpoint-unreadable",
                    f"{inputs.checkpoint.directory}: {inputs.checkpoint.tensors_reason or 'there is no tensor file'}",
                    next_step="check the directory that will be served: a config alone does not show what fc takes",
                )
            )
    else:
        found += _projections(inputs, contract)
        found += _tensors(inputs, contract, digests=digests)
        found += _vocab(inputs, contract)
        compared += len(contract.projections) + len(contract.drafter.tensors)
    found += _rope(inputs, contract)
    return tuple(found), compared


def width_findings(inputs: Inputs) -> Iterator[Finding]:
    """Compare the projection's width with the number of ids: the one count that is always derivable."""
    projection = inputs.projection
    candidates = inputs.recognition.candidates
    if projection is None or len(projection.shape) != 2 or not candidates:  # noqa: PLR2004
        return
    width, hidden = projection.shape[1], inputs.target.hidden_size
    wanted = candidates[0].wiring.width
    if inputs.method in ("eagle3", "p_eagle", "dflash", "dspark") and wanted is not None and wanted != width:
        streams = inputs.target.hc_mult or 1
        if streams > 1 and wanted * streams == width:
            return
        yield finding(
            "width",
            f"{projection.name} takes {width} columns = {width / hidden:g} planes of {hidden}; the config names "
            f"{len(candidates[0].wiring.features)} planes = {wanted} columns",
            expected={"columns": wanted, "planes": len(candidates[0].wiring.features)},
            actual={"columns": width, "planes": width / hidden},
            next_step="correct the list of ids, or give the target that the drafter was trained for",
        )


def _projections(inputs: Inputs, contract: Contract) -> Iterator[Finding]:
    tensors = inputs.checkpoint.tensors or {}
    for projection in contract.projections:
        facts = tensors.get(projection.tensor)
        slots = projection.slots
        if facts is None:
            yield finding(
                "tensor-missing",
                f"{projection.tensor} is in the contract and not in the checkpoint",
                slots=slots,
                details={"tensor": projection.tensor},
                next_step="check the directory that was trained with this contract, or write the contract again",
            )
            continue
        wanted = (projection.out_features, projection.in_features)
        if facts.shape != wanted:
            hidden = inputs.target.hidden_size
            yield finding(
                "width",
                f"{projection.tensor} is {list(facts.shape)}, the contract says {list(wanted)}: "
                f"{_planes(facts.shape, hidden)} planes of {hidden} in the file, {wanted[1] / hidden:g} declared",
                slots=slots,
                expected=list(wanted),
                actual=list(facts.shape),
                details={"tensor": projection.tensor},
                next_step="check the directory that was trained with this contract, or write the contract again",
            )


def _planes(shape: tuple[int, ...], hidden: int) -> str:
    return f"{shape[-1] / hidden:g}" if shape else "no"


def _tensors(inputs: Inputs, contract: Contract, *, digests: bool) -> Iterator[Finding]:
    tensors = inputs.checkpoint.tensors or {}
    projected = {item.tensor for item in contract.projections}
    for record in contract.drafter.tensors:
        facts = tensors.get(record.name)
        if facts is None:
            if record.name not in projected:
                yield finding(
                    "tensor-missing",
                    f"{record.name} is in the contract and not in the checkpoint",
                    details={"tensor": record.name},
                    next_step="check the directory that was trained with this contract, or write the contract again",
                )
            continue
        if facts.shape != record.shape and record.name not in projected:
            yield _changed(record.name, "shape", list(record.shape), list(facts.shape), severity="error")
        elif facts.dtype != record.dtype:
            yield _changed(record.name, "dtype", record.dtype, facts.dtype, severity="warning")
        elif digests and record.sha256 is not None:
            actual = inputs.checkpoint.sha256(record.name)
            if actual != record.sha256:
                yield _changed(record.name, "sha256", record.sha256, actual, severity="error")
    if digests and not any(item.sha256 for item in contract.drafter.tensors):
        yield finding(
            "tensor-digest",
            "the contract records no sha256 of a tensor, so no digest was compared",
            severity="warning",
            next_step="write the contract with `init --digests`, or leave --digests out",
        )
    yield from _unclaimed(inputs, contract)


def _changed(name: str, what: str, wanted: Any, actual: Any, *, severity: Any) -> Finding:
    return finding(
        "tensor-digest",
        f"{name}: {what} is {actual}, the contract was written for {wanted}",
        severity=severity,
        expected=wanted,
        actual=actual,
        details={"tensor": name, "key": what},
        next_step="deploy the checkpoint that the contract belongs to, or write the contract again with `init --force`",
    )


def _unclaimed(inputs: Inputs, contract: Contract) -> Iterator[Finding]:
    if not contract.drafter.tensors:
        return
    claimed = {item.name for item in contract.drafter.tensors} | {item.tensor for item in contract.projections}
    for name in sorted(inputs.checkpoint.tensors or {}):
        if name in claimed or not (name.endswith(_INTERFACE_SUFFIXES) or name.startswith(_NORM_PREFIXES)):
            continue
        norm = name.startswith(_NORM_PREFIXES)
        unstated = norm and contract.wiring.pre_norm == "none"
        yield finding(
            "tensor-unclaimed",
            f"{name} is in the checkpoint; the contract does not mention it"
            + (" and says that there is no norm before the projection" if unstated else ""),
            severity="warning" if unstated else "note",
            details={"tensor": name},
            next_step="write the contract again if the drafter was trained with it",
        )


def _vocab(inputs: Inputs, contract: Contract) -> Iterator[Finding]:
    facts = check_vocab_map(
        inputs.checkpoint,
        target_vocab_size=contract.target.vocab_size or inputs.target.vocab_size,
        draft_vocab_size=contract.vocab.draft_vocab_size,
    )
    declared = contract.vocab
    if declared.d2t is not None and facts.kind == "absent":
        yield _vocab_finding("the contract names a d2t, and the checkpoint has none", expected=declared.d2t)
    elif declared.d2t is not None and facts.kind not in ("unknown", declared.d2t, "zeros"):
        yield _vocab_finding(
            f"d2t holds {facts.kind} ids, the contract says {declared.d2t}", expected=declared.d2t, actual=facts.kind
        )
    for problem in facts.problems[:5]:
        yield _vocab_finding(problem, actual=facts.kind, details={"first_bad_index": facts.first_bad_index})
    for name, wanted, actual in (
        ("d2t", declared.d2t_sha256, facts.d2t_sha256),
        ("t2d", declared.t2d_sha256, facts.t2d_sha256),
    ):
        if wanted and actual and wanted != actual:
            yield _vocab_finding(
                f"{name} is not the one that the contract was written for", expected=wanted, actual=actual
            )


def _vocab_finding(message: str, **fields: Any) -> Finding:
    return finding(
        "vocab-map",
        message,
        next_step="take d2t and t2d from the run that trained this drafter: every draft token depends on them",
        **fields,
    )


def _rope(inputs: Inputs, contract: Contract) -> Iterator[Finding]:
    rope = contract.rope
    if rope is None:
        return
    config = inputs.recognition.config
    actual = rope_of(inputs)
    for key, wanted, given in (
        ("theta", rope.theta, actual.get("theta")),
        ("type", rope.type, actual.get("type")),
        ("scaling", dict(rope.scaling) if rope.scaling else None, actual.get("scaling")),
        ("max_position_embeddings", rope.max_position_embeddings, config.body("max_position_embeddings")),
    ):
        if wanted is None or given is None or wanted == given:
            continue
        shorter = key == "max_position_embeddings" and given < wanted
        yield finding(
            "rope",
            f"{key} is {given} in the config, the drafter was trained with {wanted}",
            severity="note" if shorter else "error",
            expected={key: wanted},
            actual={key: given},
            details={"key": key},
            next_step=f"write {key} {wanted} in config.json, or correct the contract",
        )


def rope_of(inputs: Inputs) -> dict[str, Any]:
    """Return theta, scaling and type as the config states them, in any of the three spellings."""
    config = inputs.recognition.config
    scaling = config.body("rope_scaling")
    parameters = config.body("rope_parameters")
    place = parameters if isinstance(parameters, dict) else scaling if isinstance(scaling, dict) else {}
    theta = config.body("rope_theta") or lookup(place, "rope_theta")[1]
    kind = lookup(place, "rope_type")[1] or lookup(place, "type")[1]
    out: dict[str, Any] = {}
    if isinstance(theta, (int, float)) and not isinstance(theta, bool):
        out["theta"] = float(theta)
    if isinstance(kind, str):
        out["type"] = kind
    if isinstance(scaling, dict):
        out["scaling"] = scaling
    return out
