"""Scans of many files -> one finding for each kind of fault, with how many files show it and which come first."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from featurecontract.errors import InputError
from featurecontract.findings import Finding, finding

if TYPE_CHECKING:
    from featurecontract.contract import Contract, Wiring
    from featurecontract.states import StateSet
    from featurecontract.states._scan import Scan

__all__ = ["FEWEST_ROWS", "Tally"]

#: Rows that a stored sequence must share with the probe before it is compared with it.
FEWEST_ROWS = 16

_SHOWN = 3
_WORDS = {
    "zero": "{slots} is zero",
    "constant": "{slots} is one row repeated",
    "non-finite": "{slots} holds NaN or infinity",
    "slot-duplicate": "{slots} are bit for bit equal",
    "stale": "{slots} is the same for different tokens: left over from another sequence",
}
_STEPS = {
    "stale": "look for a buffer that the producer reuses between requests, and write the dataset again",
    "width": "store as many planes as the contract has features, or record the contract of what was stored",
    "rows-missing": "write these files again: every tensor has one row for each token",
    "checkpoint-unreadable": "write these files again",
    "vocabulary": "the dataset is of another tokenizer than the contract's target",
}
_STEP = "write the dataset again, from a producer that captures this plane"


@dataclass(slots=True)
class _Seen:
    files: list[str] = field(default_factory=list)
    count: int = 0
    text: str = ""
    rows: tuple[tuple[int, int], ...] | None = None

    def add(self, source: str) -> None:
        self.count += 1
        if len(self.files) < _SHOWN:
            self.files.append(source)


class Tally:
    """Counts what scans found.

    Attributes:
        usable: Indices of the files that could be read and hold whole planes.
        shared: Those of them that begin with the probe's tokens.
        tokens: Tokens in all files read.
        compared: Files whose width was compared.
        wiring: The planes that the files should hold, the last one included, by the first file that could be read.
    """

    def __init__(self, contract: Contract, states: StateSet) -> None:
        """Start to count."""
        from featurecontract.states._stored import stored_wiring

        self.contract, self.states = contract, states
        self.usable: list[int] = []
        self.shared: list[int] = []
        self.tokens = self.compared = 0
        has_last = bool(states.format.last)
        self.wiring: Wiring = stored_wiring(contract, last=states.format.last_state if has_last else None)
        self._count = len(self.wiring.features) - has_last
        self._width = sum(item.dim or contract.target.hidden_size for item in self.wiring.features[: self._count])
        self._seen: dict[tuple[str, tuple[int, ...]], _Seen] = {}
        self._prints: dict[tuple[int, bytes], bytes] = {}
        self._read = 0

    def add(self, index: int, result: Scan | InputError) -> None:
        """Count one file."""
        self._read += 1
        if isinstance(result, InputError):
            seen = self._at(result.slug, ())
            seen.text = seen.text or "; ".join(str(item.message) for item in result.problems[:2])
            seen.add(result.source)
            return
        self.tokens += result.tokens
        self.compared += 1
        if result.width != self._width:
            seen = self._at("width", ())
            seen.text = f"{result.width} columns go to the projection, the contract's features have {self._width}"
            seen.add(result.source)
        if result.width % self.contract.target.hidden_size == 0 or result.width == self._width:
            self.usable.append(index)
            if result.probe_rows >= FEWEST_ROWS:
                self.shared.append(index)
        for fault in result.faults:
            seen = self._at(fault.slug, fault.slots)
            if fault.rows is not None and seen.rows is None:
                seen.rows = (fault.rows,)
            seen.add(result.source)
        self._stale(result)
        size = self.contract.target.vocab_size
        if result.worst_token < 0 or (size is not None and result.worst_token >= size):
            seen = self._at("target-mismatch", ())
            seen.text = f"token {result.worst_token} is not in the target's vocabulary of {size}"
            seen.add(result.source)

    def _at(self, slug: str, slots: tuple[int, ...]) -> _Seen:
        return self._seen.setdefault((slug, slots), _Seen())

    def _stale(self, result: Scan) -> None:
        for slot, mark in enumerate(result.prints):
            if mark and self._prints.setdefault((slot, mark), result.token_print) != result.token_print:
                self._at("stale", (slot,)).add(result.source)

    def findings(self) -> list[Finding]:
        """Return one finding for each kind of fault and set of slots."""
        return [self._finding(slug, slots, seen) for (slug, slots), seen in self._seen.items()]

    def _finding(self, slug: str, slots: tuple[int, ...], seen: _Seen) -> Finding:
        text = seen.text or _WORDS[slug].format(slots=self._named(slots))
        more = f" and {seen.count - len(seen.files)} more" if seen.count > len(seen.files) else ""
        columns = [self.wiring.columns(slot) for slot in slots if slot < self._count]
        return finding(
            slug,
            f"{text} (in {seen.count} of {self._read} files: {', '.join(seen.files)}{more})",
            slots=slots,
            rows=seen.rows,
            columns=tuple(item for item in columns if item is not None),
            runtime=self.states.format.name,
            details={"files": seen.count, "of": self._read},
            next_step=_STEPS.get("vocabulary" if slug == "target-mismatch" else slug, _STEP),
        )

    def _named(self, slots: tuple[int, ...]) -> str:
        features = self.wiring.features
        names = [
            f"the last plane (slot {slot})"
            if slot == self._count
            else f"slot {slot}" + (f" ({features[slot]})" if slot < self._count else "")
            for slot in slots
        ]
        return " and ".join(names)
