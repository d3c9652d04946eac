"""``replay``: the drafter's own weights on recorded or live hidden states, under the declared wiring and any other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from featurecontract.contract import parse_wiring
from featurecontract.errors import UsageError
from featurecontract.findings import Replayed, Report
from featurecontract.gate._replay_inputs import ReplayOptions, ReplayRun, prepare
from featurecontract.gate._replay_judge import judge, judge_search, search_object

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping, Sequence

    from featurecontract.contract import Wiring
    from featurecontract.replay import Found, PlaneName, Tally

__all__ = ["ReplayOptions", "figures", "planes_of", "replay"]

MAX_STEPS = 16


def replay(
    path: str | os.PathLike[str],
    *,
    options: ReplayOptions,
    wirings: Sequence[str] = (),
    steps: int = 3,
    search: bool = False,
    confidence: float = 0.95,
    max_tokens: int = 4096,
    seed: int = 0,
    batch_rows: int = 4096,
    tolerance: float = 0.05,
    strict: bool = False,
    skip_absent: bool = False,
    progress: Callable[[str], None] | None = None,
) -> Report:
    """Run a drafter on hidden states and say how often it is right; needs torch.

    Args:
        path: Checkpoint directory of the drafter; its contract, where it has one, declares the wiring.
        options: What to run on.
        wirings: Further wirings, such as ``3,16,28``.
        steps: Draft steps.
        search: Also rank every ordered choice of the recorded planes (of a live target: every boundary).
        confidence: Of intervals, and below which a search names no winner.
        max_tokens: Tokens that a search uses.
        seed: Of the sequences that a search draws, and of its random starts.
        batch_rows: Rows of one batch, which bounds the memory.
        tolerance: How far an accuracy may lie off the contract's before chance is taken into account.
        strict: Count warnings as errors.
        skip_absent: Leave out further wirings whose planes are not there, where they otherwise are an error.
        progress: Called with one line at a time.

    Raises:
        InputError: A file cannot be used, or does not belong to the others.
        UsageError: An option cannot be used.
    """
    from featurecontract import replay as engine

    if not 1 <= steps <= MAX_STEPS:
        raise UsageError(f"--steps {steps}: write 1 to {MAX_STEPS}")
    say = progress or (lambda _line: None)
    run = prepare(path, options, say)
    contract = run.inputs.contract
    declared = contract.wiring if contract else None
    listed: list[Wiring] = [declared] if declared is not None else []
    listed += [parse_wiring(text, num_hidden_layers=run.depth) for text in wirings]
    if not listed and not search:
        raise UsageError("there is no contract: name a wiring with --wiring, or find one with --search")
    chosen = _chosen(run, listed, skip=set(listed[1:]) if skip_absent and declared is not None else set())
    replayed, tallies = figures(
        run, chosen, declared, steps=steps, confidence=confidence, batch_rows=batch_rows, say=say
    )
    findings, compared = judge(run, replayed, tallies, tolerance=tolerance, confidence=confidence, alone=not search)
    found: Found | None = None
    if search:
        found = engine.search(
            run.drafter,
            run.texts,
            run.texts.planes,
            confidence=confidence,
            max_tokens=max_tokens,
            seed=seed,
            progress=say,
        )
        more, judged = judge_search(run, found, declared)
        findings, compared = [*findings, *more], compared + judged
    facts = run.inputs.target
    return Report(
        checkpoint=str(path),
        contract_path=run.inputs.contract_file,
        contract_sha256=run.inputs.contract_sha256,
        target=f"{facts.name or facts.source}: {facts.num_hidden_layers} layers, {facts.hidden_size} wide",
        declared=declared,
        num_hidden_layers=run.depth,
        replayed=tuple(replayed),
        search=search_object(run, found) if found is not None else None,
        findings=tuple(findings),
        compared=compared,
        strict=strict,
    )


def figures(
    run: ReplayRun,
    chosen: Mapping[Wiring, tuple[PlaneName, ...]],
    declared: Wiring | None,
    *,
    steps: int,
    confidence: float,
    batch_rows: int,
    say: Callable[[str], None],
) -> tuple[list[Replayed], list[Tally]]:
    """Replay each wiring, given with the names of its planes; the counts come with the figures."""
    from featurecontract import replay as engine

    if not chosen:
        return [], []
    wanted = list(dict.fromkeys(name for names in chosen.values() for name in names))
    texts = run.reading(wanted)
    repeats: list[str] = []
    tallies = engine.measure(
        run.drafter,
        engine.batches(engine.distinct(texts, repeated=lambda text: repeats.append(text.source)), rows=batch_rows),
        list(chosen.values()),
        steps=steps,
        progress=lambda done: say(f"{done} of {len(texts)} sequences"),
    )
    if repeats:
        say(f"{len(repeats)} of {len(texts)} sequences repeat the tokens of another and are counted once: {repeats[0]}")
    replayed = [
        _figures(
            wiring.with_dim(run.drafter.spec.target_hidden_size), tally, run, confidence, declared=wiring is declared
        )
        for wiring, tally in zip(chosen, tallies, strict=True)
    ]
    return replayed, tallies


def planes_of(run: ReplayRun, wiring: Wiring) -> tuple[PlaneName, ...]:
    """Return the planes that a wiring feeds.

    Raises:
        UsageError: it has another number of slots than the projection, or needs a plane that is not there.
    """
    from featurecontract import replay as engine

    spec, there = run.drafter.spec, set(run.texts.planes)
    names = _planes(wiring, engine) if spec.kind == "eagle3" else _last(wiring, engine)
    if len(names) != spec.slots:
        raise UsageError(
            f"[{wiring}] has {len(names)} features, the drafter's projection takes {spec.slots}: name as many"
        )
    missing = [str(name) for name in names if name not in there]
    if missing:
        have = ", ".join(map(str, run.texts.planes))
        raise UsageError(
            f"[{wiring}] needs {', '.join(missing)}; the states hold {have}: "
            "record what is missing, or correct --planes"
        )
    return names


def _chosen(run: ReplayRun, listed: list[Wiring], *, skip: set[Wiring]) -> dict[Wiring, tuple[PlaneName, ...]]:
    """Return the planes of every wiring, each once; those in ``skip`` only where their planes are there.

    Raises:
        UsageError: a wiring has another number of slots than the projection, or needs a plane that is not there.
    """
    out: dict[Wiring, tuple[PlaneName, ...]] = {}
    for wiring in listed:
        try:
            names = planes_of(run, wiring)
        except UsageError:
            if wiring in skip:
                continue
            raise
        if names not in out.values():
            out[wiring] = names
    return out


def _planes(wiring: Wiring, engine: object) -> tuple[PlaneName, ...]:
    found: tuple[PlaneName, ...] = engine.wiring_planes(wiring)  # type: ignore[attr-defined]
    return found


def _last(wiring: Wiring, engine: object) -> tuple[PlaneName, ...]:
    """Return the one state of EAGLE-1: the embedding beside it is the drafter's own business."""
    from dataclasses import replace as changed

    kept = tuple(f for f in wiring.features if f.source == "target" and not f.row_offset)
    return _planes(changed(wiring, features=kept), engine)


def _figures(wiring: Wiring, tally: Tally, run: ReplayRun, confidence: float, *, declared: bool) -> Replayed:
    from featurecontract import replay as engine

    chained = tally.agree_chained or tally.chained
    return Replayed(
        wiring=wiring,
        declared=declared,
        accuracy=engine.step_accuracies(tally.chained, confidence=confidence),
        agreement=engine.step_accuracies(tally.agree_chained, confidence=confidence),
        acceptance_length=engine.acceptance_length(chained, confidence=confidence),
        sequences=tally.sequences,
        rows=tally.rows,
        source=run.source,
    )
