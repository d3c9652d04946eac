"""What a run is about: the checkpoint, its contract, the target, the runtimes."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from featurecontract.checkpoint import Checkpoint, TargetFacts, TensorFacts, open_checkpoint, read_target
from featurecontract.checkpoint._paths import entry_path
from featurecontract.contract import CONTRACT_FILE, Contract, contract_path, digest, load
from featurecontract.dialects import Recognition, Target, recognise
from featurecontract.errors import FeatureContractError, InputError, UsageError
from featurecontract.findings import Finding, Report, finding
from featurecontract.runtimes import Query

__all__ = [
    "PROJECTION_TENSORS",
    "Inputs",
    "load_inputs",
    "mismatches",
    "own_contract",
    "query_of",
    "refused",
    "target_text",
]

# Where the projection's weight is found, by exporter; the first that a file has is the one.
PROJECTION_TENSORS = ("fc.weight", "model.fc.weight", "draft_model.fc.weight", "eh_proj.weight", "main_proj.weight")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Inputs:
    """Everything that was read; ``contract`` is None when there is none and none was asked for."""

    path: str
    checkpoint: Checkpoint
    target: TargetFacts
    recognition: Recognition
    contract: Contract | None = None
    contract_file: str | None = None
    contract_sha256: str | None = None
    findings: tuple[Finding, ...] = ()
    serving_ids: tuple[int, ...] | None = None
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def projection(self) -> TensorFacts | None:
        """The header facts of the projection's weight, None when the file has none or could not be read."""
        tensors = self.checkpoint.tensors or {}
        return next((tensors[name] for name in PROJECTION_TENSORS if name in tensors), None)

    @property
    def method(self) -> str:
        """The drafting method: the contract's word, else the dialect's."""
        return self.contract.method if self.contract else self.recognition.method


def load_inputs(
    path: str | os.PathLike[str],
    *,
    target: str | None = None,
    dialect: str | None = None,
    contract: str | os.PathLike[str] | None = None,
    need_contract: bool = False,
    ignore_contract: bool = False,
    follow_links: bool = False,
) -> Inputs:
    """Read a checkpoint, its contract where there is one, and the target.

    The option wins over the contract, the contract over the config; a contract file as ``path`` stands for its
    directory. Raises InputError or UsageError.
    """
    given = Path(path)
    if given.name == CONTRACT_FILE and not os.path.isdir(given):  # noqa: PTH112 - does not raise
        given = given.parent
    checkpoint = open_checkpoint(given, follow_links=follow_links)
    file = contract_path(contract) if contract is not None else checkpoint.directory / CONTRACT_FILE
    declared: Contract | None = None
    if contract is not None:
        declared = load(file)
    elif not ignore_contract and (need_contract or os.path.exists(file)):  # noqa: PTH110 - does not raise
        declared = load(own_contract(checkpoint.directory, follow_links=follow_links))
    facts = _target(target, declared, checkpoint, follow_links=follow_links)
    recognition = recognise(
        checkpoint.config,
        Target(num_hidden_layers=facts.num_hidden_layers, hidden_size=facts.hidden_size, streams=facts.hc_mult or 1),
        source=str(checkpoint.directory / "config.json"),
        dialect=dialect,
    )
    return Inputs(
        path=str(path),
        checkpoint=checkpoint,
        target=facts,
        recognition=recognition,
        contract=declared,
        contract_file=str(file) if declared else None,
        contract_sha256=digest(declared) if declared else None,
        findings=tuple(mismatches(declared, facts)) if declared and target else (),
    )


def own_contract(directory: Path, *, follow_links: bool) -> Path:
    """Return where a checkpoint's contract is read: a link that leaves the checkpoint needs the user's word."""
    file = directory / CONTRACT_FILE
    if os.path.islink(file) and os.path.exists(file):  # noqa: PTH110, PTH114 - do not raise
        return entry_path(directory, CONTRACT_FILE, follow_links=follow_links)
    return file


def target_text(contract: Contract) -> str:
    """Return a contract's target as ``name:L,H[,ARCHITECTURE]``."""
    target = contract.target
    tail = f",{target.architecture}" if target.architecture else ""
    return f"{target.name or 'target'}:{target.num_hidden_layers},{target.hidden_size}{tail}"


def _target(text: str | None, contract: Contract | None, checkpoint: Checkpoint, *, follow_links: bool) -> TargetFacts:
    if text is not None:
        return read_target(text, follow_links=follow_links)
    if contract is not None:
        return TargetFacts(
            source="the contract",
            num_hidden_layers=contract.target.num_hidden_layers,
            hidden_size=contract.target.hidden_size,
            name=contract.target.name,
            vocab_size=contract.target.vocab_size,
            architecture=contract.target.architecture,
            architectures=(contract.target.architecture,) if contract.target.architecture else (),
            dtype=contract.target.dtype,
        )
    raise UsageError(
        f"{checkpoint.directory}: the target's depth and width are not known; give --target DIR, config.json, "
        "or name:L,H[,ARCHITECTURE]"
    )


def mismatches(contract: Contract, facts: TargetFacts) -> list[Finding]:
    """Return what a target has other than the contract says: depth, width, vocabulary, architecture."""
    declared = contract.target
    pairs: list[tuple[str, Any, Any]] = [
        ("num_hidden_layers", declared.num_hidden_layers, facts.num_hidden_layers),
        ("hidden_size", declared.hidden_size, facts.hidden_size),
        ("vocab_size", declared.vocab_size, facts.vocab_size),
    ]
    known = facts.architectures
    if declared.architecture and known and declared.architecture not in known:
        pairs.append(("architecture", declared.architecture, facts.architecture))
    return [
        finding(
            "target-mismatch",
            f"the contract was written for {key} {wanted}, {facts.source} has {given}",
            expected={key: wanted},
            actual={key: given},
            details={"key": key},
            next_step="give the target the drafter was trained for, or write a new contract with `init --force`",
        )
        for key, wanted, given in pairs
        if wanted is not None and given is not None and wanted != given
    ]


def query_of(inputs: Inputs) -> Query:
    """Return what is asked of a runtime's rules."""
    projection = inputs.projection
    shape = projection.shape if projection is not None and len(projection.shape) == 2 else None  # noqa: PLR2004
    tensors = inputs.checkpoint.tensors
    return Query(
        method=inputs.method,
        config=inputs.checkpoint.config,
        num_hidden_layers=inputs.target.num_hidden_layers,
        hidden_size=inputs.target.hidden_size,
        architectures=inputs.target.architectures,
        target_config=inputs.target.config,
        serving_ids=inputs.serving_ids,
        fc_in=shape[1] if shape else None,
        fc_out=shape[0] if shape else None,
        tensors=frozenset(tensors) if tensors is not None else None,
        own_embedding=tensors is None or any(name.endswith("embed_tokens.weight") for name in tensors),
        own_head=tensors is None or any(name.endswith("lm_head.weight") for name in tensors),
    )


def refused(path: str, error: FeatureContractError) -> Report:
    """Return the report of a run whose input, or whose arguments, cannot be used."""
    slug, step = "nothing-compared", "correct the argument, and run again"
    if isinstance(error, InputError):
        slug, step = error.slug, error.problems[0].next_step
    return Report(checkpoint=path, findings=(finding(slug, str(error)[:2000], next_step=step),))
