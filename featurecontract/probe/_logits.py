"""The proof that the taps are right: head(norm(h[L])) is what the model itself answers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from featurecontract.errors import InputError
from featurecontract.probe._layout import text_config

if TYPE_CHECKING:
    from torch import Tensor, nn

    from featurecontract.probe._layout import Layout
    from featurecontract.probe._taps import Tapped

__all__ = ["check_logits"]

# In bfloat16 a second run of norm and head agrees to 0.004; h[L - 1] in place of h[L] is off by 0.1 and more.
_TOLERANCE = 0.02


def check_logits(model: nn.Module, layout: Layout, tapped: Tapped) -> str:
    """Refuse taps whose last boundary does not lead to the model's logits; return a note where nothing can be said.

    A factor on the logits (Cohere, Granite, MiniCPM) and the soft cap of Gemma 2 are allowed for.

    Raises:
        InputError: ``probe-degenerate``.
    """
    if tapped.logits is None or layout.head is None:
        missing = "no logits" if tapped.logits is None else "no output head"
        return f"the target has {missing}: that h[{len(tapped.boundaries) - 1}] leads to its answer was not checked"
    mine = _answer(layout, tapped)
    if mine is None or mine.shape != tapped.logits.shape:
        return "the output head could not be run on norm(h[L]): that it leads to the target's answer was not checked"
    config = text_config(model)
    cap = getattr(config, "final_logit_softcapping", None)
    readings = [mine, *([cap * torch.tanh(mine / cap)] if isinstance(cap, float | int) and cap else [])]
    off = min(_off(reading, tapped.logits) for reading in readings)
    if not off <= _TOLERANCE:
        last = f"head(norm(h[{len(tapped.boundaries) - 1}]))"
        raise InputError.single(
            "the probe",
            f"{last} is not the target's own logits: they differ by {off:.3f} of their norm",
            next_step=f"the taps are wrong; name the modules with --layers (now {layout.layers_path}) and --norm "
            f"(now {layout.norm_path})",
            slug="probe-degenerate",
        )
    return ""


def _answer(layout: Layout, tapped: Tapped) -> Tensor | None:
    head = layout.head
    place = next((p for m in (layout.norm, head) if m is not None for p in m.parameters()), None)
    device = place.device if place is not None and place.device.type != "meta" else torch.device("cpu")
    last = tapped.boundaries[-1].to(device, tapped.dtype).unsqueeze(0)
    with torch.no_grad():
        try:
            normed = layout.norm(last)
            weight = next(head.parameters()) if head is not None else normed
            answer = head(normed.to(weight.device, weight.dtype)) if head is not None else None
        except (RuntimeError, TypeError, ValueError, StopIteration):
            return None
    return answer[0].to("cpu", torch.float32) if isinstance(answer, torch.Tensor) else None


def _off(mine: Tensor, own: Tensor) -> float:
    """Return the relative difference that the best factor leaves, infinite for a negative one or NaN."""
    if not bool(torch.isfinite(own).all() and torch.isfinite(mine).all()):
        return float("inf")
    factor = float((mine * own).sum() / mine.pow(2).sum().clamp(min=1e-30))
    return float((own - factor * mine).norm() / own.norm().clamp(min=1e-30)) if factor > 0 else float("inf")
