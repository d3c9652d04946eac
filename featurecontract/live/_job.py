"""The job that the caller hands to the engine's process: one JSON file, and the files that come back."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["Job", "other_prompts", "prefix_lengths", "read_job", "write_job"]

PHASE_FILE, PROBLEM_FILE = "phase.json", "problem.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What an engine is to run; all paths are absolute.

    Attributes:
        runtime: Its name.
        checkpoint: The drafter's directory.
        target: The target's directory.
        out: Where results go: captures of phase P into ``out/P``.
        phases: The phases to run, in order.
        token_ids: The probe's tokens.
        others: Three prompts of the same length that differ from the probe, and from each other, at every position: a
            stale buffer shows only when another prompt came before.
        method: The drafter's method in the contract's words.
        contract_sha256: The contract's digest, for the captures.
        options: The user's settings of the engine, which win over the safe ones.
    """

    runtime: str
    checkpoint: str
    target: str
    out: str
    phases: tuple[str, ...]
    token_ids: tuple[int, ...]
    others: tuple[tuple[int, ...], ...]
    method: str = "eagle3"
    contract_sha256: str = ""
    options: dict[str, Any] = field(default_factory=dict)

    def folder(self, phase: str) -> Path:
        """Return where the captures of a phase go."""
        return Path(self.out) / phase


def write_job(job: Job, path: Path) -> None:
    """Write a job."""
    path.write_text(json.dumps(asdict(job)), "utf-8")


def read_job(path: str | Path) -> Job:
    """Read a job that ``write_job`` wrote."""
    given = json.loads(Path(path).read_text("utf-8"))
    given["phases"], given["token_ids"] = tuple(given["phases"]), tuple(given["token_ids"])
    given["others"] = tuple(tuple(ids) for ids in given["others"])
    return Job(**given)


def other_prompts(token_ids: tuple[int, ...], count: int = 3) -> tuple[tuple[int, ...], ...]:
    """Return prompts of the probe's own ids that agree with it, and with each other, at no position.

    A row of another prompt with the probe's token at its position would be taken for a row of the probe.
    """
    known = sorted(set(token_ids))
    out: list[tuple[int, ...]] = []
    for number in range(count):
        taken = [token_ids, *out]
        row = []
        for place, own in enumerate(token_ids):
            start = known.index(own) + 7 * (number + 1) + place
            free = (known[(start + step) % len(known)] for step in range(len(known)))
            row.append(next(item for item in free if all(item != other[place] for other in taken)))
        out.append(tuple(row))
    return tuple(out)


def prefix_lengths(rows: int, count: int = 12) -> tuple[int, ...]:
    """Return lengths of the probe's prefixes that rounds are drafted from: about as far apart as they are long.

    What grows with the position, such as another rotary base, does not show at the first ones and does at the last.
    """
    ratio = max(rows, 2) ** (1 / (count - 1))
    found: list[int] = []
    for number in range(count):
        found.append(min(rows, max(round(ratio**number), found[-1] + 1 if found else 1)))
    return tuple(dict.fromkeys(found))
