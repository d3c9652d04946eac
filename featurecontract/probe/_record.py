"""A target and a wiring become a probe: tap every plane, prove the taps, keep golden rows and fingerprints."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from featurecontract.errors import InputError, Problem, UsageError
from featurecontract.probe._data import Bank, ProbeData
from featurecontract.probe._degenerate import check_boundaries, check_probe, check_tokens, plane_fault
from featurecontract.probe._floor import noise_floor
from featurecontract.probe._logits import check_logits
from featurecontract.probe._norm import final_norm_of
from featurecontract.probe._planes import Plane
from featurecontract.probe._storage import rounded
from featurecontract.probe._taps import tap

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor, nn

    from featurecontract.contract import Feature, Wiring
    from featurecontract.probe._layout import Layout
    from featurecontract.probe._taps import Tapped

__all__ = ["CHANNELS", "MAX_ROWS", "Recording", "pick_channels", "record_probe"]

CHANNELS = 128
MAX_ROWS = 256
# Rounding of a scaled embedding in bfloat16.
_SAME = 0.01


@dataclass(frozen=True, slots=True, eq=False)
class Recording:
    """A probe with what was learned of the target on the way."""

    data: ProbeData
    num_hidden_layers: int
    hidden_size: int
    dtype: str
    streams: int = 1


def pick_channels(width: int, *, seed: int, count: int = CHANNELS) -> Tensor:
    """Return ``count`` ascending channels of ``0..width - 1``, one drawn from each of ``count`` equal column blocks."""
    if width <= count:
        return torch.arange(width)
    edges = torch.linspace(0, width, count + 1, dtype=torch.float64).long()
    draw = torch.rand(count, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return edges[:-1] + (draw * (edges[1:] - edges[:-1])).long()


def record_probe(
    model: nn.Module,
    layout: Layout,
    wiring: Wiring,
    token_ids: Sequence[int],
    *,
    second_dtype: torch.dtype | None = torch.bfloat16,
    seed: int = 0,
    forward: Callable[[nn.Module, Tensor], Any] | None = None,
    progress: Callable[[str], None] | None = None,
) -> Recording:
    """Run a target on the probe's tokens and return golden rows, fingerprints, final norm and noise floor.

    Args:
        model: The target, on any device; nothing of it is changed.
        layout: Where its decoder layers, norm, embedding and head are (``find_layout``).
        wiring: The features whose golden rows are kept.
        token_ids: One sequence from position 0; 64 tokens are enough, at most 256.
        second_dtype: For the noise floor; None, or the target's own, for another batch shape.
        seed: Chooses the fingerprints' channels.
        forward: ``forward(model, ids)`` runs the target on int64 ``[batch, rows]`` where calling it does not.
        progress: Called with one line per step.

    Raises:
        InputError: ``probe-degenerate``, with every reason; or the target cannot be run.
        UsageError: more rows than can be kept.
    """
    if len(token_ids) > MAX_ROWS:
        raise UsageError(f"{len(token_ids)} rows; a probe has at most {MAX_ROWS}, and 64 are enough")
    vocab = getattr(layout.embedding, "num_embeddings", None)
    check_tokens(token_ids, vocab_size=vocab if isinstance(vocab, int) else None)
    say = progress or (lambda _line: None)
    ids = torch.tensor([list(token_ids)])
    say(f"running the target on {len(token_ids)} tokens")
    tapped = _run(model, layout, ids, forward)
    check_boundaries([(Plane("boundary", b), values) for b, values in enumerate(tapped.boundaries)])
    notes = [check_logits(model, layout, tapped), _embedding_note(tapped)]
    width = tapped.boundaries[0].shape[1]
    channels = pick_channels(width, seed=seed)
    planes, fingerprints, left_out = _bank(tapped, channels)
    golden, unrecorded = _golden(tapped, wiring)
    say("running it again for the noise floor")
    slots = sorted({f.boundary for f in wiring.features if f.source == "target" and f.boundary is not None})
    floor, how = noise_floor(
        model,
        layout,
        ids,
        [(b, tapped.boundaries[b]) for b in slots],
        channels,
        second_dtype=second_dtype,
        forward=forward,
    )
    eps = float(torch.finfo(tapped.dtype).eps)
    norm = (
        final_norm_of(layout.norm, tapped.boundaries[-1], tapped.normed, eps=eps)
        if tapped.normed is not None and tapped.streams == 1
        else None
    )
    if norm is None:
        notes.append("the final norm is no RMSNorm that could be reproduced; its weight is not kept")
    if unrecorded:
        notes.append(f"slots {list(unrecorded)} are fed by no tensor of the target; their columns are zero")
    data = ProbeData(
        token_ids=ids[0],
        golden=rounded(golden),
        bank=Bank(planes=planes, values=rounded(fingerprints), channels=channels),
        final_norm=norm,
        gram=_gram(golden, wiring),
        floor=floor,
        notes=tuple(note for note in (*notes, *left_out, how) if note),
        unrecorded=unrecorded,
    )
    check_probe(data)
    return Recording(
        data=data,
        num_hidden_layers=len(tapped.boundaries) - 1,
        hidden_size=width // tapped.streams,
        dtype=str(tapped.dtype).removeprefix("torch."),
        streams=tapped.streams,
    )


def _run(model: nn.Module, layout: Layout, ids: Tensor, forward: Callable[[nn.Module, Tensor], Any] | None) -> Tapped:
    try:
        return tap(model, layout, ids, forward=forward)
    except (RuntimeError, TypeError, ValueError, IndexError, KeyError, AttributeError) as error:
        raise InputError.single(
            type(model).__name__,
            f"the forward pass failed: {type(error).__name__}: {str(error)[:300]}",
            next_step="make a plain forward pass over the probe's tokens work first",
        ) from error


def _embedding_note(tapped: Tapped) -> str:
    """Say how h[0] differs from what the embedding gave: people feed the unscaled one by mistake."""
    entry, given = tapped.boundaries[0], tapped.embedded
    if given is None or given.shape != entry.shape or torch.equal(entry, given):
        return ""
    factor = float((entry * given).sum() / given.pow(2).sum().clamp(min=1e-30))
    off = float((entry - factor * given).norm() / entry.norm())
    if off < _SAME:
        return f"h[0] is the embedding's output times {factor:.4g}"
    return "h[0] is not the embedding's output: positions, a norm or a projection come between"


def _bank(tapped: Tapped, channels: Tensor) -> tuple[tuple[Plane, ...], Tensor, list[str]]:
    depth = len(tapped.boundaries) - 1
    planes = {Plane("boundary", b): values[:, channels] for b, values in enumerate(tapped.boundaries)}
    seen = {values.contiguous().numpy().tobytes() for values in planes.values()}
    left_out: list[str] = []
    inner = [(Plane("mid_block", b), values) for b, values in sorted(tapped.mid.items())]
    inner += [(Plane("mlp_output", b), values) for b, values in sorted(tapped.mlp.items())]
    for plane, values in inner:
        kept = values[:, channels]
        key = kept.contiguous().numpy().tobytes()
        fault = plane_fault(kept) or ("is bit for bit another plane" if key in seen else "")
        if fault:
            left_out.append(f"{plane} {fault}; it is left out")
            continue
        seen.add(key)
        planes[plane] = kept
    for kind, held, wanted in (
        ("mid-block", set(tapped.mid), set(range(depth))),
        ("MLP output", set(tapped.mlp), set(range(1, depth + 1))),
    ):
        missing = sorted(wanted - held)
        if missing:
            shown = ", ".join(map(str, missing[:8])) + (f" and {len(missing) - 8} more" if len(missing) > 8 else "")  # noqa: PLR2004
            left_out.append(f"{kind} planes not found by their sum, left out: {shown}")
    return tuple(planes), torch.stack(list(planes.values())), left_out


def _golden(tapped: Tapped, wiring: Wiring) -> tuple[Tensor, tuple[int, ...]]:
    rows = tapped.boundaries[0].shape[0]
    hidden = tapped.boundaries[0].shape[1] // tapped.streams
    parts, unrecorded, problems = [], [], []
    for feature in wiring.features:
        values = _slot(tapped, feature)
        if values is None:
            unrecorded.append(feature.slot)
            values = torch.zeros(rows, feature.dim or hidden)
        if feature.dim is not None and values.shape[1] != feature.dim:
            message = f"the contract gives it {feature.dim} columns, the target's {feature} has {values.shape[1]}"
            step = "record from the target that the drafter was trained for"
            problems.append(Problem(place=f"features[{feature.slot}]", message=message, next_step=step))
        parts.append(values * feature.scale)
    if problems:
        raise InputError("the probe", tuple(problems), slug="target-mismatch")
    return torch.cat(parts, dim=1), tuple(unrecorded)


def _slot(tapped: Tapped, feature: Feature) -> Tensor | None:
    """Return the rows of a slot as the target makes them, None for one that is not made by the target."""
    if feature.source != "target" or feature.boundary is None:
        return None
    depth = len(tapped.boundaries) - 1
    if feature.boundary > depth:
        raise InputError.single(
            "the probe",
            f"h[{feature.boundary}] does not exist, the target has {depth} layers",
            place=f"features[{feature.slot}]",
            next_step="record from the target that the drafter was trained for",
            slug="target-mismatch",
        )
    values = tapped.boundaries[feature.boundary]
    if feature.state == "final_norm":
        return tapped.normed
    if feature.reduction == "mean" and tapped.streams > 1:
        return values.reshape(values.shape[0], tapped.streams, -1).mean(dim=1)
    return values


def _gram(golden: Tensor, wiring: Wiring) -> Tensor:
    width = golden.shape[1] // len(wiring.features)
    dims = [feature.dim or width for feature in wiring.features]
    parts: tuple[Tensor, ...] = golden.split(dims, dim=1)  # type: ignore[no-untyped-call]
    units = [torch.nn.functional.normalize(part, dim=1) for part in parts]
    return torch.stack([unit @ unit.T for unit in units])
