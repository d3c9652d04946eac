"""``init --from-search``: the wiring that a search named, with its confidence, as a reading of the checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from featurecontract.contract import parse_wiring
from featurecontract.contract.strict_json import read_json
from featurecontract.dialects import Candidate
from featurecontract.errors import InputError

__all__ = ["found_by_search"]

_STEP = "write it with `featurecontract replay CKPT --states DIR --search -o json --output FILE`"


def found_by_search(path: str, *, num_hidden_layers: int) -> Candidate:
    """Read a JSON report of ``replay --search``.

    Raises:
        InputError: it is no such report, or its search named no winner.
    """
    value = read_json(Path(path))
    found: Any = value.get("search") if isinstance(value, dict) else None
    if not isinstance(found, dict):
        raise InputError.single(path, "holds no search", place="search", next_step=_STEP)
    wiring, confidence, margin = found.get("wiring"), found.get("confidence"), found.get("margin")
    if wiring is None:
        raise InputError.single(
            path,
            "the search named no winner, so there is nothing to write",
            place="search.winner",
            next_step="search on more sequences of the training data, or state the features with --features",
            slug="inconclusive",
        )
    numbers = [item for item in (confidence, margin) if isinstance(item, (int, float)) and not isinstance(item, bool)]
    if not isinstance(wiring, str) or len(numbers) != 2 or not 0 <= numbers[0] <= 1:  # noqa: PLR2004
        raise InputError.single(path, "is no report of a search", place="search", next_step=_STEP)
    return Candidate(
        wiring=parse_wiring(wiring, num_hidden_layers=num_hidden_layers),
        reason=f"found by a search over recorded planes: {numbers[1]:.1f} standard errors ahead of the runner-up",
        confidence=float(numbers[0]),
    )
