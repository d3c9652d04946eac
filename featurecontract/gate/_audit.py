"""``audit-data``: stored hidden states against the contract of the drafter that is to be trained on them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from featurecontract.contract import contract_path, digest, load
from featurecontract.errors import InputError, UsageError
from featurecontract.findings import Finding, Observed, Report, diff, finding
from featurecontract.gate._audit_findings import Tally
from featurecontract.gate._audit_planes import Identification, by_probe, by_target, producer_findings

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator

    from featurecontract.contract import Contract
    from featurecontract.states import Sample, StateSet
    from featurecontract.states._scan import Scan

__all__ = ["audit_data"]

# Files in flight per worker: enough to keep it busy, and few enough to hold in memory.
_AHEAD = 2
_IDENTIFIED = 4


def audit_data(
    data: str | os.PathLike[str],
    path: str | os.PathLike[str],
    *,
    target: Any = None,
    identify: int = _IDENTIFIED,
    limit: int | None = None,
    workers: int = 1,
    confidence: float = 0.9,
    strict: bool = False,
    follow_links: bool = False,
    layers: str | None = None,
    norm: str | None = None,
    embedding: str | None = None,
    head: str | None = None,
    device: str | None = None,
    trust_remote_code: bool = False,
    progress: Callable[[int, int], None] | None = None,
    say: Callable[[str], None] | None = None,
) -> Report:
    """Check a dataset of stored hidden states against a contract; needs torch.

    Every file is read once: widths, NaN and infinity, planes that are zero, constant, equal to each other or left over
    from another sequence, token ids outside the vocabulary. Which planes they are is told from sequences that begin
    with the probe's tokens, or by running ``target`` on the dataset's own tokens.

    Args:
        data: A folder of files, or one file (docs/stored-states.md lists the formats).
        path: Checkpoint directory with the contract, or the contract file.
        target: A transformers model directory or a torch module; without one only the probe identifies planes.
        identify: How many sequences are identified, evenly spread over the dataset.
        limit: Read at most this many files, evenly spread over the dataset.
        workers: Threads that read and scan.
        confidence: Below this an identification is ``inconclusive``.
        strict: Count warnings as errors.
        follow_links: Read through links that leave their folder.
        layers: Path of the decoder layers in the target, where they are not found.
        norm: Path of the final norm.
        embedding: Path of the token embedding.
        head: Path of the output head.
        device: Where the target is loaded.
        trust_remote_code: Run model code in the target's directory.
        progress: Called with the number of files done and the number of files.
        say: Called with one line per step of the identification.

    Raises:
        InputError: The contract or the dataset cannot be read at all; a single bad file is a finding.
        UsageError: An argument cannot be used.
    """
    from featurecontract.states import open_states

    if workers < 1 or (limit is not None and limit < 1) or identify < 1:
        raise UsageError(f"workers {workers}, limit {limit} and identify {identify} must be at least 1")
    file = contract_path(path)
    contract = load(file)
    states = open_states(data, follow_links=follow_links)
    chosen = spread(len(states), limit)
    tally = Tally(contract, states)
    tokens = contract.probe.token_ids if contract.probe is not None and target is None else ()
    for done, (index, result) in enumerate(_scans(states, chosen, contract, workers, tokens), start=1):
        tally.add(index, result)
        if progress is not None:
            progress(done, len(chosen))
    options = {"layers": layers, "norm": norm, "embedding": embedding, "head": head}
    if target is not None:
        found = by_target(
            states,
            spread_over(tally.usable, identify),
            contract,
            target,
            confidence=confidence,
            say=say,
            options=options | {"device": device, "trust_remote_code": trust_remote_code},
        )
    else:
        found = by_probe(
            states,
            spread_over(tally.shared, identify),
            contract,
            file.parent,
            confidence=confidence,
            links=follow_links,
        )
    findings = [
        *tally.findings(),
        *found.findings,
        *_wiring_findings(found),
        *_share(found, states, len(chosen), spread=target is not None),
    ]
    if not found.observed:
        findings += producer_findings(states, contract)
    return Report(
        checkpoint=str(path),
        contract_path=str(file),
        contract_sha256=digest(contract),
        target=f"{states.format.name} in {data}: {len(chosen)} of {len(states)} files, {tally.tokens} tokens",
        declared=found.observed[0][0] if found.observed else tally.wiring,
        num_hidden_layers=contract.target.num_hidden_layers,
        observed=tuple(item for _, item in found.observed),
        findings=tuple(findings),
        compared=tally.compared + sum(len(item.slots) for _, item in found.observed if item.rows),
        strict=strict,
    )


def spread(count: int, limit: int | None) -> list[int]:
    """Return at most ``limit`` indices of ``0..count - 1``, evenly spread, the first and the last among them."""
    return spread_over(list(range(count)), limit)


def spread_over(items: list[int], limit: int | None) -> list[int]:
    """Return at most ``limit`` of some items, evenly spread."""
    count = len(items)
    if limit is None or limit >= count:
        return items
    if limit == 1:
        return items[:1]
    return [items[round(place * (count - 1) / (limit - 1))] for place in range(limit)]


def _scans(
    states: StateSet, chosen: list[int], contract: Contract, workers: int, tokens: tuple[int, ...]
) -> Iterator[tuple[int, Scan | InputError]]:
    """Yield every file's scan in order; a bounded number of files is in flight."""
    from collections import deque

    from featurecontract.states._scan import scan
    from featurecontract.states._stored import stored_wiring

    def one(index: int) -> Scan | InputError:
        try:
            sample: Sample = states.read(index)
            last = sample.last_state if sample.last is not None else None
            return scan(sample, stored_wiring(contract, last=last), probe_tokens=tokens)
        except InputError as error:
            return error

    if workers == 1:
        for index in chosen:
            yield index, one(index)
        return
    with ThreadPoolExecutor(max_workers=workers, thread_name_prefix="audit") as pool:
        waiting: deque[tuple[int, Any]] = deque()
        try:
            for index in chosen:
                waiting.append((index, pool.submit(one, index)))
                if len(waiting) >= workers * _AHEAD:
                    place, job = waiting.popleft()
                    yield place, job.result()
            while waiting:
                place, job = waiting.popleft()
                yield place, job.result()
        finally:
            # An interrupt must not wait for files that nobody asks for any more.
            pool.shutdown(wait=False, cancel_futures=True)


def _wiring_findings(found: Identification) -> list[Finding]:
    """Return the differences of every identified sequence, each kind once, with how many show it."""
    counted: dict[Any, tuple[Finding, list[str]]] = {}
    for wiring, item in found.observed:
        last = len(wiring.features) - 1 if found.has_last else None
        listed: list[Finding] = list(item.findings)
        if item.rows:
            listed += diff(wiring, item.wiring, origin="observed")
        for entry in listed:
            # Similarities differ from file to file; shifts and permutations do not.
            details = {name: value for name, value in entry.details.items() if not isinstance(value, float)}
            key = (entry.slug, entry.slots, str(details))
            counted.setdefault(key, (_placed(entry, item, last), []))[1].append(item.source)
    total = len({item.source for _, item in found.observed})
    return [
        replace(entry, message=f"{entry.message} (in {len(set(sources))} of {total} identified files)"[:900])
        for entry, sources in counted.values()
    ]


def _share(found: Identification, states: StateSet, count: int, *, spread: bool) -> list[Finding]:
    """Say in how many of the files planes were identified; less than half is a warning, unless they were ``spread``.

    Files that a target is run on are spread over the dataset, as many as were asked for. Those that begin with the
    probe's tokens are the ones that happen to be there.
    """
    known = len({item.source for _, item in found.observed if item.rows})
    if not known:
        return []  # said already
    few = 2 * known < count and not spread
    text = f"planes identified in {known} of {count} files"
    return [
        finding(
            "planes-sampled",
            f"{text}; the others were only scanned for faults" if few else text,
            severity="warning" if few else "note",
            runtime=states.format.name,
            details={"files": known, "of": count},
            next_step="identify files from all over the dataset: --target DIR, --identify N" if few else "",
        )
    ]


def _placed(entry: Finding, item: Observed, last: int | None) -> Finding:
    """Say that the last slot is no slot of the projection: it is the plane beside them."""
    message = entry.message
    if last is not None and last in entry.slots:
        message += f"; slot {last} is the last plane, of which the trainer makes the target's logits"
    return replace(entry, message=message, runtime=item.runtime)
