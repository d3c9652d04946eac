"""The drafter and the target inside of SGLang's workers: where the projection is, and what the target keeps."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor, nn

__all__ = ["Drafter", "Passage", "described", "drafter_of", "planes_of", "planes_place"]

_FLAGS = ("speculative_num_steps", "topk", "speculative_num_draft_tokens")


class Passage(nn.Module):
    """A place to tap for what is no argument of a module: the value is handed through."""

    def forward(self, hidden_states: Tensor) -> Tensor:
        """Return the value."""
        return hidden_states


class Drafter(NamedTuple):
    """The parts of a drafter: ``body`` takes the hidden states, ``fc`` projects them."""

    body: nn.Module
    fc: nn.Module
    fc_name: str


def drafter_of(model: nn.Module) -> Drafter:
    """Find the projection of a drafter as SGLang builds it (``model.fc`` in llama_eagle3.py and kimi_k25_eagle3.py).

    Raises:
        LookupError: it has none under that name.
    """
    named = dict(model.named_modules())
    found = [name for name in named if name == "fc" or name.endswith(".fc")]
    if len(found) != 1:
        shown = ", ".join(found) or "none"
        raise LookupError(f"{type(model).__name__} has no single module named fc (found: {shown})")
    name = found[0]
    return Drafter(named[name.rpartition(".")[0]], named[name], name)


def described(worker: Any) -> dict[str, Any]:
    """Return what the draft worker was built with, for the notes of a capture."""
    runner = worker.draft_runner
    said: dict[str, Any] = {
        "runtime": "sglang",
        "draft_worker": type(worker).__name__,
        "drafter": type(runner.model).__name__,
        "algorithm": getattr(getattr(worker, "speculative_algorithm", None), "name", ""),
    }
    # Sampled drafts are nobody's first choice, so they cannot be held against the weights.
    arguments = getattr(runner, "server_args", None)
    said["drafts_sampled"] = bool(getattr(arguments, "speculative_use_rejection_sampling", False))
    target = worker.target_worker.model_runner
    said["target"] = type(target.model).__name__
    ids = getattr(getattr(target, "spec_aux_config", None), "eagle_aux_hidden_state_layer_ids", None)
    # What SGLang read in the drafter's config: None where it found nothing and falls back on its default.
    said["resolved_ids"] = None if ids is None else [int(item) for item in ids]
    return said | {name: int(getattr(worker, name)) for name in _FLAGS if isinstance(getattr(worker, name, None), int)}


def planes_place(worker: Any) -> nn.Module | None:
    """Return the module of the target that holds SGLang's list of boundaries to keep."""
    target = worker.target_worker.model_runner.model
    return next((module for module in target.modules() if getattr(module, "layers_to_capture", None)), None)


def planes_of(place: nn.Module | None) -> dict[str, Any]:
    """Return the boundaries that the target keeps now: SGLang's own list, in the config's order."""
    layers = getattr(place, "layers_to_capture", None) or ()
    return {"layers_to_capture": [int(item) for item in layers]}
