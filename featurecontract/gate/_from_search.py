"""``init --from-search``: the wiring that a search named, with its confidence, as a reading of the checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from featurecontract.contract import parse_wiring
from featurecontract.contract.strict_json import read_json
from featurecontract.dialects import Candidate
from featurecontract.errors import InputError

if TYPE_CHECKING:
    from featurecontract.checkpoint import Checkpoint

__all__ = ["found_by_search"]

_STEP = "write it with `featurecontract replay CKPT --states DIR --search -o json --output FILE`"


def projection_sha256(checkpoint: Checkpoint) -> str | None:
    """Return the digest of what a search was about, the bytes of ``fc.weight``; None where there are none to read."""
    from featurecontract.replay._names import plain_names

    if not checkpoint.tensors:
        return None
    try:
        names = {plain: name for name, plain in plain_names(checkpoint.tensors, source=str(checkpoint.path)).items()}
        return checkpoint.sha256(names["fc.weight"]) if "fc.weight" in names else None
    except InputError:
        return None


def found_by_search(path: str, *, num_hidden_layers: int, checkpoint: Checkpoint) -> Candidate:
    """Read a JSON report of ``replay --search``.

    Raises:
        InputError: it is no such report, its search named no winner, or it is of other weights.
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
    if not isinstance(wiring, str) or len(numbers) != 2 or not 0.5 <= numbers[0] <= 1:  # noqa: PLR2004
        raise InputError.single(path, "is no report of a search", place="search", next_step=_STEP)
    ranking = found.get("ranking")
    first = ranking[0] if isinstance(ranking, list) and ranking else None
    if not isinstance(first, dict) or first.get("wiring") != wiring:
        raise InputError.single(
            path, "names another winner than its ranking does: it was changed", place="search.wiring", next_step=_STEP
        )
    here = projection_sha256(checkpoint)
    if here is not None and found.get("projection_sha256") != here:
        raise InputError.single(
            path,
            f"is of another drafter: its projection is not the fc.weight of {checkpoint.path}",
            place="search.projection_sha256",
            next_step=_STEP,
            slug="drafter-mismatch",
        )
    return Candidate(
        wiring=parse_wiring(wiring, num_hidden_layers=num_hidden_layers),
        reason=f"found by a search over recorded planes: {numbers[1]:.1f} standard errors ahead of the runner-up",
        confidence=float(numbers[0]),
    )
