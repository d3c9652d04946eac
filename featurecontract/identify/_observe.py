"""Captured calls -> observed wiring and findings about rows, one observation for each phase and capture point."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch

from featurecontract.contract import Feature, Wiring
from featurecontract.findings import Finding, Observed, SlotReading, finding
from featurecontract.identify._assemble import Segment, segments_of
from featurecontract.identify._calibration import Limits
from featurecontract.identify._joint import settle
from featurecontract.identify._match import Candidate, Match, candidates_of, enough, match_slot, unit_prints
from featurecontract.identify._rows import RowMap, map_rows
from featurecontract.identify._states import blank_state, partial_sum, row_state, same_geometry
from featurecontract.probe import Plane

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from featurecontract.capture._record import Call, Capture
    from featurecontract.contract import Contract
    from featurecontract.probe._data import ProbeData

__all__ = ["Observed", "SlotReading", "identify"]


@dataclass(slots=True)
class _Work:
    """One observation while it is being made."""

    contract: Contract
    probe: ProbeData
    confidence: float
    findings: list[Finding] = field(default_factory=list)


def identify(
    probe: ProbeData, contract: Contract, capture: Capture, *, confidence: float = 0.9
) -> tuple[Observed, ...]:
    """Name what was captured: rows, then planes, then states, all slots together.

    Args:
        probe: The contract's probe, ``golden`` ``[rows, width]``.
        contract: The contract it belongs to.
        capture: Calls of the projection.
        confidence: Below this a slot is ``inconclusive``, which is no pass.

    Returns:
        One observation for each phase and point; none when nothing was captured.
    """
    groups: dict[tuple[str, str], list[Call]] = {}
    for call in capture.calls:
        if call.point != "recurrent":
            groups.setdefault((call.phase, call.point), []).append(call)
    out = []
    for (phase, point), calls in groups.items():
        work = _Work(contract, probe, confidence)
        wiring, slots, rows = _observe(work, calls, point)
        work.findings = merge_slots(work.findings)
        out.append(
            Observed(
                phase=phase,
                point=point,
                wiring=wiring,
                slots=slots,
                findings=tuple(work.findings),
                rows=rows,
                source=capture.source,
            )
        )
    return tuple(out)


def merge_slots(findings: list[Finding]) -> list[Finding]:
    """Return one finding for each kind of fault that several slots share, in the order of the first."""
    merged: dict[tuple[str, str], Finding] = {}
    for item in findings:
        key = (item.slug, item.severity)
        before = merged.get(key)
        if before is None or item.slug.startswith("rows-"):
            merged[key if before is None else (f"{item.slug} {len(merged)}", "")] = item
            continue
        also = tuple(slot for slot in item.slots if slot not in before.slots)
        message = before.message if not also else f"{before.message}; {item.message}"
        merged[key] = replace(
            before, slots=before.slots + also, columns=before.columns + item.columns, message=message[:600]
        )
    return list(merged.values())


def _observe(work: _Work, calls: Sequence[Call], point: str) -> tuple[Wiring, tuple[SlotReading, ...], int]:
    declared = work.contract.wiring
    width = calls[0].values.shape[1]
    dims = _dims(work, width)
    if dims is None:
        return _unknown(declared, 0), (), 0
    segments = segments_of(calls, work.probe)
    if not segments:
        work.findings.append(
            finding(
                "nothing-compared",
                "no captured row belongs to the probe's tokens",
                next_step="send the contract's probe.token_ids through the engine and capture again",
            )
        )
        return _unknown(declared, len(dims)), (), 0
    starts = [sum(dims[:slot]) for slot in range(len(dims))]
    blocks = list(zip(starts, dims, strict=True))
    whole = torch.cat([item.values for item in segments])
    blank = {slot: blank_state(whole[:, at : at + dim]) for slot, (at, dim) in enumerate(blocks)}
    _say_stale(work, calls, blocks, blank)
    live = [slot for slot, state in blank.items() if not state]
    values, probe_rows = _clean_rows(work, segments, [blocks[slot] for slot in live], live) if live else (None, None)
    readings = {
        slot: SlotReading(slot=slot, feature=_blank_feature(declared, slot, dims[slot], state), confidence=1.0)
        for slot, state in blank.items()
        if state
    }
    for slot, state in blank.items():
        if state == "non-finite":
            _add(work, "non-finite", f"slot {slot} holds NaN or infinity", (slot,))
    rows = 0 if values is None else len(values)
    if values is not None and probe_rows is not None and enough(rows):
        readings |= _read_slots(work, values, probe_rows, {slot: blocks[slot] for slot in live})
    elif live:
        _add(
            work,
            "inconclusive",
            f"{rows} usable rows; {Limits.FEWEST_ROWS} are needed to tell planes apart",
            tuple(live),
            next_step="capture a prefill of the whole probe",
        )
        readings |= {slot: _undecided(declared, slot, dims[slot]) for slot in live}
    ordered = tuple(readings[slot] for slot in sorted(readings))
    wiring = replace(
        declared, features=tuple(item.feature for item in ordered), recurrent_state="unknown", pre_norm="unknown"
    )
    wiring = replace(wiring, pre_norm=_pre_norm(declared, ordered, point), norm_before_residual=None, bias=None)
    return wiring, _without_expected_norm(ordered, declared, point), rows


def _dims(work: _Work, width: int) -> list[int] | None:
    """Return the widths of the captured slots; None when the row does not hold whole slots."""
    declared = [item.dim or 0 for item in work.contract.features]
    if sum(declared) == width:
        return declared
    hidden = declared[0]
    if hidden and width % hidden == 0 and len(set(declared)) == 1:
        return [hidden] * (width // hidden)
    work.findings.append(
        finding(
            "width",
            f"captured rows are {width} columns wide, the contract's slots {sum(declared)}",
            expected=sum(declared),
            actual=width,
            next_step="check that the capture is of this contract's projection, and of all of its columns",
        )
    )
    return None


def _unknown(declared: Wiring, count: int) -> Wiring:
    return replace(
        declared,
        features=tuple(Feature(slot=slot, boundary=None, state="unknown") for slot in range(count)),
        pre_norm="unknown",
        recurrent_state="unknown",
    )


def _add(work: _Work, slug: str, message: str, slots: tuple[int, ...], **fields: Any) -> None:
    columns = [work.contract.wiring.columns(slot) for slot in slots if slot < len(work.contract.features)]
    work.findings.append(
        finding(slug, message, slots=slots, columns=tuple(item for item in columns if item is not None), **fields)
    )


def _blank_feature(declared: Wiring, slot: int, dim: int, state: str) -> Feature:
    named: Any = state if state in ("zero", "constant") else "unknown"
    if state == "non-finite":
        # The finding says what it is; the slot has no plane to compare.
        wanted = declared.features[slot] if slot < len(declared.features) else Feature(slot=slot, dim=dim)
        return replace(wanted, dim=dim)
    return Feature(slot=slot, boundary=None, state=named, dim=dim)


def _undecided(declared: Wiring, slot: int, dim: int) -> SlotReading:
    wanted = declared.features[slot] if slot < len(declared.features) else Feature(slot=slot, boundary=None)
    return SlotReading(slot=slot, feature=replace(wanted, slot=slot, dim=dim))


def _say_stale(work: _Work, calls: Sequence[Call], blocks: list[tuple[int, int]], blank: dict[int, str]) -> None:
    """A slot that is the same in two calls of different tokens was left over from the first."""
    for before, after in pairwise(calls):
        count = min(len(before.values), len(after.values))
        if count < 2 or not before.token_ids or not after.token_ids:  # noqa: PLR2004
            continue
        if before.token_ids[:count] == after.token_ids[:count]:
            continue
        stale = [
            slot
            for slot, (at, dim) in enumerate(blocks)
            if not blank[slot]
            and torch.equal(before.values[:count, at : at + dim], after.values[:count, at : at + dim])
        ]
        if stale:
            _add(
                work,
                "stale",
                "the same values in two calls of different tokens: a buffer that was not written again",
                tuple(stale),
                next_step="serve without CUDA graphs once; if the finding goes away, the capture is not in the graph",
            )
            return


def _clean_rows(
    work: _Work, segments: list[Segment], blocks: list[tuple[int, int]], live: list[int]
) -> tuple[Tensor, Tensor]:
    """Return the rows whose probe row is known, and say what is wrong with the others."""
    bank, channels = work.probe.bank.values, work.probe.bank.channels
    values, rows = [], []
    for segment in segments:
        finite = torch.isfinite(segment.values).all(dim=1)
        if len(segment.claimed) < Limits.FEWEST_ROWS // 2 or not finite.all():
            values.append(segment.values[finite])
            rows.append(segment.claimed[finite])
            continue
        slots = [segment.values[:, at : at + dim][:, _picked(channels, dim)] for at, dim in blocks]
        found = map_rows(segment, slots, bank, likely=_likely(work, live))
        _say_rows(work, segment, found, live)
        values.append(segment.values[found.kept])
        rows.append(found.probe_rows)
    return torch.cat(values), torch.cat(rows)


def _likely(work: _Work, live: list[int]) -> list[int | None]:
    """Return the bank's index of each live slot's declared boundary."""
    listed = list(work.probe.bank.planes)
    out: list[int | None] = []
    for slot in live:
        feature = work.contract.features[slot] if slot < len(work.contract.features) else None
        plane = None if feature is None or feature.boundary is None else Plane("boundary", feature.boundary)
        out.append(listed.index(plane) if plane in listed else None)
    return out


def _picked(channels: Tensor, dim: int) -> Tensor:
    return channels if int(channels.max()) < dim else channels[channels < dim]


def _say_rows(work: _Work, segment: Segment, found: RowMap, live: list[int]) -> None:
    slots = tuple(live)
    who = f" of request {segment.request}" if segment.request else ""
    first = int(segment.claimed.min())
    if first > 0 and found.kind in ("as claimed", "corrupt"):
        declared = segment.cached >= first
        _add(
            work,
            "rows-missing",
            f"rows 0 to {first - 1}{who} were not fed"
            + (", as the runtime declared: their prefix was cached" if declared else ""),
            slots,
            severity="note" if declared else "error",
            rows=((0, first),),
            details={"count": first, "declared_cached": segment.cached},
            next_step="" if declared else "capture with the prefix cache off",
        )
    if found.kind == "shifted":
        _add(
            work,
            "rows-shifted",
            f"rows{who} are {found.offset:+d} against their tokens",
            slots,
            details={"offset": found.offset},
            next_step="compare the drafter's input ids with the target's: one of the two is rotated",
        )
    elif found.kind == "missing":
        _add(
            work,
            "rows-missing",
            f"the first {found.offset} rows{who} were not fed",
            slots,
            rows=((0, found.offset),),
            details={"count": found.offset},
            next_step="capture with the prefix cache off, and in one chunk",
        )
    elif found.kind == "swapped":
        _add(work, "rows-swapped", f"rows{who} stand in another order than their tokens", slots)
    elif found.kind == "corrupt":
        shown = ", ".join(str(row) for row in found.bad[:8]) + (" and more" if len(found.bad) > 8 else "")  # noqa: PLR2004
        _add(
            work,
            "rows-corrupt",
            f"rows {shown}{who} do not belong to their tokens; the others do",
            slots,
            rows=tuple((row, row + 1) for row in found.bad[:64]),
            details={"count": len(found.bad)},
        )


def _read_slots(
    work: _Work, values: Tensor, probe_rows: Tensor, blocks: dict[int, tuple[int, int]]
) -> dict[int, SlotReading]:
    """Match every live slot, jointly where one alone does not settle it, and read its state."""
    # The first token attends only to itself and often carries massive activations: right there, wrong later.
    use = probe_rows > 0
    if enough(int(use.sum())):
        values, probe_rows = values[use], probe_rows[use]
    candidates, prints = candidates_of(work.probe.bank, probe_rows)
    channels = work.probe.bank.channels
    sliced = {slot: values[:, at : at + dim][:, _picked(channels, dim)] for slot, (at, dim) in blocks.items()}
    units = unit_prints(prints)
    matched = {slot: match_slot(item, candidates, units) for slot, item in sliced.items()}
    settled = settle(work.contract.wiring, candidates, units, matched, asked=work.confidence)
    out = {}
    for slot, (at, dim) in blocks.items():
        match = settled[slot]
        full = values[:, at : at + dim]
        index = candidates.index(match.best)
        if match.similarity < Limits.ROTATED and _rotated(work, full, probe_rows, slot):
            out[slot] = _rotated_reading(work, slot, dim)
            continue
        part = _partial(work, slot, match, sliced[slot], prints, candidates)
        if part is not None:
            out[slot] = SlotReading(
                slot=slot, feature=replace(part, dim=dim), similarity=match.similarity, confidence=work.confidence
            )
            continue
        feature = _state(work, slot, match, full, sliced[slot], prints[index])
        if match.confidence < work.confidence:
            _say_inconclusive(work, slot, match)
            out[slot] = replace(_undecided(work.contract.wiring, slot, dim), similarity=match.similarity)
            continue
        out[slot] = SlotReading(
            slot=slot,
            feature=replace(feature, dim=dim),
            similarity=match.similarity,
            margin=match.margin,
            confidence=match.confidence,
            runner_up=_name(match.runner_up),
        )
    return out


def _name(candidate: Candidate) -> str:
    return f"h[{candidate.boundary}]" if candidate.kind == "boundary" else f"{candidate.kind} {candidate.boundary}"


def _say_inconclusive(work: _Work, slot: int, match: Match) -> None:
    unlike = match.similarity < Limits.SIMILARITY / 2
    slug = "unidentified" if unlike else "inconclusive"
    _add(
        work,
        slug,
        f"slot {slot} is nearest to {_name(match.best)} (similarity {match.similarity:.2f}, margin {match.margin:.2f} "
        f"over {_name(match.runner_up)}): "
        + ("like nothing that the target produces" if unlike else f"confidence {match.confidence:.2f} is not enough"),
        (slot,),
        details={"similarity": match.similarity, "margin": match.margin, "confidence": match.confidence},
        next_step="record the probe in the runtime's own precision, or capture more rows",
    )


def _rotated(work: _Work, full: Tensor, probe_rows: Tensor, slot: int) -> bool:
    gram = work.probe.gram
    if gram is None or slot >= len(gram):
        return False
    return same_geometry(full, gram[slot][probe_rows][:, probe_rows]) >= Limits.GRAM


def _rotated_reading(work: _Work, slot: int, dim: int) -> SlotReading:
    _add(
        work,
        "basis",
        f"slot {slot}: the rows have the declared geometry, their directions do not: a rotated basis",
        (slot,),
        next_step="train the drafter on the rotated target, or rotate its projection's input weights",
    )
    return replace(_undecided(work.contract.wiring, slot, dim), confidence=1.0)


def _partial(  # noqa: PLR0917 - one slot with all that is known of it
    work: _Work, slot: int, match: Match, picked: Tensor, prints: Tensor, candidates: tuple[Candidate, ...]
) -> Feature | None:
    """Return the boundary that a slot holds a part of, between mid-block and boundary; None for whole tensors."""
    if match.best.kind not in ("boundary", "mid_block") or match.similarity < Limits.PARTIAL_SIMILARITY:
        return None
    boundary = match.best.boundary + (match.best.kind == "mid_block")
    share = _share(picked, prints, candidates, boundary)
    if share is None:
        return None
    _say_partial(work, slot, boundary, share)
    return Feature(slot=slot, boundary=boundary)


def _state(  # noqa: PLR0917 - one slot with all that is known of it
    work: _Work,
    slot: int,
    match: Match,
    full: Tensor,
    picked: Tensor,
    plane: Tensor,
) -> Feature:
    best = match.best
    if best.kind != "boundary":
        return Feature(slot=slot, boundary=best.boundary, state=best.kind)
    norm = work.probe.final_norm if best.boundary == work.contract.target.num_hidden_layers else None
    found = row_state(full, picked, plane, match.similarity, last=norm)
    if found.norm:
        named: Any = found.norm
        return Feature(slot=slot, boundary=best.boundary, state=named)
    return Feature(slot=slot, boundary=best.boundary, scale=found.factor)


def _share(picked: Tensor, prints: Tensor, candidates: tuple[Candidate, ...], boundary: int) -> float | None:
    mid, added = Candidate("mid_block", boundary - 1), Candidate("mlp_output", boundary)
    if mid not in candidates or added not in candidates:
        return None
    return partial_sum(picked, prints[candidates.index(mid)], prints[candidates.index(added)])


def _say_partial(work: _Work, slot: int, boundary: int, share: float) -> None:
    _add(
        work,
        "partial-sum",
        f"slot {slot} is h[{boundary}] with {share:.0%} of what the MLP adds: one rank's part of the sum",
        (slot,),
        details={"share": share},
        next_step="serve without all-reduce fusion, or with one tensor-parallel rank",
    )


def _pre_norm(declared: Wiring, readings: tuple[SlotReading, ...], point: str) -> Any:
    """Return the norm before the projection, where this point can see it at all."""
    if point != "projection_input" or not readings:
        return "unknown"
    normed = [item.feature.state == "normed" for item in readings if item.confidence]
    if declared.pre_norm in ("joint", "per_feature"):
        return declared.pre_norm if normed and all(normed) else "none"
    return "unknown"


def _without_expected_norm(readings: tuple[SlotReading, ...], declared: Wiring, point: str) -> tuple[SlotReading, ...]:
    if point == "projection_input" and declared.pre_norm in ("joint", "per_feature"):
        return tuple(
            replace(item, feature=replace(item.feature, state="residual", scale=1.0))
            if item.feature.state == "normed"
            else item
            for item in readings
        )
    return readings
