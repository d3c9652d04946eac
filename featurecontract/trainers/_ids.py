"""A run's layer ids, with what they count and in which order they are fed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from featurecontract.contract import Feature, Wiring
from featurecontract.contract._conventions import CONVENTIONS, Convention, to_boundary
from featurecontract.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["LayerIds"]

_MOST = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerIds:
    """Layer ids as a trainer spells them.

    Attributes:
        ids: The ids of the run.
        convention: ``layer_output`` (id k is h[k + 1]) or ``layer_input`` (id k is h[k]).
        ascending: The trainer feeds them in the order of the layers, each once, whatever the list says.
        key: Where they were read, for the contract's provenance.
        certain: Whether they are the ids that the run used; else what the trainer would have used by its rules.
        reason: One line for the contract.
    """

    ids: tuple[int, ...]
    convention: Convention
    ascending: bool = False
    key: str = ""
    certain: bool = True
    reason: str = ""

    @classmethod
    def of(
        cls,
        ids: Iterable[int],
        convention: str,
        *,
        ascending: bool = False,
        key: str = "",
        certain: bool = True,
        reason: str = "",
    ) -> LayerIds:
        """Return checked ids.

        Raises:
            UsageError: an id is no whole number from -1, there are none, or the convention is unknown.
        """
        found = tuple(ids)
        if convention not in CONVENTIONS:
            raise UsageError(f"convention {convention!r}: write {' or '.join(CONVENTIONS)}")
        lowest = -1 if convention == "layer_output" else 0
        if not found or len(found) > _MOST or any(type(item) is not int or item < lowest for item in found):
            raise UsageError(f"layer ids {list(found)[:8]!r}: write whole numbers from {lowest}, at least one")
        named: Convention = "layer_output" if convention == "layer_output" else "layer_input"
        return cls(ids=found, convention=named, ascending=ascending, key=key, certain=certain, reason=reason)

    @property
    def boundaries(self) -> tuple[int, ...]:
        """The boundaries in the order in which they are fed."""
        found = tuple(to_boundary(item, self.convention) for item in self.ids)
        return tuple(sorted(set(found))) if self.ascending else found

    @property
    def wiring(self) -> Wiring:
        """The features that the projection is fed."""
        return Wiring(features=tuple(Feature(slot=slot, boundary=b) for slot, b in enumerate(self.boundaries)))

    def said(self) -> str:
        """Return the line for the contract's provenance."""
        order = ", fed in the order of the layers" if self.ascending else ""
        where = f" ({self.key})" if self.key else ""
        what = "outputs" if self.convention == "layer_output" else "inputs"
        line = f"layer {what} {list(self.ids)}{where}{order}"
        return f"{line}; {self.reason}" if self.reason else line
