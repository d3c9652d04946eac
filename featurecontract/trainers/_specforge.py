"""SpecForge: behind ``export_to_hf`` and ``export_to_sglang``, with the run's ids from where they still are."""

from __future__ import annotations

import contextlib
import json
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from featurecontract.contract import CONTRACT_FILE, Contract, load
from featurecontract.contract.strict_json import read_json
from featurecontract.errors import UsageError
from featurecontract.trainers._attach import Attachment
from featurecontract.trainers._emitter import Emitter, is_main_process
from featurecontract.trainers._ids import LayerIds

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["attach_specforge"]

_RUN_KEY = "model.aux_hidden_state_layer_ids"
_TEMPLATE_KEY = "eagle_config.eagle_aux_hidden_state_layer_ids"


def attach_specforge(
    *, target: Any, ids: Iterable[int] | None = None, strict: bool = False, **options: Any
) -> Attachment:
    """Leave a contract and its probe beside SpecForge's checkpoints and in every directory that it exports to.

    One line before training or exporting. The ids count layer outputs (id k is h[k + 1]); SGLang, which makes the
    features, hands them over in the order of the layers. SpecForge's export copies the draft config's ids and loses an
    override of the run, so the ids are taken from the first of: ``ids``; what this process resolved for the run; the
    contract in the training checkpoint; the capture layers in its ``training_state.pt``; the draft config; SpecForge's
    default. The last two are marked as inferred: an override that was not passed on cannot be seen any more.

    Args:
        target: The target's directory or module.
        ids: The run's ids, ``model.aux_hidden_state_layer_ids``.
        strict: Raise where no contract can be written, instead of logging it once.
        options: Further arguments of ``Emitter``.

    Raises:
        UsageError: SpecForge is not installed, or the ids are none.
    """
    try:
        modules = [import_module(f"specforge.export.{name}") for name in ("to_hf", "to_sglang")]
        providers = import_module("specforge.algorithms.model_providers")
        manager = import_module("specforge.training.checkpoint").CheckpointManager
    except ImportError as error:
        raise UsageError(f"attach_specforge needs specforge ({error})") from None
    run = _Run(target, {"strict": strict, "trainer_version": _version(), "d2t": "offset"} | options)
    if ids is not None:
        run.ids = _layer_ids(ids, _RUN_KEY, "stated for the run")
    attachment = Attachment(strict=strict)
    _watch_training(attachment, run, providers, manager)

    def exported(result: Any, checkpoint_path: Any, draft_config_path: Any, *_args: Any, **_kwargs: Any) -> None:
        if is_main_process():
            run.exported(str(result), str(checkpoint_path), str(draft_config_path))

    for module, name in zip(modules, ("export_to_hf", "export_to_sglang"), strict=True):
        attachment.after(module, name, exported)
    return attachment


def _watch_training(attachment: Attachment, run: _Run, providers: Any, manager: Any) -> None:
    """Learn the run's ids where SpecForge resolves them, and leave a contract beside its training checkpoints."""

    def resolved(result: Any, *_args: Any, **_kwargs: Any) -> None:
        if run.ids is None:
            run.ids = _layer_ids(result, "resolved", "what SpecForge resolved for the run")

    def assembled(_result: Any, cfg: Any, draft_config: Any, target_config: Any, **_kwargs: Any) -> None:
        # An offline run is assembled without asking for its layers; its data were captured by the same rule.
        if run.ids is None:
            providers.resolve_eagle_capture_layers(cfg, draft_config, target_config)

    def saved(result: Any, *_args: Any, **_kwargs: Any) -> None:
        if run.ids is not None:
            run.emit(run.ids, Path(result))

    attachment.after(providers, "resolve_eagle_capture_layers", resolved)
    attachment.after(manager, "save", saved)
    with contextlib.suppress(ImportError):  # exporting needs none of what training needs
        attachment.after(import_module("specforge.training.assembly"), "_model_resume_provenance", assembled)


class _Run:
    """One run: its ids once they are known, and an emitter for each list of ids."""

    def __init__(self, target: Any, options: dict[str, Any]) -> None:
        self.target, self.options = target, options
        self.ids: LayerIds | None = None
        self.emitters: dict[LayerIds, Emitter] = {}

    def emit(self, ids: LayerIds, out: Path) -> None:
        if ids not in self.emitters:
            self.emitters[ids] = Emitter(target=self.target, ids=ids, trainer="SpecForge", **self.options)
        self.emitters[ids].emit(out)

    def exported(self, out: str, checkpoint: str, draft_config: str) -> None:
        found = self.ids or _from_contract(checkpoint) or _from_state(checkpoint)
        self.emit(found or _from_template(draft_config, self.target), Path(out))


def _layer_ids(ids: Iterable[int], key: str, reason: str, *, certain: bool = True) -> LayerIds:
    return LayerIds.of(
        [int(item) for item in ids], "layer_output", ascending=True, key=key, certain=certain, reason=reason
    )


def _directory(checkpoint: str) -> Path:
    place = Path(checkpoint.removeprefix("file://"))
    return place.parent if place.is_file() else place


def _from_contract(checkpoint: str) -> LayerIds | None:
    """Return the ids that a training process left beside its checkpoint."""
    place = _directory(checkpoint)
    if not (place / CONTRACT_FILE).is_file():
        return None
    held: Contract = load(place)
    ids = held.provenance.ids
    if ids is None or held.provenance.convention != "layer_output":
        return None
    return _layer_ids(ids, held.provenance.ids_key or "", "the contract beside the training checkpoint")


def _from_state(checkpoint: str) -> LayerIds | None:
    """Return the capture layers that an online run keeps in its training state for resuming."""
    state = import_module("specforge.export.checkpoint_io").resolve_training_state(checkpoint)
    layers = _capture_layers(state)
    return _layer_ids(layers, "capture_layers", "kept in training_state.pt") if layers else None


def _capture_layers(value: Any, depth: int = 0) -> tuple[int, ...] | None:
    """Find ``capture_layers`` in nested mappings and in SpecForge's frozen pairs."""
    if depth > 6:  # noqa: PLR2004
        return None
    if isinstance(value, dict):
        items = list(value.items())
    elif isinstance(value, (tuple, list)) and all(isinstance(item, (tuple, list)) and len(item) == 2 for item in value):  # noqa: PLR2004
        items = [tuple(item) for item in value]
    else:
        return None
    for key, entry in items:
        if key == "capture_layers" and isinstance(entry, (tuple, list)) and entry:
            return tuple(int(item) for item in entry)
    return next((found for _, entry in items if (found := _capture_layers(entry, depth + 1))), None)


def _from_template(draft_config: str, target: Any) -> LayerIds:
    """Return what SpecForge would resolve without an override: the draft config's ids, else its default."""
    content = read_json(Path(draft_config))
    eagle = content.get("eagle_config") if isinstance(content, dict) else None
    ids = eagle.get("eagle_aux_hidden_state_layer_ids") if isinstance(eagle, dict) else None
    unsure = "an override of the run, if there was one, is not in the checkpoint"
    if ids:
        return _layer_ids(ids, _TEMPLATE_KEY, f"of the draft config; {unsure}", certain=False)
    depth = _depth(target)
    default = (1, depth // 2 - 1, depth - 4)
    return _layer_ids(default, "default", f"SpecForge's default for {depth} layers; {unsure}", certain=False)


def _depth(target: Any) -> int:
    if isinstance(target, (str, Path)):
        raw = json.loads((Path(target) / "config.json").read_text("utf-8"))
        found: Mapping[str, Any] = raw.get("text_config", raw)
        return int(found["num_hidden_layers"])
    config = target.config
    return int(getattr(config, "text_config", config).num_hidden_layers)


def _version() -> str | None:
    try:
        return version("specforge")
    except PackageNotFoundError:
        return None
