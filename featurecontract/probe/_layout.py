"""Where a target keeps its decoder layers, final norm, embedding and head: found, or given as module paths."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn

from featurecontract.errors import UsageError

__all__ = ["Layout", "find_layout", "text_config", "vocab_size_of"]

_NORM_NAMES = ("norm", "final_layernorm", "ln_f", "norm_f", "final_layer_norm", "final_norm", "ln_out")
# Towers beside the language model, and extra heads: never the decoder.
_NOT_TEXT = ("vision", "visual", "image", "audio", "video", "encoder", "tower", "mtp", "projector", "speech", "talker")
_MAX_SHOWN = 6


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Layout:
    """The modules that are tapped, with their paths for messages; ``head`` and ``embedding`` are None if not found."""

    layers: tuple[nn.Module, ...]
    norm: nn.Module
    layers_path: str
    norm_path: str
    embedding: nn.Module | None = None
    head: nn.Module | None = None


def text_config(model: nn.Module) -> Any:
    """Return the language model's part of a transformers config, or None."""
    config = getattr(model, "config", None)
    inner = getattr(config, "get_text_config", None)
    try:
        return inner() if callable(inner) else config
    except (ValueError, AttributeError):  # several text configs: the outer one says as much as any
        return config


def vocab_size_of(model: nn.Module, layout: Layout) -> int | None:
    """Return how many token ids a target knows: its config's word, else the rows of its embedding."""
    stated = getattr(text_config(model), "vocab_size", None)
    found = stated if isinstance(stated, int) else getattr(layout.embedding, "num_embeddings", None)
    return found if isinstance(found, int) else None


def find_layout(
    model: nn.Module,
    *,
    layers: str | None = None,
    norm: str | None = None,
    embedding: str | None = None,
    head: str | None = None,
) -> Layout:
    """Find the modules of a target.

    Args:
        model: Any module; nothing is run.
        layers: Path of the list of decoder layers (``model.layers``), when it cannot be found or is another one.
        norm: Path of the final norm.
        embedding: Path of the token embedding.
        head: Path of the output head.

    Raises:
        UsageError: a path leads nowhere, or the layers or the norm cannot be found; it lists what there is.
    """
    path = layers if layers is not None else _find_layers(model)
    stack = _at(model, path, "--layers")
    found = tuple(stack) if isinstance(stack, nn.ModuleList | nn.Sequential) else tuple(stack.children())
    if not found:
        raise UsageError(f"--layers: {path!r} holds no layers; name the list of decoder layers, such as model.layers")
    norm_path = norm if norm is not None else _find_norm(model, path)
    return Layout(
        layers=found,
        norm=_at(model, norm_path, "--norm"),
        layers_path=path,
        norm_path=norm_path,
        embedding=_at(model, embedding, "--embedding") if embedding else _embedding(model, path),
        head=_at(model, head, "--head") if head else _head(model),
    )


def _at(model: nn.Module, path: str, option: str) -> nn.Module:
    try:
        found: object = model.get_submodule(path)
    except AttributeError:
        found = None
    if not isinstance(found, nn.Module):
        names = [name for name, _ in model.named_modules() if name and name.count(".") < 2]  # noqa: PLR2004
        raise UsageError(f"{option}: the target has no module {path[:100]!r}; it has {_some(names)}")
    return found


def _some(names: list[str]) -> str:
    shown = ", ".join(names[:_MAX_SHOWN])
    return shown + (f" and {len(names) - _MAX_SHOWN} more" if len(names) > _MAX_SHOWN else "") or "none"


def _find_layers(model: nn.Module) -> str:
    lists = {name: len(item) for name, item in model.named_modules() if isinstance(item, nn.ModuleList) and len(item)}
    # The experts of a layer are lists too: only those that no other list holds.
    outer = {name: count for name, count in lists.items() if not any(name.startswith(f"{up}.") for up in lists)}
    text = {name: n for name, n in outer.items() if not any(w in part for part in name.split(".") for w in _NOT_TEXT)}
    depth = getattr(text_config(model), "num_hidden_layers", None)
    fitting: list[str] = [name for name, count in text.items() if depth is None or count == depth]
    if len(fitting) == 1:
        return fitting[0]
    with_norm = [name for name in fitting if _norms_beside(model, name)]
    if len(with_norm) == 1:
        return with_norm[0]
    kept = [f"{name} ({count} long)" for name, count in outer.items()]
    raise UsageError(
        f"the decoder layers of this {type(model).__name__} cannot be told; give --layers PATH --norm PATH "
        f"(lists in it: {_some(kept)})"
    )


def _norms_beside(model: nn.Module, path: str) -> list[str]:
    """Return the paths of the norms that stand beside the layers, else beside what holds them; known names first."""
    parent = path.rpartition(".")[0]
    while True:
        holder = model.get_submodule(parent) if parent else model
        prefix = f"{parent}." if parent else ""
        named = dict(holder.named_children())
        known = [prefix + name for name in _NORM_NAMES if name in named]
        if known:
            return known[:1]
        other = [prefix + name for name, item in named.items() if type(item).__name__.lower().endswith("norm")]
        if other or not parent:
            return other
        parent = parent.rpartition(".")[0]


def _find_norm(model: nn.Module, path: str) -> str:
    found = _norms_beside(model, path)
    if len(found) == 1:
        return found[0]
    raise UsageError(f"the final norm behind {path} cannot be told; give --norm PATH (norms beside it: {_some(found)})")


def _embedding(model: nn.Module, path: str) -> nn.Module | None:
    getter = getattr(model, "get_input_embeddings", None)
    try:
        found = getter() if callable(getter) else None
    # NotImplementedError is how transformers says that a model keeps none where it looks.
    except (AttributeError, NotImplementedError):
        found = None
    if isinstance(found, nn.Module):
        return found
    parent = path.rpartition(".")[0]
    holder = model.get_submodule(parent) if parent else model
    beside = [item for item in holder.children() if isinstance(item, nn.Embedding)]
    return beside[0] if len(beside) == 1 else None


def _head(model: nn.Module) -> nn.Module | None:
    getter = getattr(model, "get_output_embeddings", None)
    try:
        found = getter() if callable(getter) else None
    except (AttributeError, NotImplementedError):
        found = None
    if not isinstance(found, nn.Module):
        found = getattr(model, "lm_head", None)
    return found if isinstance(found, nn.Module) else None
