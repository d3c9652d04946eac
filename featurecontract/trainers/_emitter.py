"""The emitter: runs the target once, and leaves a contract with its probe beside every checkpoint, without harm."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from featurecontract.contract import CONTRACT_FILE, Contract, Provenance, Statement, Wiring, load, parse_wiring
from featurecontract.errors import FeatureContractError, InputError, UsageError
from featurecontract.gate import record_target, write_recorded
from featurecontract.trainers._ids import LayerIds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from featurecontract.contract._contract import MapKind
    from featurecontract.gate import RecordedTarget

__all__ = ["Emitter", "emit", "is_main_process"]

_LOG = logging.getLogger("featurecontract.trainers")
_ANY_DEPTH = 100_000


def emit(out: str | os.PathLike[str], *, target: Any, strict: bool = True, **options: Any) -> Contract | None:
    """Leave a contract and its probe in one checkpoint directory; the arguments are those of ``Emitter``.

    For a script that runs after training, so a failure raises by default.
    """
    return Emitter(target=target, strict=strict, **options).emit(out)


class Emitter:
    """Writes the contract and the probe of a training run; one for a run, ``emit`` once for a checkpoint.

    The target is run at the first checkpoint only. In a run of several processes the first one writes, the others
    return at once. A failure is logged once, with what to do, and training goes on; ``strict`` raises instead.

    Attributes:
        failure: What went wrong first; empty while nothing did.
    """

    def __init__(
        self,
        *,
        target: Any,
        wiring: Wiring | str | None = None,
        ids: LayerIds | Iterable[int] | None = None,
        convention: str | None = None,
        trainer: str | None = None,
        trainer_version: str | None = None,
        d2t: MapKind | None = None,
        tokenizer: Any = None,
        token_ids: Iterable[int] | None = None,
        rows: int = 64,
        layers: str | None = None,
        norm: str | None = None,
        embedding: str | None = None,
        head: str | None = None,
        forward: Callable[[Any, Any], Any] | None = None,
        dtype: str = "auto",
        device: str | None = "cpu",
        trust_remote_code: bool = False,
        name: str | None = None,
        strict: bool = False,
    ) -> None:
        """Keep what a run is; nothing is loaded yet.

        Args:
            target: The target as a torch module, or a transformers model directory.
            wiring: The features as boundaries, such as ``0,3,31``; or
            ids: the run's layer ids, with
            convention: ``layer_output`` (id k is h[k + 1]) or ``layer_input`` (id k is h[k]).
            trainer: Name of the trainer, for the provenance.
            trainer_version: Its version.
            d2t: How the trainer's ``d2t`` counts: ``offset`` (target id minus draft id) or ``absolute``.
            tokenizer: Tokenizes the probe's text; a directory brings its own.
            token_ids: The probe's tokens, instead.
            rows: Rows of the probe.
            layers: Module path of the decoder layers, where they are not found.
            norm: Module path of the final norm.
            embedding: Module path of the token embedding.
            head: Module path of the output head.
            forward: ``forward(model, ids)`` runs a target that is not called with a tensor of ids.
            dtype: Dtype to load a directory in.
            device: Where to load it; the CPU by default, since the accelerators are in use.
            trust_remote_code: Run model code in the directory.
            name: The target's name in the contract.
            strict: Raise instead of logging.

        Raises:
            UsageError: neither features nor ids are given, or both, or they cannot be used.
        """
        if (wiring is None) == (ids is None):
            raise UsageError("say which features the drafter is trained on: either wiring='2,18,33' or ids=[1, 17, 32]")
        if isinstance(wiring, str):
            parse_wiring(wiring, num_hidden_layers=_ANY_DEPTH)
        if ids is not None and not isinstance(ids, LayerIds):
            if convention is None:
                raise UsageError("ids need a convention: layer_output (id k is h[k + 1]) or layer_input (id k is h[k])")
            ids = LayerIds.of(ids, convention)
        self.ids: LayerIds | None = ids
        self.wiring: Wiring | str | None = wiring if ids is None else ids.wiring
        self.target, self.strict, self.failure = target, strict, ""
        self.trainer, self.trainer_version, self.d2t = trainer, trainer_version, d2t
        self._options: dict[str, Any] = {
            "tokenizer": tokenizer,
            "token_ids": tuple(token_ids) if token_ids is not None else None,
            "rows": rows,
            "layers": layers,
            "norm": norm,
            "embedding": embedding,
            "head": head,
            "forward": forward,
            "dtype": dtype,
            "device": device,
            "trust_remote_code": trust_remote_code,
            "name": name,
        }
        self._recorded: RecordedTarget | None = None
        self._unrecordable: Exception | None = None

    def emit(self, out: str | os.PathLike[str], *, main_process: bool | None = None) -> Contract | None:
        """Leave the contract and its probe in a checkpoint directory and return it.

        Args:
            out: The directory of a checkpoint that has been written.
            main_process: Whether this is the process that writes; by default asked of torch.distributed.

        Returns:
            The contract, or None: this is not the main process, or it failed and was logged.

        Raises:
            FeatureContractError: only with ``strict``.
        """
        if not (is_main_process() if main_process is None else main_process):
            return None
        try:
            return self._emit(Path(out))
        except Exception as error:
            if self.strict:
                raise
            self._log(out, error)
            return None

    def _emit(self, out: Path) -> Contract:
        held = load(out) if os.path.lexists(out / CONTRACT_FILE) else None
        if held is not None:
            self._require_same_features(held, out)
            if held.probe is not None:
                return held
        recorded = self._record()
        # A contract without a probe that somebody wrote there gets the probe and keeps its own words.
        stated = self._provenance() if held is None else None
        return write_recorded(recorded, out, held=held, stated=stated, d2t=self.d2t)

    def _record(self) -> RecordedTarget:
        if self._unrecordable is not None:
            # Loading a target takes minutes: what failed once is not tried again at every checkpoint.
            raise self._unrecordable
        if self._recorded is None:
            try:
                self._recorded = self._run()
            except Exception as error:
                self._unrecordable = error
                raise
        return self._recorded

    def _run(self) -> RecordedTarget:
        import torch

        module = isinstance(self.target, torch.nn.Module)
        if module and _is_sharded(self.target):
            raise InputError.single(
                "the target",
                "its parameters are spread over processes, and a probe is recorded by one of them",
                next_step="name the target's directory instead: target='DIR'",
            )
        # Casting a model that is in training would pull parameters from under its optimizer.
        second = None if module else "bfloat16"
        with torch.random.fork_rng(devices=[]):
            return record_target(self.target, wiring=self.wiring, second_dtype=second, **self._options)

    def _require_same_features(self, held: Contract, out: Path) -> None:
        wanted = self.wiring
        if isinstance(wanted, str):
            wanted = parse_wiring(wanted, num_hidden_layers=held.target.num_hidden_layers)
        assert wanted is not None  # noqa: S101 - one of the two was required
        pairs = [[(f.source, f.boundary, f.state) for f in item.features] for item in (held.wiring, wanted)]
        if pairs[0] != pairs[1]:
            raise InputError.single(
                str(out / CONTRACT_FILE),
                f"declares [{held.wiring}], this run trains on [{wanted}]",
                place="features",
                next_step="remove the old contract, or save into another directory",
                slug="layer-mismatch",
            )

    def _provenance(self) -> Provenance:
        ids = self.ids
        if ids is None:
            return Provenance(trainer=self.trainer, trainer_version=self.trainer_version)
        statement = Statement(
            path="features",
            source="recorded" if ids.certain else "inferred",
            confidence=1.0 if ids.certain else 0.5,
            reason=ids.said(),
        )
        return Provenance(
            trainer=self.trainer,
            trainer_version=self.trainer_version,
            ids=ids.ids,
            ids_key=ids.key or None,
            convention=ids.convention,
            statements=(statement,),
        )

    @property
    def spelled(self) -> str:
        """The features as ``--wiring`` reads them."""
        if self.wiring is None or isinstance(self.wiring, str):
            return self.wiring or ""
        return ",".join(
            "final_norm" if item.state == "final_norm" else str(item.boundary) for item in self.wiring.features
        )

    def _log(self, out: str | os.PathLike[str], error: Exception) -> None:
        if self.failure:
            return
        text = " ".join(str(error).split())[:600]
        self.failure = text if isinstance(error, FeatureContractError) else f"{type(error).__name__}: {text}"
        _LOG.warning(
            "no feature contract was written for %s, training goes on: %s; afterwards: "
            "featurecontract record TARGET --wiring %s --out %s",
            out,
            self.failure,
            self.spelled,
            out,
        )


def is_main_process() -> bool:
    """Whether this is the process that writes: rank 0 of torch.distributed, or of the launcher's RANK."""
    import torch

    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return bool(torch.distributed.get_rank() == 0)
    return os.environ.get("RANK", "0") in ("", "0")


def _is_sharded(module: Any) -> bool:
    """Whether one process alone cannot run it: FSDP, DTensor, DeepSpeed's stage 3."""
    if any(type(item).__name__ == "FullyShardedDataParallel" for item in module.modules()):
        return True
    return any(type(item).__name__ == "DTensor" or hasattr(item, "ds_id") for item in module.parameters())
