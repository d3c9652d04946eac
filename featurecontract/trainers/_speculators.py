"""speculators: behind every checkpoint that it writes, and behind ``train --dry-run``."""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from featurecontract.errors import UsageError
from featurecontract.trainers._attach import Attachment
from featurecontract.trainers._emitter import Emitter, is_main_process
from featurecontract.trainers._ids import LayerIds

__all__ = ["attach_speculators"]

_CHECKPOINTERS = ("SingleGPUCheckpointer", "DistributedCheckpointer")
_KEYS = ("eagle_aux_hidden_state_layer_ids", "aux_hidden_state_layer_ids")


def attach_speculators(*, target: Any = None, strict: bool = False, **options: Any) -> Attachment:
    """Leave a contract and its probe beside every checkpoint that speculators writes in this process.

    One line before training starts. The ids are those of the run's own model config; they count layer inputs (id k is
    h[k]), and vLLM, which makes the training data, hands the planes over in the order of the layers.

    Args:
        target: The target's directory or module; by default the verifier that the run names, where it is a directory.
        strict: Raise where no contract can be written, instead of logging it once.
        options: Further arguments of ``Emitter``; ``wiring`` for data whose planes are in another order.

    Raises:
        UsageError: speculators is not installed.
    """
    try:
        model = import_module("speculators.model").SpeculatorModel
        checkpointers = import_module("speculators.train.checkpointer")
    except ImportError as error:
        raise UsageError(f"attach_speculators needs speculators 0.5 or later ({error})") from None
    attachment = Attachment(strict=strict)
    state = _Run(target, {"strict": strict, "trainer_version": _version(), "d2t": "offset"} | options)

    def saved(original: Any, self: Any, drafter: Any, optimizer: Any, epoch: Any, *args: Any, **kwargs: Any) -> Any:
        # The checkpointer rewrites config.json behind save_pretrained: what counts is there when it returns.
        state.inside += 1
        try:
            result = original(self, drafter, optimizer, epoch, *args, **kwargs)
        finally:
            state.inside -= 1
        attachment.quietly(state.emit, getattr(drafter, "module", drafter), Path(self.path) / str(epoch))
        return result

    for name in _CHECKPOINTERS:
        attachment.around(getattr(checkpointers, name), "save_checkpoint", saved)

    def alone(_result: Any, self: Any, save_directory: Any, *_args: Any, **_kwargs: Any) -> None:
        if not state.inside:
            state.emit(self, Path(save_directory))

    attachment.after(model, "save_pretrained", alone)
    return attachment


class _Run:
    """One training run; the emitter is made when the first checkpoint shows the ids."""

    def __init__(self, target: Any, options: dict[str, Any]) -> None:
        self.target, self.options, self.inside = target, options, 0
        self.emitters: dict[Any, Emitter] = {}

    def emit(self, drafter: Any, out: Path) -> None:
        if not is_main_process():
            return
        config = drafter.config
        found = {} if "wiring" in self.options else {"ids": _ids(config)}
        key = str(found.get("ids"))
        if key not in self.emitters:
            if found.get("ids", ()) is None:
                return  # a drafter without planes of the target, such as MTP
            target = self.target if self.target is not None else _verifier(config)
            self.emitters[key] = Emitter(target=target, trainer="speculators", **(found | self.options))
        self.emitters[key].emit(out, main_process=True)


def _ids(config: Any) -> LayerIds | None:
    for key in _KEYS:
        ids = getattr(config, key, None)
        if ids:
            return LayerIds.of(
                [int(item) for item in ids], "layer_input", ascending=True, key=key, reason="the run's model config"
            )
    return None


def _verifier(config: Any) -> str:
    """Return the path that the run names; one that is no directory is refused, with a line, when it is loaded."""
    verifier = getattr(getattr(config, "speculators_config", None), "verifier", None)
    return str(getattr(verifier, "name_or_path", None) or "the verifier")


def _version() -> str | None:
    try:
        return version("speculators")
    except PackageNotFoundError:
        return None
