"""Contract against checkpoint: what the files themselves say, no runtime involved."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from featurecontract.checkpoint import VocabFacts, check_vocab_map
from featurecontract.findings import Finding, finding
from featurecontract.gate._drafter import PROJECTED, drafter_findings
from featurecontract.gate._rope import rope_findings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from featurecontract.contract import Contract
    from featurecontract.gate._inputs import Inputs
    from featurecontract.runtimes import RuntimeChoice

__all__ = ["absolute_map", "static_findings", "width_findings"]

# Tensors through which the interface can change without any config key changing.
_INTERFACE_SUFFIXES = ("fc.weight", "fc.bias", "input_norm.weight", "mask_hidden")
# Runtimes that compute target id = draft id + d2t[draft id]; llama.cpp's converter stores the sum.
# A fork's rules replace one of these under its name; another name says nothing of the map.
_ADDS_D2T = ("sglang", "vllm", "tensorrt-llm", "lmdeploy", "tokenspeed", "atom", "tpu-inference", "sglang-jax", "eagle")
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
    found += drafter_findings(inputs, contract)
    found += rope_findings(inputs, contract)
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
    facts = vocab_facts(inputs, contract)
    declared = contract.vocab
    if declared.d2t is not None and facts.kind == "absent":
        yield _vocab_finding("the contract names a d2t, and the checkpoint has none", expected=declared.d2t)
    elif facts.kind == "absent" and (sizes := _needs_map(inputs, contract)):
        yield _vocab_finding(
            f"the drafter has {sizes[0]} of the target's {sizes[1]} tokens and the checkpoint has no d2t: runtimes "
            "then take draft token i for target token i",
            expected={"draft_vocab_size": sizes[0], "vocab_size": sizes[1]},
        )
    elif declared.d2t is not None and facts.kind not in ("unknown", declared.d2t, "zeros"):
        yield _vocab_finding(
            f"d2t holds {facts.kind} ids, the contract says {declared.d2t}", expected=declared.d2t, actual=facts.kind
        )
    open_ = facts.kind == "unknown" and facts.first_bad_index is None and facts.d2t_size is not None
    for problem in facts.problems[:5]:
        # A map that reads well in two ways is not wrong: nothing says which of the two it is.
        grave: Any = "warning" if open_ and problem == facts.why else "error"
        yield _vocab_finding(
            problem, severity=grave, actual=facts.kind, details={"first_bad_index": facts.first_bad_index}
        )
    for name, wanted, actual in (
        ("d2t", declared.d2t_sha256, facts.d2t_sha256),
        ("t2d", declared.t2d_sha256, facts.t2d_sha256),
    ):
        if wanted and actual and wanted != actual:
            yield _vocab_finding(
                f"{name} is not the one that the contract was written for", expected=wanted, actual=actual
            )


def vocab_facts(inputs: Inputs, contract: Contract) -> VocabFacts:
    """Return what the vocabulary map holds; read once."""
    known = inputs.extra.get("vocab")
    if not isinstance(known, VocabFacts):
        known = check_vocab_map(
            inputs.checkpoint,
            target_vocab_size=contract.target.vocab_size or inputs.target.vocab_size,
            draft_vocab_size=contract.vocab.draft_vocab_size,
        )
        inputs.extra["vocab"] = known
    return known


def absolute_map(inputs: Inputs, contract: Contract, choice: RuntimeChoice) -> Iterator[Finding]:
    """Say that a runtime adds d2t to the draft id, where d2t holds the target id itself."""
    if contract.method not in PROJECTED or choice.rules.runtime not in _ADDS_D2T:
        return
    kind = vocab_facts(inputs, contract).kind
    if (contract.vocab.d2t if kind in ("unknown", "absent") else kind) != "absolute":
        return
    yield _vocab_finding(
        f"d2t holds target ids, and {choice.rules.title} {choice.version} adds it to the draft id as an offset",
        runtime=choice.key,
        expected="offset",
        actual="absolute",
        details={"kind": "absolute"},
        step="store d2t[i] - i in the checkpoint, and write the contract again",
    )


def _needs_map(inputs: Inputs, contract: Contract) -> tuple[int, int] | None:
    """Return both vocabularies' sizes where the drafter's is a part of the target's, and a map must say which."""
    if contract.method not in PROJECTED:
        return None
    config = inputs.recognition.config
    draft = config.integer("draft_vocab_size") or contract.vocab.draft_vocab_size
    full = contract.target.vocab_size or inputs.target.vocab_size or config.integer("vocab_size")
    return (draft, full) if draft is not None and full is not None and draft < full else None


def _vocab_finding(message: str, *, step: str = "", **fields: Any) -> Finding:
    usual = "take d2t and t2d from the run that trained this drafter: every draft token depends on them"
    return finding("vocab-map", message, next_step=step or usual, **fields)
