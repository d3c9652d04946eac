"""What a dialect is: how a trainer or format is recognised, and the candidates that its config leaves open."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from featurecontract.contract import Convention, Feature, Wiring, to_boundary

if TYPE_CHECKING:
    from collections.abc import Iterable

    from featurecontract.dialects._view import DraftConfig, IdsAt

__all__ = [
    "Candidate",
    "Candidates",
    "Family",
    "Target",
    "default_boundaries",
    "default_candidate",
    "final_state",
    "from_ids",
    "spaced_layer_ids",
    "with_embedding_slot",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What a dialect needs to know of the target."""

    num_hidden_layers: int
    hidden_size: int
    streams: int = 1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Candidate:
    """One reading of a config.

    Attributes:
        wiring: The features under this reading.
        convention: How an id became a boundary; None where no ids were read.
        ids: The raw ids, as the config spells them; None where a default stands in.
        ids_key: Where they stand.
        reason: Why this reading is possible, in one line, with its source.
        confidence: 0..1, by the facts known of the dialect; never an answer by itself.
    """

    wiring: Wiring
    convention: Convention | None = None
    ids: tuple[int, ...] | None = None
    ids_key: str = ""
    reason: str
    confidence: float


Candidates = Callable[["DraftConfig", Target], "Iterable[Candidate]"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Family:
    """A dialect: a stable code and name, a test, and the readings it leaves open.

    ``layer_output`` and ``layer_input`` are the conventions of `featurecontract.contract`.
    """

    code: str
    name: str
    method: str | Callable[[DraftConfig], str]
    matches: Callable[[DraftConfig], bool]
    candidates: Candidates
    trainer: str = ""
    recurrent: Callable[[DraftConfig], str] | None = None

    def method_of(self, config: DraftConfig) -> str:
        """Return the drafting method of a config of this family."""
        return self.method if isinstance(self.method, str) else self.method(config)


def default_boundaries(target: Target) -> tuple[int, int, int]:
    """Return h[2], h[L//2], h[L-3]: the default of every EAGLE-3 trainer, however it spells it."""
    depth = target.num_hidden_layers
    return (2, depth // 2, depth - 3)


def spaced_layer_ids(count: int, depth: int) -> tuple[int, ...]:
    """Return DFlash's default layer-output ids: one in the middle, or ``count`` spaced over 1..L-3.

    Source: SpecForge ``build_target_layer_ids``; SGLang ``dflash_utils``.
    """
    if count <= 1:
        return (depth // 2,)
    return tuple(round(1 + index * (depth - 4) / (count - 1)) for index in range(count))


def _fits(boundaries: tuple[int, ...], target: Target) -> bool:
    return all(0 <= boundary <= target.num_hidden_layers for boundary in boundaries)


def from_ids(
    found: IdsAt,
    convention: Convention,
    target: Target,
    *,
    reason: str,
    confidence: float,
    ascending: bool = False,
    reduction: str = "none",
) -> Candidate | None:
    """Read ids under a convention; None when that names a boundary the target does not have."""
    boundaries = tuple(to_boundary(item, convention) for item in found.ids)
    if ascending:
        boundaries = tuple(sorted(boundaries))
    if not _fits(boundaries, target):
        return None
    wiring = Wiring(
        features=tuple(
            Feature(
                slot=slot,
                boundary=boundary,
                dim=target.hidden_size,
                reduction="mean" if reduction == "mean" else "none",
                streams=target.streams if reduction == "mean" else 1,
            )
            for slot, boundary in enumerate(boundaries)
        )
    )
    return Candidate(
        wiring=wiring,
        convention=convention,
        ids=found.ids,
        ids_key=found.key,
        reason=reason,
        confidence=confidence,
    )


def default_candidate(target: Target, *, reason: str, confidence: float, offset: int = 0) -> Candidate | None:
    """Return the default wiring of EAGLE-3 trainers, ``offset`` blocks later; None on a target too shallow for it."""
    boundaries = tuple(boundary + offset for boundary in default_boundaries(target))
    if not _fits(boundaries, target) or len(set(boundaries)) < len(boundaries):
        return None
    wiring = Wiring.from_boundaries(boundaries, dim=target.hidden_size)
    return Candidate(wiring=wiring, reason=reason, confidence=confidence)


def final_state(target: Target, *, normed: bool, reason: str, confidence: float) -> Candidate:
    """Return the wiring of a drafter that reads one state: norm(h[L]), or h[L] itself."""
    wiring = Wiring.from_boundaries((target.num_hidden_layers,), dim=target.hidden_size, final_norm=normed)
    return Candidate(wiring=wiring, reason=reason, confidence=confidence)


def with_embedding_slot(target: Target, *, normed: bool, reason: str, confidence: float) -> Candidate:
    """Return EAGLE-1's and MTP's wiring: the embedding of token t+1, then the last state at t."""
    embedding = Feature(slot=0, source="drafter_embedding", dim=target.hidden_size, row_offset=1)
    last = Feature(
        slot=1,
        boundary=target.num_hidden_layers,
        state="final_norm" if normed else "residual",
        dim=target.hidden_size,
    )
    return Candidate(wiring=Wiring(features=(embedding, last)), reason=reason, confidence=confidence)
