"""ModelOpt: behind ``EagleExporter.export``, which ``export_speculative_decoding`` calls."""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from featurecontract.contract import Feature, Wiring
from featurecontract.errors import UsageError
from featurecontract.trainers._attach import Attachment
from featurecontract.trainers._emitter import Emitter, is_main_process
from featurecontract.trainers._ids import LayerIds

__all__ = ["attach_modelopt"]

_KEY = "eagle_config.eagle_aux_hidden_state_layer_ids"


def attach_modelopt(*, target: Any = None, strict: bool = False, **options: Any) -> Attachment:
    """Leave a contract and its probe in every directory that ModelOpt exports an EAGLE drafter to.

    One line before ``export_speculative_decoding``. The ids are those of the converted model; they count layer outputs
    (id k is h[k + 1]), and hooks on the layers collect them in the order of the layers, whatever the list says.

    Args:
        target: The target's directory or module; by default the model that is exported, which holds it. A model that
            was converted for offline training has no layers: name the directory then.
        strict: Raise where no contract can be written, instead of logging it once.
        options: Further arguments of ``Emitter``.

    Raises:
        UsageError: ModelOpt is not installed.
    """
    try:
        exporter = import_module("modelopt.torch.export.plugins.hf_spec_export").EagleExporter
    except ImportError as error:
        raise UsageError(f"attach_modelopt needs nvidia-modelopt with transformers ({error})") from None
    attachment = Attachment(strict=strict)

    def exported(_result: Any, self: Any, export_dir: Any, *_args: Any, **_kwargs: Any) -> None:
        if not is_main_process():
            return
        model = self.model
        given: dict[str, Any] = {"strict": strict, "trainer_version": _version(), "d2t": "offset"} | options
        if "wiring" not in given:
            given |= _features(model)
        own = target is None
        if own:
            given = {"forward": _run_base, "name": _name(model)} | given
        emitter = Emitter(target=model if own else target, trainer="ModelOpt", **given)
        emitter.emit(export_dir, main_process=True)

    attachment.after(exporter, "export", exported)
    return attachment


def _features(model: Any) -> dict[str, Any]:
    config = model.eagle_config
    if not getattr(config, "use_aux_hidden_state", False):
        # The projection is left out, and the drafter reads what the target's head reads.
        depth = int(model._base_llm_config.num_hidden_layers)  # noqa: SLF001 - what the exporter itself goes by
        return {"wiring": Wiring(features=(Feature(slot=0, boundary=depth, state="final_norm"),))}
    ids = [int(item) for item in config.eagle_aux_hidden_state_layer_ids]
    return {"ids": LayerIds.of(ids, "layer_output", ascending=True, key=_KEY, reason="the converted model's config")}


def _run_base(model: Any, ids: Any) -> Any:
    """Run the target alone: the converted model's own forward would run the drafter behind it."""
    module = import_module("modelopt.torch.speculative.plugins.hf_eagle")
    try:
        return super(module.HFEagleModel, model).forward(input_ids=ids, use_cache=False)
    finally:
        # Its hooks have collected planes that nobody will fetch.
        model._aux_hidden_states.clear()  # noqa: SLF001


def _name(model: Any) -> str | None:
    stated = getattr(model.config, "_name_or_path", "") or ""
    return stated.rstrip("/").rpartition("/")[2] or None


def _version() -> str | None:
    try:
        return version("nvidia-modelopt")
    except PackageNotFoundError:
        return None
