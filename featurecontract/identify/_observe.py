"""Captured calls -> observed wiring and findings about rows, one observation for each phase and capture point."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch

from featurecontract.contract import Feature, Wiring
from featurecontract.findings import Finding, Observed, SlotReading, finding
from featurecontract.identify._assemble import Segment, segments_of
from featurecontract.identify._calibration import Limits
from featurecontract.identify._match import enough
from featurecontract.identify._noise import say_noise
from featurecontract.identify._parts import say_parts
from featurecontract.identify._pre_norm import read_pre_norm
from featurecontract.identify._row_findings import clean_rows
from featurecontract.identify._slots import read_slots
from featurecontract.identify._states import blank_state, row_sizes
from featurecontract.identify._tokens import say_tokens
from featurecontract.identify._work import Work, add, undecided

if TYPE_CHECKING:
    from collections.abc import Sequence

    from featurecontract.capture._record import Call, Capture
    from featurecontract.contract import Contract
    from featurecontract.probe._data import ProbeData

__all__ = ["Observed", "SlotReading", "identify"]


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
        One observation for each phase, point, width, rank and place; none when nothing was captured. Rows of the point
        ``recurrent`` are the drafter's own and are not compared; a note says so.
    """
    groups: dict[tuple[str, str, int, int, str], list[Call]] = {}
    for call in capture.calls:
        # One rank, or one of several places, may be wrong alone.
        place = str(call.extra.get("place", ""))
        groups.setdefault((call.phase, call.point, call.values.shape[1], call.rank, place), []).append(call)
    alone = all(point == "recurrent" for _, point, *_ in groups)
    out = []
    slots: tuple[SlotReading, ...]
    for (phase, point, *_), calls in groups.items():
        said = capture.extra.get("quantization")
        work = Work(
            contract, probe, confidence, dtype=calls[0].dtype, quantization=said if isinstance(said, str) else ""
        )
        if point == "recurrent":
            _say_recurrent(work, calls, alone=alone)
            wiring, slots, rows = _unknown(contract.wiring, 0), (), 0
        else:
            wiring, slots, rows, segments = _observe(work, calls, point)
            out += _apart(work, segments, slots, phase=phase, point=point, source=capture.source)
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


def _apart(
    work: Work, segments: list[Segment], slots: tuple[SlotReading, ...], *, phase: str, point: str, source: str
) -> list[Observed]:
    """Return the passes that were fed something else than all passes together, each as an observation of its own.

    What most of them are hides one that is wrong: a request of a batch, the second prompt, a chunk that came again.
    """
    out: list[Observed] = []
    long = [item for item in segments if len(item.claimed) >= Limits.ROWS_APART]
    if len(segments) < 2 or not long:  # noqa: PLR2004
        return out
    pooled = {item.slot: item.feature for item in slots}
    for number, segment in enumerate(long):
        alone = Work(work.contract, work.probe, work.confidence, dtype=work.dtype, quantization=work.quantization)
        wiring, found, rows = _read_segments(alone, [segment], point)
        sure = [item for item in found if item.confidence >= work.confidence]
        if all(_same(item.feature, pooled.get(item.slot)) for item in sure):
            continue
        name = f"request {segment.request}" if segment.request else f"pass {number}"
        out.append(
            Observed(
                phase=f"{phase} {name}".strip(),
                point=point,
                wiring=wiring,
                slots=found,
                findings=tuple(merge_slots(alone.findings)),
                rows=rows,
                source=source,
            )
        )
    return out


def _same(first: Feature, second: Feature | None) -> bool:
    """Whether two readings of a slot say the same; scales that are both there may differ a little."""
    if second is None or (first.boundary, first.state) != (second.boundary, second.state):
        return False
    return (first.scale == 1.0) == (second.scale == 1.0)


def merge_slots(findings: list[Finding]) -> list[Finding]:
    """Return one finding for each kind of fault that several slots share, in the order of the first."""
    merged: dict[tuple[str, str], Finding] = {}
    for item in findings:
        key = (item.slug, item.severity)
        before = merged.get(key)
        if before is None or item.slug.startswith(("rows-", "tokens-")):
            merged[key if before is None else (f"{item.slug} {len(merged)}", "")] = item
            continue
        also = tuple(slot for slot in item.slots if slot not in before.slots)
        message = before.message if not also else f"{before.message}; {item.message}"
        merged[key] = replace(
            before, slots=before.slots + also, columns=before.columns + item.columns, message=message[:600]
        )
    return list(merged.values())


def _observe(
    work: Work, calls: Sequence[Call], point: str
) -> tuple[Wiring, tuple[SlotReading, ...], int, list[Segment]]:
    declared = work.contract.wiring
    dims = _dims(work, calls[0].values.shape[1])
    if dims is None:
        return _unknown(declared, 0), (), 0, []
    segments = segments_of(calls, work.probe, token_shift=work.contract.alignment.token_shift)
    if not segments:
        work.findings.append(
            finding(
                "nothing-compared",
                "no captured row belongs to the probe's tokens",
                next_step="send the contract's probe.token_ids through the engine and capture again",
            )
        )
        return _unknown(declared, len(dims)), (), 0, []
    wiring, slots, rows = _read_segments(work, segments, point, calls)
    reached, count = max(int(item.claimed[-1]) for item in segments) + 1, len(work.probe.token_ids)
    if reached < Limits.REACHED * count:
        add(
            work,
            "rows-missing",
            f"the capture ends with row {reached - 1} of the probe's {count}: nothing is said of the others",
            tuple(range(len(dims))),
            severity="note",
            rows=((reached, count),),
            details={"count": count - reached},
            next_step="send the whole probe, and raise max_rows if the capture was bounded",
        )
    return wiring, slots, rows, segments


def _read_segments(
    work: Work, segments: list[Segment], point: str, calls: Sequence[Call] = ()
) -> tuple[Wiring, tuple[SlotReading, ...], int]:
    """Name the slots of rows whose place in the probe is claimed; ``calls`` are looked through for stale buffers."""
    declared = work.contract.wiring
    width = segments[0].values.shape[1]
    dims = _dims(work, width) or []
    starts = [sum(dims[:slot]) for slot in range(len(dims))]
    blocks = list(zip(starts, dims, strict=True))
    whole = segments[0].values if len(segments) == 1 else torch.cat([item.values for item in segments])
    sizes = row_sizes(whole, blocks)
    blank = {slot: blank_state(whole[:, at : at + dim], sizes[:, slot]) for slot, (at, dim) in enumerate(blocks)}
    _say_stale(work, calls, blocks, blank)
    say_tokens(work, segments)
    live = [slot for slot, state in blank.items() if not state]
    readings = {
        slot: SlotReading(slot=slot, feature=_blank_feature(declared, slot, dims[slot], state), confidence=1.0)
        for slot, state in blank.items()
        if state
    }
    for slot, state in blank.items():
        if state == "non-finite":
            add(work, "non-finite", f"slot {slot} holds NaN or infinity", (slot,))
    # Slots that hold nothing are compared too: every row says so.
    rows, told = 0 if live else len(whole), False
    if live:
        kept, probe_rows = clean_rows(work, segments, [blocks[slot] for slot in live], live, sizes[:, live])
        rows = len(kept)
        if enough(rows):
            readings |= read_slots(work, whole, sizes, kept, probe_rows, {slot: blocks[slot] for slot in live})
            if point == "projection_input":
                at = dict(enumerate(blocks))
                readings, told = read_pre_norm(declared.pre_norm, readings, whole[kept], probe_rows, at, work.probe)
            # Behind a norm sizes are the norm's; the point in front of it says the same of rows and columns.
            if point == "features" or declared.pre_norm not in ("joint", "per_feature"):
                say_parts(work, whole, kept, probe_rows, dict(enumerate(blocks)), readings)
        else:
            add(
                work,
                "inconclusive",
                f"{rows} usable rows; {Limits.FEWEST_ROWS} are needed to tell planes apart",
                tuple(live),
                next_step="capture a prefill of the whole probe",
            )
            readings |= {slot: undecided(declared, slot, dims[slot]) for slot in live}
    ordered = tuple(readings[slot] for slot in sorted(readings))
    # The norm that is declared is part of the wiring, and no state of its slots.
    seen = _without_expected_norm(ordered, declared, point)
    wiring = replace(
        declared, features=tuple(item.feature for item in seen), recurrent_state="unknown", pre_norm="unknown"
    )
    for item in ordered:
        say_noise(work, item)
    wiring = replace(
        wiring, pre_norm=_pre_norm(declared, ordered, point, told=told), norm_before_residual=None, bias=None
    )
    return wiring, seen, rows


def _dims(work: Work, width: int) -> list[int] | None:
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


def _say_recurrent(work: Work, calls: Sequence[Call], *, alone: bool) -> None:
    """Say what becomes of the rows that enter draft step 2: they are no plane of the target.

    A norm shows only between what goes into it and what comes out, and both are made with the drafter's weights.
    """
    rows = sum(len(call.values) for call in calls)
    wanted = work.contract.recurrent_state
    message = (
        f"{rows} rows of the point recurrent are the drafter's own hidden states, no planes of the target, and are not "
        f"compared here"
        + (f"; whether they are {wanted} takes the drafter's weights" if wanted in ("pre_norm", "post_norm") else "")
    )
    add(
        work,
        "nothing-compared" if alone else "recurrent-state",
        message,
        (),
        **({} if alone else {"severity": "note"}),
        expected=wanted,
        next_step="capture the projection's input too"
        if alone
        else "compare the runtime's norm flags with the contract: featurecontract check CKPT --runtime NAME==VERSION",
    )


def _unknown(declared: Wiring, count: int) -> Wiring:
    return replace(
        declared,
        features=tuple(Feature(slot=slot, boundary=None, state="unknown") for slot in range(count)),
        pre_norm="unknown",
        recurrent_state="unknown",
    )


def _blank_feature(declared: Wiring, slot: int, dim: int, state: str) -> Feature:
    named: Any = state if state in ("zero", "constant") else "unknown"
    if state == "non-finite":
        # The finding says what it is; the slot has no plane to compare.
        wanted = declared.features[slot] if slot < len(declared.features) else Feature(slot=slot, dim=dim)
        return replace(wanted, dim=dim)
    return Feature(slot=slot, boundary=None, state=named, dim=dim)


def _say_stale(work: Work, calls: Sequence[Call], blocks: list[tuple[int, int]], blank: dict[int, str]) -> None:
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
            add(
                work,
                "stale",
                "the same values in two calls of different tokens: a buffer that was not written again",
                tuple(stale),
                next_step="serve without CUDA graphs once; if the finding goes away, the capture is not in the graph",
            )
            return


def _pre_norm(declared: Wiring, readings: tuple[SlotReading, ...], point: str, *, told: bool) -> Any:
    """Return the norm before the projection, where this point and its rows can tell it at all."""
    if point != "projection_input" or not readings:
        return "unknown"
    normed = [item.feature.state == "normed" for item in readings if item.confidence]
    if declared.pre_norm in ("joint", "per_feature"):
        return declared.pre_norm if normed and all(normed) else "none" if told else "unknown"
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
