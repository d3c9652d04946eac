"""Which planes a dataset holds: by the contract's probe, by a target, or by what the producer wrote beside it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from featurecontract.contract import Wiring
from featurecontract.errors import InputError
from featurecontract.findings import Finding, Observed, diff, finding
from featurecontract.gate._record import MAX_ROWS, MIN_ROWS, record_target
from featurecontract.gate._recorded import require_same_target

if TYPE_CHECKING:
    from collections.abc import Callable

    from featurecontract.contract import Contract
    from featurecontract.probe import ProbeData
    from featurecontract.states import Sample, StateSet

__all__ = ["Identification", "by_probe", "by_target", "producer_findings"]


@dataclass(frozen=True, slots=True, eq=False)
class Identification:
    """Observations, each with the wiring it is held against; ``findings`` say what kept others from being made."""

    observed: tuple[tuple[Wiring, Observed], ...] = ()
    findings: tuple[Finding, ...] = ()
    has_last: bool = False


def by_probe(
    states: StateSet,
    chosen: list[int],
    contract: Contract,
    directory: Path,
    *,
    confidence: float,
    links: bool,
) -> Identification:
    """Identify the sequences that were seen to begin with the probe's tokens."""
    from featurecontract.probe import read_probe

    has_last = bool(states.format.last)
    if contract.probe is None:
        return Identification(findings=(_unidentified(states, "the contract has no probe"),), has_last=has_last)
    probe = read_probe(contract, directory, follow_links=links)
    out: list[tuple[Wiring, Observed]] = []
    for index in chosen:
        sample = _again(states, index)
        if sample is not None:
            out += _observed(states, sample, contract, probe, confidence)
    found: tuple[Finding, ...] = ()
    if not out:
        found = (_unidentified(states, "no sequence begins with the probe's tokens"),)
    return Identification(observed=tuple(out), findings=found, has_last=has_last)


def by_target(
    states: StateSet,
    chosen: list[int],
    contract: Contract,
    target: Any,
    *,
    confidence: float,
    say: Callable[[str], None] | None,
    options: dict[str, Any],
) -> Identification:
    """Run a target on the dataset's own tokens and identify what is stored for them."""
    from featurecontract import probe as probes
    from featurecontract.states._stored import stored_wiring

    tell = say or (lambda _line: None)
    where = {name: options[name] for name in ("layers", "norm", "embedding", "head")}
    name = None
    if isinstance(target, str | Path):
        tell(f"loading {Path(target).name}")
        loaded = probes.load_target(
            str(target), device=options["device"], trust_remote_code=options["trust_remote_code"]
        )
        target, name = loaded.model, loaded.name
    out: list[tuple[Wiring, Observed]] = []
    reasons: list[str] = []
    for index in chosen:
        sample = _again(states, index)
        if sample is None:
            continue
        ids = [int(item) for item in sample.token_ids[:MAX_ROWS]]
        if len(ids) < MIN_ROWS:
            reasons.append(f"{sample.source} has {len(ids)} tokens, {MIN_ROWS} are needed")
            continue
        tell(f"running the target on {sample.source}")
        wiring = stored_wiring(contract, last=sample.last_state if sample.last is not None else None)
        try:
            recorded = record_target(target, wiring=wiring, token_ids=ids, rows=len(ids), name=name, **where)
        except InputError as error:
            if error.slug != "probe-degenerate":
                raise
            reasons.append(f"{sample.source}: {error.problems[0].message}")
            continue
        require_same_target(contract.target, recorded.facts, "the contract")
        out += _observed(states, sample, contract, recorded.recording.data, confidence)
    found: tuple[Finding, ...] = ()
    if not out:
        reasons = reasons or ["no file could be read"]
        found = (_unidentified(states, "no sequence could be identified: " + "; ".join(reasons[:3])),)
    return Identification(observed=tuple(out), findings=found, has_last=bool(states.format.last))


def producer_findings(states: StateSet, contract: Contract) -> list[Finding]:
    """Compare what the producer says that it captured; it answers where no plane could be identified."""
    from featurecontract.states._stored import stored_wiring

    if states.producer_ids is None:
        return []
    declared = stored_wiring(contract, last="residual")
    # speculators 0.3 captures behind layer k: id k is h[k + 1].
    stated = Wiring.from_boundaries(tuple(item + 1 for item in states.producer_ids), dim=contract.target.hidden_size)
    return [
        replace(
            item,
            runtime=states.format.name,
            message=f"{item.message} (by the ids {list(states.producer_ids)} in data_config.json, captured behind "
            "each layer)",
        )
        for item in diff(declared, replace(stated, pre_norm=declared.pre_norm), origin="observed")
    ]


def _again(states: StateSet, index: int) -> Sample | None:
    try:
        return states.read(index)
    except InputError:  # it was counted when it was scanned
        return None


def _observed(
    states: StateSet, sample: Sample, contract: Contract, probe: ProbeData, confidence: float
) -> list[tuple[Wiring, Observed]]:
    from featurecontract.states._stored import observe

    wiring, found = observe(sample, contract, probe, confidence=confidence)
    return [(wiring, replace(item, runtime=states.format.name)) for item in found]


def _unidentified(states: StateSet, reason: str) -> Finding:
    return finding(
        "nothing-compared",
        f"which planes are stored is not known: {reason}",
        runtime=states.format.name,
        next_step="give the target that made them: --target DIR",
    )
