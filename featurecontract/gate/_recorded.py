"""Writing what was recorded beside a checkpoint: the contract that is there gets the probe, or one is composed."""

from __future__ import annotations

import datetime as dt
import os
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

from featurecontract._version import __version__
from featurecontract.contract import (
    CONTRACT_FILE,
    Contract,
    Drafter,
    Projection,
    Provenance,
    Statement,
    Target,
    Wiring,
)
from featurecontract.errors import InputError, Problem
from featurecontract.gate._compose import compose_contract
from featurecontract.gate._inputs import load_inputs

if TYPE_CHECKING:
    from featurecontract.contract._contract import MapKind
    from featurecontract.probe import Recording

__all__ = ["RecordedTarget", "checkpoint_directory", "require_same_target", "write_recorded"]


@dataclass(frozen=True, slots=True, eq=False)
class RecordedTarget:
    """What one run of a target gave: the probe, what the target is, the features it was recorded for, and from what."""

    recording: Recording
    facts: Target
    wiring: Wiring
    origin: str


def write_recorded(
    recorded: RecordedTarget,
    out: str | os.PathLike[str],
    *,
    held: Contract | None = None,
    stated: Provenance | None = None,
    d2t: MapKind | None = None,
    follow_links: bool = False,
) -> Contract:
    """Write a recorded target's probe into a checkpoint directory, with ``held`` or a contract composed for it.

    ``stated`` overrides the composed provenance wherever it says something: the trainer, its ids, their convention.
    ``d2t`` is the kind of the vocabulary map where the trainer's code says it and the tensor alone does not.
    """
    from featurecontract import probe

    place = checkpoint_directory(out)
    facts, recording = recorded.facts, recorded.recording
    if held is not None and _same_features(recorded.wiring, held.wiring):
        base = held
        require_same_target(base.target, facts, str(place / CONTRACT_FILE))
    else:
        base = _composed(place, recorded.wiring, facts, recording.streams, follow_links=follow_links)
    if stated is not None:
        base = replace(base, provenance=_overridden(base.provenance, stated))
    if d2t is not None and base.vocab.d2t is None and base.vocab.d2t_sha256 is not None:
        base = replace(base, vocab=replace(base.vocab, d2t=d2t))
    reason = "; ".join([recorded.origin, *recording.data.notes])
    return probe.write_probe(recording.data, base, place, dtype=recording.dtype, reason=reason)


def _same_features(first: Wiring, second: Wiring) -> bool:
    """Whether two wirings record the same tensors; a width that nobody stated is no difference."""
    return first.with_dim(None).features == second.with_dim(None).features


def _overridden(composed: Provenance, stated: Provenance) -> Provenance:
    said = {
        item.name: getattr(stated, item.name)
        for item in fields(stated)
        if item.name not in ("statements", "extra") and getattr(stated, item.name) is not None
    }
    paths = {item.path for item in stated.statements}
    kept = tuple(item for item in composed.statements if item.path not in paths)
    return replace(composed, **said, statements=(*stated.statements, *kept))


def checkpoint_directory(out: str | os.PathLike[str]) -> Path:
    place = Path(out)
    if not place.is_dir():
        raise InputError.single(str(place), "is no directory", next_step="name the drafter's checkpoint directory")
    return place


def require_same_target(declared: Target, facts: Target, source: str) -> None:
    """Raise `target-mismatch` where the recorded target has another depth or width than the declared one."""
    pairs = (
        ("num_hidden_layers", declared.num_hidden_layers, facts.num_hidden_layers),
        ("hidden_size", declared.hidden_size, facts.hidden_size),
    )
    problems = tuple(
        Problem(
            place=f"target.{key}",
            message=f"the contract says {wanted}, the target that was recorded has {given}",
            next_step="record from the target that the drafter was trained for",
        )
        for key, wanted, given in pairs
        if wanted != given
    )
    if problems:
        raise InputError(source, problems, slug="target-mismatch")


def _composed(place: Path, wiring: Wiring, facts: Target, streams: int, *, follow_links: bool) -> Contract:
    if os.path.lexists(place / "config.json"):
        text = f"{_plain(facts.name)}:{facts.num_hidden_layers},{facts.hidden_size},{_word(facts.architecture)}"
        inputs = load_inputs(str(place), target=text, ignore_contract=True, follow_links=follow_links)
        known = replace(inputs.target, hc_mult=streams if streams > 1 else None, vocab_size=facts.vocab_size)
        contract = compose_contract(replace(inputs, target=known), wiring, declared=True)
    else:
        contract = _alone(place, wiring.with_dim(facts.hidden_size * streams), facts)
    statements = [
        Statement(path="features", source="recorded", confidence=1.0, reason="stated for the recording, and recorded"),
        *(item for item in contract.provenance.statements if item.path != "features"),
    ]
    provenance = replace(contract.provenance, tool="featurecontract record", statements=tuple(statements))
    return replace(contract, target=facts, provenance=provenance)


def _plain(name: str | None) -> str:
    return name if name and name.isprintable() and "/" not in name else "target"


def _word(architecture: str | None) -> str:
    return architecture if architecture and architecture.isidentifier() else "Unknown"


def _alone(place: Path, wiring: Wiring, facts: Target) -> Contract:
    """Return a contract for a drafter that has no files yet: its training is about to start."""
    width = wiring.width
    assert width is not None  # noqa: S101 - every slice was given its width
    return Contract(
        name=place.resolve().name or "drafter",
        method="eagle3",
        target=facts,
        drafter=Drafter(hidden_size=facts.hidden_size),
        features=wiring.features,
        projections=(
            Projection(
                tensor="fc.weight",
                role="fc",
                slots=tuple(feature.slot for feature in wiring.features),
                in_features=width,
                out_features=facts.hidden_size,
            ),
        ),
        provenance=Provenance(
            tool="featurecontract record",
            tool_version=__version__,
            date=dt.datetime.now(tz=dt.timezone.utc).date().isoformat(),
            statements=tuple(
                Statement(
                    path=path, source="inferred", confidence=0.3, reason="no drafter was there when it was recorded"
                )
                for path in ("method", "drafter", "projections")
            ),
        ),
    )
