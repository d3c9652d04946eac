"""Drafters that differ from the declared one as runtimes get it wrong: another head, map, embedding, rope or state."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from featurecontract.replay._drafter import Drafter
from featurecontract.replay._rope import RopeSpec

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from featurecontract.replay._spec import DrafterSpec
    from featurecontract.replay._target import TargetParts

__all__ = ["Alternative", "alternatives"]

#: Bases that configs state, and 10000, what a runtime takes that reads none.
_THETAS = (10000.0, 500000.0, 1000000.0)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Alternative:
    """One way to run the drafter.

    Attributes:
        name: What is other, such as ``the recurrent state post_norm``.
        part: ``head``, ``map``, ``embedding``, ``rope``, ``state``, ``position``, ``residual`` or ``norm``.
        drafter: The weights as they are run then; tensors are shared with the declared one.
        advance: Whether steps 2 and on stand at the next positions.
    """

    name: str
    part: str
    drafter: Drafter
    advance: bool = True


def alternatives(
    drafter: Drafter,
    *,
    target: TargetParts | None = None,
    own_embedding: Tensor | None = None,
    behind_norm: bool = False,
) -> Iterator[Alternative]:
    """Yield every alternative that could draft other tokens than the declared drafter.

    Args:
        drafter: As declared.
        target: Weights of the target, for its head and its embedding.
        own_embedding: ``[vocabulary, hidden]`` of the drafter's own file, where another one is declared.
        behind_norm: The captured rows are what ``fc`` receives, so that a norm before it cannot be judged.
    """
    yield from _heads(drafter, target)
    yield from _maps(drafter)
    lent = target.embedding if target is not None else None
    for name, given in (("the target's embedding", lent), ("its own embedding", own_embedding)):
        if given is not None and _other(drafter, "embed.weight", given):
            yield Alternative(name=name, part="embedding", drafter=_changed(drafter, {"embed.weight": given}))
    for name, rope in _ropes(drafter.spec.rope):
        yield Alternative(name=name, part="rope", drafter=_turned(drafter, rope))
    if drafter.spec.mla is not None and drafter.spec.mla.scale != drafter.spec.head_dim**-0.5:
        yield Alternative(
            name="YaRN's mscale left out of the scores",
            part="rope",
            drafter=_turned(drafter, drafter.spec.rope, plain=True),
        )
    yield from _states(drafter, behind_norm=behind_norm)


def _heads(drafter: Drafter, target: TargetParts | None) -> Iterator[Alternative]:
    head = target.head if target is not None else None
    if head is None or head.shape[1] != drafter.spec.hidden_size:
        return
    if head.shape[0] != drafter.spec.draft_vocab_size:
        whole = _changed(drafter, {"head.weight": head}, to_target=None, keep_map=False)
        whole.spec = replace(whole.spec, draft_vocab_size=int(head.shape[0]))
        yield Alternative(name="the target's head", part="head", drafter=whole)
    chosen = head if drafter.to_target is None else _rows(head, drafter.to_target)
    if chosen is not None and _other(drafter, "head.weight", chosen):
        name = "the target's head" + (" at the drafter's tokens" if drafter.to_target is not None else "")
        yield Alternative(name=name, part="head", drafter=_changed(drafter, {"head.weight": chosen}))


def _rows(head: Tensor, ids: Tensor) -> Tensor | None:
    return head[ids.cpu()] if int(ids.max()) < head.shape[0] and int(ids.min()) >= 0 else None


def _maps(drafter: Drafter) -> Iterator[Alternative]:
    ids = drafter.to_target
    if ids is None:
        return
    counted = torch.arange(len(ids), device=ids.device)
    for name, other in (
        ("d2t left out", None),
        # What is stored as target - draft is then taken for the target itself, and the other way round.
        ("d2t read as target ids", ids - counted),
        ("d2t read as offsets", ids + counted),
    ):
        # A map of every second token stores 0, 1, 2, ...: read as target ids that is no map at all.
        if other is None or not torch.equal(other, counted):
            yield Alternative(name=name, part="map", drafter=_changed(drafter, {}, to_target=other, keep_map=False))


def _ropes(rope: RopeSpec) -> Iterator[tuple[str, RopeSpec]]:
    style = "rotate-half" if rope.interleaved else "interleaved"
    yield f"{style} rope", replace(rope, interleaved=not rope.interleaved)
    plain = RopeSpec(theta=rope.theta, partial=rope.partial, interleaved=rope.interleaved)
    if rope.kind != "default":
        yield "the rope scaling left out", plain
    if rope.partial != 1.0:
        yield "all channels rotated", replace(rope, partial=1.0)
    for theta in _THETAS:
        if theta != rope.theta:
            yield f"rope theta {theta:.0f}", replace(rope, theta=theta)
            if rope.kind != "default":
                yield f"rope theta {theta:.0f} and no scaling", replace(plain, theta=theta)


def _turned(drafter: Drafter, rope: RopeSpec, *, plain: bool = False) -> Drafter:
    """Return the drafter with another rope; latent attention has its part in the scale of the scores too."""
    mla = drafter.spec.mla
    if mla is not None and (plain or rope.kind == "default"):
        mla = replace(mla, scale=drafter.spec.head_dim**-0.5)
    return _spec(drafter, rope=rope, mla=mla)


def _states(drafter: Drafter, *, behind_norm: bool) -> Iterator[Alternative]:
    spec = drafter.spec
    yield Alternative(
        name="positions that do not advance in steps 2 and on", part="position", drafter=drafter, advance=False
    )
    if spec.kind != "eagle3":
        return
    if "norm.weight" in drafter.weights:
        other = "post_norm" if spec.recurrent == "pre_norm" else "pre_norm"
        yield Alternative(name=f"the recurrent state {other}", part="state", drafter=_spec(drafter, recurrent=other))
        word = "left out" if spec.head_norm else "put in"
        yield Alternative(
            name=f"the norm before the head {word}", part="norm", drafter=_spec(drafter, head_norm=not spec.head_norm)
        )
    flipped = not spec.norm_before_residual
    yield Alternative(
        name=f"norm_before_residual {str(flipped).lower()}",
        part="residual",
        drafter=_spec(drafter, norm_before_residual=flipped),
    )
    if spec.pre_norm != "none" and not behind_norm:
        yield Alternative(name="the norm before fc left out", part="norm", drafter=_spec(drafter, pre_norm="none"))
    if "fc.bias" in drafter.weights:
        yield Alternative(name="the bias of fc left out", part="norm", drafter=_without(drafter, "fc.bias"))


def _other(drafter: Drafter, name: str, given: Tensor) -> bool:
    """Whether a tensor could stand in place of the drafter's, and is not the same."""
    own = drafter.weights[name]
    return own.shape[-1] == given.shape[-1] and not (own.shape == given.shape and torch.equal(own, _like(own, given)))


def _like(own: Tensor, given: Tensor) -> Tensor:
    return given.to(own.device, own.dtype)


def _changed(
    drafter: Drafter, weights: dict[str, Tensor], *, to_target: Tensor | None = None, keep_map: bool = True
) -> Drafter:
    own = drafter.weights
    changed = own | {name: _like(own["head.weight"], given) for name, given in weights.items()}
    return Drafter(drafter.spec, changed, drafter.to_target if keep_map else to_target)


def _without(drafter: Drafter, name: str) -> Drafter:
    kept = {key: value for key, value in drafter.weights.items() if key != name}
    return Drafter(drafter.spec, kept, drafter.to_target)


def _spec(drafter: Drafter, **fields: object) -> Drafter:
    spec: DrafterSpec = replace(drafter.spec, **fields)  # type: ignore[arg-type]
    return Drafter(spec, drafter.weights, drafter.to_target)
