"""Captures given with ``--feature-contract-capture`` as sources of observed statements.

The names of the groups come from the small JSON file of each capture, read at collection without torch; the rows are
read, checked and identified by the code of ``featurecontract verify`` when the first item runs.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from featurecontract.checkpoint._paths import plain_name_fault
from featurecontract.checkpoint._safetensors import read_header
from featurecontract.contract.strict_json import open_regular, read_json
from featurecontract.errors import InputError
from featurecontract.plugin._names import part, unique
from featurecontract.plugin._observed import Source, statements_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from featurecontract.capture import Capture
    from featurecontract.contract import Contract
    from featurecontract.findings import Drafted, Finding, Report
    from featurecontract.gate import Drafting

    Drafts = tuple[Drafted, tuple[Finding, ...]]

__all__ = ["Glance", "Verification", "glance", "sources_of"]

# What one capture is read into one observation for: its phase and its capture point.
Observation = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Glance:
    """What the JSON files of one given path say; ``observations`` is None where they could not be read.

    ``drafts`` are the observations that draft tokens are compared in: of one point, those whose calls have some.
    """

    path: Path
    observations: tuple[Observation, ...] | None = None
    contracts: frozenset[str] = frozenset()
    drafts: frozenset[Observation] = frozenset()


def glance(path: Path) -> Glance:
    """Read the JSON files of a capture, a directory of them, or a safetensors file's neighbour; raises nothing.

    What is malformed is not explained here: the loader does, when the item runs.
    """
    found: dict[Observation, None] = {}
    contracts, drafts = set(), set()
    try:
        for file in _json_files(path):
            value: Any = read_json(file)
            contracts |= {value["contract_sha256"]} - {""}
            drafting = _drafting_calls(file, value)
            for number, call in enumerate(value["calls"]):
                phase, point = call["phase"], call["point"]
                if not isinstance(phase, str) or not isinstance(point, str):
                    return Glance(path=path)
                # Identification reads the projection's input; what enters draft step 2 is another statement.
                if point != "recurrent":
                    found[phase, point] = None
                    drafts |= {(phase, point)} if number in drafting else set()
    except (InputError, OSError, ValueError, KeyError, TypeError):
        return Glance(path=path)
    # Both points hold the same tokens: what is compared is drafted from the rows in front of any norm.
    point = "features" if any(point == "features" for _, point in found) else "projection_input"
    chosen = frozenset(item for item in drafts if item[1] == point)
    return Glance(path=path, observations=tuple(found), contracts=frozenset(contracts), drafts=chosen)


def _drafting_calls(file: Path, value: Any) -> set[int]:
    """Return the calls that have draft tokens: their tensors are named so; none where the file cannot be read."""
    name = value["tensors"]
    if not value["calls"] or plain_name_fault(name):
        return set()
    try:
        with open_regular(file.parent / name, source=str(file), follow_link=False) as stream:
            header = read_header(stream, source=str(file), file=name)
    except (InputError, OSError):
        # The loader says why, at every statement.
        return set()
    ending = ".draft_tokens"
    return {int(key.removesuffix(ending)) for key in header if key.endswith(ending)}


def _json_files(path: Path) -> Iterator[Path]:
    if os.path.isdir(path):  # noqa: PTH112 - does not raise
        files = sorted(path.glob("capture-*.json"))
        if not files:
            raise ValueError
        yield from files
    else:
        yield path.with_suffix(".json")


@dataclass(kw_only=True)
class Verification:
    """Reads one given path once and verifies its observations one by one, against one contract.

    Attributes:
        contract: Returns the contract; raises InputError.
        directory: The checkpoint's directory, for the probe.
        label: What the report calls the checkpoint.
        captures: The path; None for a capture that is in memory already.
        drafting: Drafts a capture's rounds again; None leaves draft tokens alone.
    """

    contract: Callable[[], Contract]
    directory: Path
    label: str
    captures: Path | None = None
    drafting: Drafting | None = None
    confidence: float = 0.9
    strict: bool = False
    follow_links: bool = False

    @cached_property
    def _capture(self) -> Capture:
        from featurecontract.capture import load, merge

        return merge(load([str(self.captures)]))

    def __call__(
        self, observation: Observation | None = None, *, capture: Capture | None = None, drafts: bool = False
    ) -> Report:
        """Verify one observation, with its draft tokens or without, or all of them; needs torch.

        Raises:
            InputError: The contract, the probe or the capture cannot be used.
            ImportError: torch is not installed.
        """
        from featurecontract.contract import contract_path
        from featurecontract.gate import verify_captures
        from featurecontract.probe import read_probe

        contract = self.contract()
        probe = read_probe(contract, self.directory, follow_links=self.follow_links)
        held = whole = self._capture if capture is None else capture
        drafting: Callable[[Capture], Drafts] | None = self.drafting
        if observation is not None:
            held = replace(held, calls=tuple(call for call in held.calls if (call.phase, call.point) == observation))
            # What stood before a round may be of another phase.
            again = self.drafting if drafts else None
            drafting = None if again is None else lambda _held: again(whole, phase=observation[0])
        return verify_captures(
            contract,
            probe,
            [held],
            path=self.label,
            file=str(contract_path(self.directory)),
            drafting=drafting,
            confidence=self.confidence,
            strict=self.strict,
        )


def sources_of(contract: Contract, given: Iterable[tuple[Glance, Verification]]) -> tuple[Source, ...]:
    """Return one source for each observation of each path, under names that tell them apart.

    ``observed`` where there is one. Else ``observed-`` and the first of these that differ everywhere: the phase; the
    phase and the point; the path's own name and the phase; all three. A number follows what is still the same.
    """
    listed: list[tuple[Glance, Observation | None, Verification]] = []
    for seen, verify in given:
        wanted: tuple[Observation | None, ...] = seen.observations or (None,)
        listed += [(seen, observation, verify) for observation in wanted]
    taken: set[str] = set()
    out = []
    for (seen, observation, verify), name in zip(listed, _names([item[:2] for item in listed]), strict=True):
        group = unique(name, taken)
        taken.add(group)
        drafts = observation in seen.drafts and verify.drafting is not None and not verify.drafting.reason
        statements = ("capture",) if seen.observations is None else statements_of(contract, drafts=drafts)
        out.append(
            Source(
                group=group,
                statements=statements,
                obtain=partial(verify, observation, drafts=drafts),
                path=verify.label,
            )
        )
    return tuple(out)


def _names(listed: list[tuple[Glance, Observation | None]]) -> list[str]:
    if len(listed) < 2:  # noqa: PLR2004
        return ["observed"] * len(listed)
    spelled = []
    for seen, observation in listed:
        phase, point = observation or ("", "")
        file = part(seen.path.name if seen.path.is_dir() else seen.path.stem)
        spelled.append((file, part(phase) if phase else "", part(point) if point else ""))
    ways = [
        [phase or point for _, phase, point in spelled],
        [_joined(phase, point) for _, phase, point in spelled],
        [_joined(file, phase or point) for file, phase, point in spelled],
        [_joined(*item) for item in spelled],
    ]
    best = next((way for way in ways if len(set(way)) == len(way) and all(way)), ways[-1])
    return [_joined("observed", name) for name in best]


def _joined(*parts: str) -> str:
    return "-".join(item for item in parts if item)
