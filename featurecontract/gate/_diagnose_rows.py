"""The drafter's weights on the probe's golden rows, and on the rows that a runtime fed for the same tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from featurecontract.errors import FeatureContractError, InputError, UsageError
from featurecontract.gate._conclude import Stage
from featurecontract.gate._replay_inputs import drafter_of, is_gguf, lent_parts

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from featurecontract.gate._inputs import Inputs
    from featurecontract.gate._replay_inputs import ReplayOptions
    from featurecontract.probe._data import ProbeData
    from featurecontract.replay import Drafter, Fed

__all__ = ["rows_stage"]

_MAX_FED = 8


def rows_stage(inputs: Inputs, captures: Sequence[str], options: ReplayOptions, *, say: Callable[[str], None]) -> Stage:
    """Draft from golden and captured rows; figures only, since one sequence judges no drafter."""
    contract = inputs.contract
    assert contract is not None  # noqa: S101 - diagnose asks for it
    if contract.probe is None:
        return Stage(name="rows", ran=False, text="the contract has no probe (`featurecontract record`)")
    try:
        from featurecontract import replay
        from featurecontract.probe import read_probe, require_torch

        require_torch()
        probe = read_probe(contract, _folder(inputs), follow_links=options.follow_links)
        planes = replay.wiring_planes(contract.wiring)
        if probe.unrecorded or len(set(planes)) < len(planes):
            raise UsageError("the probe does not hold a plane of the target for every slot")
        parts = replay.TargetParts() if is_gguf(options) else lent_parts(options)
        drafter = drafter_of(inputs, parts, options)
        if drafter.spec.kind != "eagle3" or len(planes) != drafter.spec.slots:
            raise UsageError("the drafter's projection does not take the declared features side by side")
        fed = _fed(captures, probe)
    except FeatureContractError as error:
        return Stage(name="rows", ran=False, text=str(error)[:400])
    passes = f"{len(fed)} captured pass{'' if len(fed) == 1 else 'es'}"
    say(f"drafting from {len(probe.golden)} golden rows" + (f" and {passes} over them" if fed else ""))
    return _compared(drafter, probe, fed)


def _folder(inputs: Inputs) -> Path:
    from pathlib import Path

    return Path(inputs.contract_file or inputs.path).parent


def _fed(captures: Sequence[str], probe: ProbeData) -> list[tuple[str, Fed]]:
    if not captures:
        return []
    from featurecontract.capture import load, merge
    from featurecontract.replay import fed_rows

    try:
        whole = merge(load([str(item) for item in captures]))
    except InputError:
        # The stage of the captures says what is wrong with them.
        return []
    width = probe.golden.shape[1]
    found = [item for item in fed_rows(whole.calls, probe.token_ids) if item.values.shape[1] == width]
    return [(whole.runtime or "capture", item) for item in found[:_MAX_FED]]


def _compared(drafter: Drafter, probe: ProbeData, fed: list[tuple[str, Fed]]) -> Stage:
    from featurecontract.replay import drafted_tokens

    golden = drafted_tokens(drafter, probe.golden, probe.token_ids, steps=1)[:, 0]
    ahead = drafter.spec.token_shift + 1
    right = int((golden[:-ahead] == probe.token_ids[ahead:]).sum())
    text = f"golden rows: step 1 is the probe's own next token in {right} of {len(golden) - ahead}"
    for runtime, item in fed:
        own = drafted_tokens(drafter, item.values, probe.token_ids[: len(item.values)], steps=1)[:, 0]
        same = int((own == golden[: len(own)]).sum())
        phase = f" {item.phase}" if item.phase else ""
        text += f"; {runtime}{phase}: {same} of {len(own)} rows draft what the golden ones draft"
    return Stage(name="rows", ran=True, text=text)
