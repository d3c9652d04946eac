"""What a replay runs on: the drafter, and sequences from stored states or from a live target."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from featurecontract.contract import parse_wiring
from featurecontract.errors import InputError, UsageError
from featurecontract.gate._inputs import Inputs, load_inputs

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from featurecontract.contract import Wiring
    from featurecontract.replay import Drafter, PlaneName, TargetParts, Texts

__all__ = ["ReplayOptions", "ReplayRun", "drafter_of", "is_gguf", "lent_parts", "prepare"]

_MIN_LENGTH = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOptions:
    """What was asked for.

    Attributes:
        states: Stored hidden states, a file or a folder.
        planes: Names of the planes in them, in order: a wiring such as ``0,3,16``.
        target: Model directory, GGUF file, config.json or ``name:L,H``; alone it is run, beside ``states`` it lends its
            embedding, head and final norm.
        gguf: GGUF file in the target's directory.
        tokens: File of token ids for a live target: a list of lists, or one list that is cut.
        text: File of text for a live target, tokenized by its own tokenizer.
        length: Tokens of a sequence that is cut.
        limit: Sequences at most.
        recurrent_state: Overrides what enters step 2.
        device: Where to compute.
        dtype: In what: ``float32``, ``bfloat16``.
        layers, norm, embedding, head: Module paths of a live target.
        trust_remote_code: Run model code in the target's directory.
        follow_links: Follow links that leave a directory.
    """

    states: str | None = None
    planes: str | None = None
    target: str | None = None
    gguf: str | None = None
    tokens: str | None = None
    text: str | None = None
    length: int = 256
    limit: int | None = None
    recurrent_state: str | None = None
    device: str = "cpu"
    dtype: str = "float32"
    modules: dict[str, str | None] = field(default_factory=dict)
    trust_remote_code: bool = False
    follow_links: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class ReplayRun:
    """Everything that is ready to run; ``depth`` is the target's number of layers."""

    inputs: Inputs
    drafter: Drafter
    texts: Texts
    depth: int
    source: str
    notes: tuple[str, ...] = ()
    planes_for: Callable[[Sequence[PlaneName]], Texts] | None = None

    def reading(self, names: Sequence[PlaneName]) -> Texts:
        """Return the texts with at least these planes: a live target records only what is asked for."""
        return self.planes_for(names) if self.planes_for is not None else self.texts


def prepare(path: str | os.PathLike[str], options: ReplayOptions, say: Callable[[str], None]) -> ReplayRun:
    """Read the checkpoint and the states, or load the target.

    Raises:
        InputError: a file cannot be used, or does not belong to the others.
        UsageError: an option is missing or contradicts another.
    """
    _check_options(options)
    from featurecontract import probe, replay

    probe.require_torch()
    # A dtype that nobody knows is refused before a target is loaded.
    probe.dtype_of(options.dtype)
    live: Any = None
    if options.target is not None and (options.states is None or is_gguf(options)):
        say(f"loading {os.path.basename(options.target.rstrip('/')) or options.target}")  # noqa: PTH119 - a name to show
        live = probe.load_target(
            options.target,
            gguf=options.gguf,
            dtype="auto",
            device=options.device,
            trust_remote_code=options.trust_remote_code,
        )
    layout = probe.find_layout(live.model, **options.modules) if live is not None else None
    inputs = load_inputs(path, target=_facts(options, live, layout), follow_links=options.follow_links)
    if inputs.findings:
        raise InputError.single(
            inputs.path, inputs.findings[0].message, next_step=inputs.findings[0].next_step, slug="target-mismatch"
        )
    parts = _parts(options, layout)
    drafter = drafter_of(inputs, parts, options)
    depth = inputs.target.num_hidden_layers
    if options.states is not None:
        texts = _recorded(options, inputs, drafter, parts)
        notes = (*drafter.spec.notes, *texts.states.notes)
        return ReplayRun(
            inputs=inputs, drafter=drafter, texts=texts, depth=depth, source=str(options.states), notes=notes
        )
    assert layout is not None  # noqa: S101 - without states, the target was loaded
    sequences = _sequences(options, live.tokenizer)

    def recording(names: Sequence[PlaneName] | None) -> Texts:
        return replay.LiveTexts(live.model, layout, sequences, planes=names)

    return ReplayRun(
        inputs=inputs,
        drafter=drafter,
        texts=recording(None),
        depth=depth,
        source=live.name,
        notes=drafter.spec.notes,
        planes_for=recording,
    )


def drafter_of(inputs: Inputs, parts: TargetParts, options: ReplayOptions) -> Drafter:
    """Read the drafter, with what the target lends it; raises InputError when it cannot be replayed."""
    from featurecontract import probe, replay

    overrides: dict[str, Any] = {} if options.recurrent_state is None else {"recurrent": options.recurrent_state}
    return replay.read_drafter(
        inputs.checkpoint,
        contract=inputs.contract,
        target_hidden_size=inputs.target.hidden_size,
        embedding=parts.embedding,
        head=parts.head,
        target_vocab_size=inputs.target.vocab_size or parts.vocab_size,
        device=options.device,
        dtype=probe.dtype_of(options.dtype),
        **overrides,
    )


def _check_options(options: ReplayOptions) -> None:
    if options.states is None and options.target is None:
        raise UsageError("replay needs --states DIR (recorded hidden states) or --target T (a target to run)")
    if options.states is None and options.tokens is None and options.text is None:
        raise UsageError("a target that is run needs something to read: --text FILE, or --tokens FILE with token ids")
    if options.states is not None and (options.tokens is not None or options.text is not None):
        raise UsageError("--tokens and --text are for a target that is run; --states brings its own tokens")
    if options.tokens is not None and options.text is not None:
        raise UsageError("give --tokens or --text, not both")
    if options.planes is not None and options.states is None:
        raise UsageError("--planes names the planes of stored states: give --states DIR")
    if options.recurrent_state not in (None, "pre_norm", "post_norm"):
        raise UsageError("--recurrent-state is pre_norm or post_norm")


def is_gguf(options: ReplayOptions) -> bool:
    return options.gguf is not None or (options.target or "").endswith(".gguf")


def _facts(options: ReplayOptions, live: Any, layout: Any) -> str | None:
    """Return the target as ``load_inputs`` reads it: the directory, or what the loaded model itself says."""
    if live is None or not is_gguf(options):
        return options.target
    from featurecontract.probe import text_config

    config = text_config(live.model)
    return f"target:{len(layout.layers)},{config.hidden_size},{type(live.model).__name__}"


def _parts(options: ReplayOptions, layout: Any) -> TargetParts:
    from featurecontract import replay

    return lent_parts(options) if layout is None else replay.parts_of_model(layout)


def lent_parts(options: ReplayOptions) -> TargetParts:
    """Return what the target's directory lends: embedding, head, final norm; nothing where no directory was named."""
    from featurecontract import replay
    from featurecontract.checkpoint import open_checkpoint

    if options.target is not None and os.path.isdir(options.target):  # noqa: PTH112 - does not raise
        return replay.parts_of_checkpoint(open_checkpoint(options.target, follow_links=options.follow_links))
    return replay.TargetParts()


def _recorded(options: ReplayOptions, inputs: Inputs, drafter: Drafter, parts: TargetParts) -> Any:
    from featurecontract import replay
    from featurecontract.states import open_states

    assert options.states is not None  # noqa: S101 - the caller asked
    states = open_states(options.states, follow_links=options.follow_links)
    depth = inputs.target.num_hidden_layers
    given = parse_wiring(options.planes, num_hidden_layers=depth) if options.planes is not None else None
    declared: Wiring | None = inputs.contract.wiring if inputs.contract else None
    hidden = drafter.spec.target_hidden_size
    names = replay.names_of(states, hidden_size=hidden, given=given, declared=declared, num_hidden_layers=depth)
    return replay.RecordedTexts(
        states=states,
        planes=names,
        hidden_size=hidden,
        answers=parts.answers if parts.head is not None else None,
        logits=parts.logits if parts.head is not None and parts.plain else None,
        vocab_size=inputs.target.vocab_size or int(drafter.weights["embed.weight"].shape[0]),
        limit=options.limit,
    )


def _sequences(options: ReplayOptions, tokenizer: Any) -> list[tuple[int, ...]]:
    from featurecontract import replay

    if options.text is not None:
        if tokenizer is None:
            raise UsageError("the target has no usable tokenizer: give token ids with --tokens FILE")
        stream = [tokenizer(_text(options.text))["input_ids"]]
    else:
        stream = _token_lists(str(options.tokens))
    pieces = [piece for ids in stream for piece in replay.cut(ids, options.length)]
    kept = [piece for piece in pieces if len(piece) >= _MIN_LENGTH][: options.limit]
    if not kept:
        raise InputError.single(
            str(options.text or options.tokens),
            f"holds no sequence of at least {_MIN_LENGTH} tokens",
            next_step="give more text; accuracies over a few rows say nothing",
            slug="nothing-compared",
        )
    return kept


def _text(path: str) -> str:
    from pathlib import Path

    from featurecontract.contract.strict_json import open_regular, read_all

    with open_regular(Path(path), source=path) as stream:
        return read_all(stream, source=path).decode("utf-8", "replace")


def _token_lists(path: str) -> list[list[int]]:
    from pathlib import Path

    from featurecontract.contract.strict_json import read_json

    value = read_json(Path(path))
    lists: list[Any] = value if isinstance(value, list) and value and isinstance(value[0], list) else [value]
    for index, item in enumerate(lists):
        if not isinstance(item, list) or not all(type(token) is int and 0 <= token < 2**31 for token in item):
            raise InputError.single(
                path,
                "is no list of token ids",
                place=f"[{index}]",
                next_step="write a JSON list of lists of whole numbers",
            )
    return lists
