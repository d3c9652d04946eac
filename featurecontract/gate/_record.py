"""``record``: a target, a wiring and a checkpoint directory become a contract with its probe."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from featurecontract.contract import (
    CONTRACT_FILE,
    Contract,
    Target,
    Wiring,
    load,
    parse_wiring,
)
from featurecontract.errors import InputError, UsageError
from featurecontract.gate._recorded import RecordedTarget, checkpoint_directory, write_recorded

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from featurecontract.probe import Recording

__all__ = ["record", "record_target"]

MIN_ROWS, MAX_ROWS = 48, 256
_ANY_DEPTH = 100_000


def record(
    model: Any,
    *,
    out: str | os.PathLike[str],
    contract: Contract | str | os.PathLike[str] | None = None,
    wiring: Wiring | str | None = None,
    token_ids: Iterable[int] | None = None,
    tokens: str | os.PathLike[str] | None = None,
    tokenizer: Any = None,
    layers: str | None = None,
    norm: str | None = None,
    embedding: str | None = None,
    head: str | None = None,
    rows: int = 64,
    second_dtype: Any = "bfloat16",
    seed: int = 0,
    force: bool = False,
    gguf: str | None = None,
    dtype: str = "auto",
    device: str | None = None,
    trust_remote_code: bool = False,
    follow_links: bool = False,
    name: str | None = None,
    forward: Callable[[Any, Any], Any] | None = None,
    progress: Callable[[str], None] | None = None,
) -> Contract:
    """Record a target's golden features and write them, with the contract that names them, into ``out``.

    A contract in ``out`` (or ``contract``) gets the probe; its features must be those of ``wiring``, if that is given.
    Without one, a contract is composed as ``init`` does, from the drafter's config in ``out`` where there is one.

    Args:
        model: The target: a torch module, or a transformers model directory.
        out: The drafter's checkpoint directory.
        contract: The contract to add the probe to, or its file; by default the one in ``out``.
        wiring: The features that the drafter is trained on, such as ``0,3,31``.
        token_ids: One sequence of at least ``rows`` ids, the first at position 0; at least 48 of them different.
        tokens: A file with them.
        tokenizer: Tokenizes the package's text when no ids are given; a loaded directory brings its own.
        layers: Path of the decoder layers in the model, where they are not found (``model.layers``).
        norm: Path of the final norm.
        embedding: Path of the token embedding.
        head: Path of the output head.
        rows: Rows of the probe, 48 to 256.
        second_dtype: The dtype of the second run, for the noise floor; None for another batch shape.
        seed: Chooses channels, and ids where there is no tokenizer.
        force: Replace a contract whose features are others.
        gguf: GGUF file in the model directory.
        dtype: Dtype to load the target in; ``auto`` for its own.
        device: Where to load it.
        trust_remote_code: Run model code in the directory.
        follow_links: Follow links that leave the checkpoint.
        name: The target's name in a new contract.
        forward: ``forward(model, ids)`` runs a target that is not called with a tensor of ids.
        progress: Called with one line per step.

    Returns:
        The contract as written.

    Raises:
        InputError: ``probe-degenerate`` for a target or tokens on which nothing can be told apart; ``target-mismatch``;
            ``layer-mismatch`` where a contract says otherwise; or a file cannot be used.
        UsageError: an argument cannot be used.
    """
    place = checkpoint_directory(out)
    held = _held(contract, place, force=force)
    recorded = record_target(
        model,
        wiring=wiring,
        held=held,
        token_ids=token_ids,
        tokens=tokens,
        tokenizer=tokenizer,
        layers=layers,
        norm=norm,
        embedding=embedding,
        head=head,
        rows=rows,
        second_dtype=second_dtype,
        seed=seed,
        force=force,
        gguf=gguf,
        dtype=dtype,
        device=device,
        trust_remote_code=trust_remote_code,
        name=name,
        forward=forward,
        progress=progress,
    )
    if progress is not None:
        progress(f"writing {place / CONTRACT_FILE} and its probe")
    return write_recorded(recorded, place, held=held, follow_links=follow_links)


def record_target(
    model: Any,
    *,
    wiring: Wiring | str | None = None,
    held: Contract | None = None,
    token_ids: Iterable[int] | None = None,
    tokens: str | os.PathLike[str] | None = None,
    tokenizer: Any = None,
    layers: str | None = None,
    norm: str | None = None,
    embedding: str | None = None,
    head: str | None = None,
    rows: int = 64,
    second_dtype: Any = "bfloat16",
    seed: int = 0,
    force: bool = False,
    gguf: str | None = None,
    dtype: str = "auto",
    device: str | None = None,
    trust_remote_code: bool = False,
    name: str | None = None,
    forward: Callable[[Any, Any], Any] | None = None,
    progress: Callable[[str], None] | None = None,
) -> RecordedTarget:
    """Run the target once; what comes out can be written beside any number of checkpoints (``write_recorded``).

    Arguments and errors are those of ``record``; ``held`` is a contract that declares the features.
    """
    from featurecontract import probe

    if not MIN_ROWS <= rows <= MAX_ROWS:
        raise UsageError(f"--rows {rows}: a probe has {MIN_ROWS} to {MAX_ROWS} rows; 64 are enough")
    probe.require_torch()
    second = _dtype(second_dtype)
    if held is None and wiring is None:
        raise UsageError("record needs --wiring, such as --wiring 0,3,31: the features that the drafter is trained on")
    if isinstance(wiring, str):
        parse_wiring(wiring, num_hidden_layers=_ANY_DEPTH)  # a slip here should not cost the loading of a target
    given = probe.read_tokens(tokens) if tokens is not None else token_ids
    say = progress or (lambda _line: None)
    digest = None
    if isinstance(model, str | os.PathLike):
        say(f"loading {Path(model).name}")
        loaded = probe.load_target(
            str(model), gguf=gguf, dtype=dtype, device=device, trust_remote_code=trust_remote_code
        )
        model, tokenizer, digest = loaded.model, tokenizer or loaded.tokenizer, loaded.tokenizer_sha256
        name = name or loaded.name
    layout = probe.find_layout(model, layers=layers, norm=norm, embedding=embedding, head=head)
    wanted = _wiring(wiring, held, len(layout.layers), force=force)
    vocab = probe.vocab_size_of(model, layout)
    ids, origin = probe.choose_tokens(rows, given=given, tokenizer=tokenizer, vocab_size=vocab, seed=seed)
    recording = probe.record_probe(
        model, layout, wanted, ids, second_dtype=second, seed=seed, forward=forward, progress=progress
    )
    facts = _facts(model, recording, probe.text_config(model), name=name, vocab_size=vocab, digest=digest)
    origin = f"recorded from {facts.name or 'a target'} in {recording.dtype}, {rows} rows, tokens: {origin}"
    return RecordedTarget(recording, facts, wanted, origin)


def _held(contract: Contract | str | os.PathLike[str] | None, place: Path, *, force: bool) -> Contract | None:
    if isinstance(contract, Contract):
        return contract
    if contract is not None:
        return load(contract)
    if not os.path.lexists(place / CONTRACT_FILE):
        return None
    try:
        return load(place)
    except InputError:
        # A broken contract that is being replaced has no say in the new one.
        if force:
            return None
        raise


def _dtype(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    if value == "none":
        return None
    if value not in ("bfloat16", "float16", "float32"):
        raise UsageError(f"--second-dtype {value!r}: write bfloat16, float16, float32 or none")
    from featurecontract import probe

    return probe.dtype_of(value)


def _wiring(wiring: Wiring | str | None, held: Contract | None, depth: int, *, force: bool) -> Wiring:
    """Return the wiring to record: the held contract's own where it agrees with what was asked for."""
    asked = parse_wiring(wiring, num_hidden_layers=depth) if isinstance(wiring, str) else wiring
    if asked is None or held is None:
        found = held.wiring if asked is None and held is not None else asked
        assert found is not None  # noqa: S101 - one of the two was required before
        return found
    pairs = [[(f.source, f.boundary, f.state) for f in item.features] for item in (asked, held.wiring)]
    if pairs[0] == pairs[1]:
        return held.wiring
    if force:
        return asked
    raise InputError.single(
        CONTRACT_FILE,
        f"the contract declares [{held.wiring}], --wiring says [{asked}]",
        place="features",
        next_step="leave --wiring out to record what the contract declares, or replace the contract with --force",
        slug="layer-mismatch",
    )


def _facts(
    model: Any, recording: Recording, config: Any, *, name: str | None, vocab_size: int | None, digest: str | None
) -> Target:
    """Return what the contract says of the target: taken from the model that ran, not from a config."""
    outer = getattr(model, "config", None)
    architectures = getattr(outer, "architectures", None) or (type(model).__name__,)
    stated = getattr(outer, "_name_or_path", None)
    quantization = getattr(outer, "quantization_config", None) or getattr(config, "quantization_config", None)
    method = quantization.get("quant_method") if isinstance(quantization, dict) else quantization
    method = getattr(method, "quant_method", method)
    return Target(
        num_hidden_layers=recording.num_hidden_layers,
        hidden_size=recording.hidden_size,
        # A path of the machine that recorded says nothing elsewhere; its last part does.
        name=name or (Path(stated).name[:200] if isinstance(stated, str) and stated else None),
        architecture=str(architectures[0])[:200],
        vocab_size=vocab_size,
        dtype=recording.dtype,
        quantization=str(getattr(method, "value", method))[:40] if method is not None else None,
        tokenizer_sha256=digest,
    )
