"""Ids whose convention the file does not state: both readings, weighed by what the values themselves say."""

from __future__ import annotations

from typing import TYPE_CHECKING

from featurecontract.dialects._family import Candidate, Target, default_boundaries, from_ids

if TYPE_CHECKING:
    from featurecontract.dialects._view import IdsAt

__all__ = ["both_readings"]

# A reading that equals the default of every trainer is believed over a prior, never beyond this.
SURE = 0.95


def both_readings(
    found: IdsAt, target: Target, *, output_prior: float, dialect: str, ascending: bool = False
) -> list[Candidate]:
    """Return the readings that the target's depth allows, the likelier one first.

    The values settle it when one reading names a layer that does not exist, weigh it when the list is the default
    recipe in one spelling, and else leave the dialect's own prior for ``layer_output``.
    """
    default = default_boundaries(target)
    ids = tuple(sorted(found.ids)) if ascending else found.ids
    prior, why = output_prior, f"{dialect} ids usually count the layer whose output is taken"
    as_output = tuple(item + 1 for item in ids)
    if as_output == default:
        prior, why = SURE, "as layer outputs the list is every trainer's default h[2], h[L//2], h[L-3]"
    elif ids == default:
        prior = min(prior, 0.45)
        why = f"{dialect} ids usually count layer outputs, although as layer inputs the list is the common default"
    elif -1 in ids:
        prior, why = SURE, "id -1 is the embedding in the layer-output spelling"
    elif 0 in ids:
        prior, why = min(prior, 0.4), f"{dialect} ids usually count layer outputs, which makes id 0 the first block"
    output = from_ids(found, "layer_output", target, reason=why, confidence=prior, ascending=ascending)
    other = {
        True: "as layer inputs the list is every trainer's default h[2], h[L//2], h[L-3]",
        False: "the same key counts completed layers in vLLM, speculators and some NVIDIA releases",
    }[ids == default]
    entering = from_ids(found, "layer_input", target, reason=other, confidence=round(1 - prior, 4), ascending=ascending)
    if output is None and entering is not None:
        only = "only this reading names layers that the target has"
        return [from_ids(found, "layer_input", target, reason=only, confidence=SURE, ascending=ascending) or entering]
    if entering is None and output is not None:
        only = "only this reading names layers that the target has"
        return [from_ids(found, "layer_output", target, reason=only, confidence=SURE, ascending=ascending) or output]
    both = [candidate for candidate in (output, entering) if candidate is not None]
    return sorted(both, key=lambda candidate: -candidate.confidence)
