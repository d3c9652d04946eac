"""A callback for transformers' Trainer, and for every trainer that is made of it."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from featurecontract.errors import UsageError
from featurecontract.trainers._emitter import Emitter

__all__ = ["trainer_callback"]


def trainer_callback(*, target: Any, **options: Any) -> Any:
    """Return a ``TrainerCallback`` that leaves a contract and its probe in every ``checkpoint-STEP`` directory.

    ``Trainer(..., callbacks=[trainer_callback(target=target, wiring="2,18,33")])``. After ``trainer.save_model(DIR)``
    call its ``emit(DIR)``. The arguments are those of ``Emitter``.

    Raises:
        UsageError: transformers is not installed, or an argument cannot be used.
    """
    try:
        base: Any = import_module("transformers").TrainerCallback
    except ImportError:
        raise UsageError("trainer_callback needs transformers: pip install transformers") from None
    emitter = Emitter(target=target, **({"trainer": "transformers"} | options))

    class ContractCallback(base):  # type: ignore[misc]
        """Writes the contract behind every save."""

        def __init__(self) -> None:
            self.emitter = emitter
            self.emit = emitter.emit

        def on_save(self, args: Any, state: Any, control: Any, **_kwargs: Any) -> None:  # noqa: ARG002 - their names
            out = Path(args.output_dir) / f"checkpoint-{state.global_step}"
            # Trainers of other layouts may save elsewhere; what is not there cannot be written beside.
            if out.is_dir():
                emitter.emit(out, main_process=bool(state.is_world_process_zero))

    return ContractCallback()
