"""``diagnose``: whatever evidence there is, gathered, and what it comes to."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from featurecontract.contract import parse_wiring
from featurecontract.errors import FeatureContractError, InputError, UsageError
from featurecontract.findings import Report, finding
from featurecontract.gate._conclude import Gathered, Stage, conclude, failed
from featurecontract.gate._diagnose_rows import rows_stage
from featurecontract.gate._inputs import load_inputs
from featurecontract.gate._replay import figures, planes_of
from featurecontract.gate._replay_inputs import is_gguf, prepare
from featurecontract.gate._replay_judge import judge
from featurecontract.gate._run import check_inputs
from featurecontract.gate._verify import verify

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from featurecontract.contract import Wiring
    from featurecontract.findings import Finding
    from featurecontract.gate._inputs import Inputs
    from featurecontract.gate._replay_inputs import ReplayOptions
    from featurecontract.replay import PlaneName
    from featurecontract.runtimes import RuntimeRules

__all__ = ["Symptoms", "diagnose"]

_STEPS, _MAX_STEPS = 3, 16
_MAX_WIRINGS = 6
_CONFIDENCE = 0.95
# Deeper than any target: how deep this one is, is known later.
_DEEP = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Symptoms:
    """What is known of the server whose acceptance is low.

    Attributes:
        captures: Capture files of it, or directories of them.
        runtimes: ``NAME[==VERSION]``; by default the contract's.
        serve_args: Its command line, or a file with it.
        rules: Rules of forks by runtime name.
        acceptance: Tokens per round that it serves, the target's own included; None when nobody measured it.
    """

    captures: tuple[str, ...] = ()
    runtimes: tuple[str, ...] = ()
    serve_args: str | None = None
    rules: Mapping[str, RuntimeRules] | None = None
    acceptance: float | None = None


def diagnose(
    path: str | os.PathLike[str],
    *,
    symptoms: Symptoms,
    options: ReplayOptions,
    steps: int | None = None,
    tolerance: float = 0.05,
    batch_rows: int = 4096,
    strict: bool = False,
    progress: Callable[[str], None] | None = None,
) -> Report:
    """Split a low acceptance into wiring, flags, the runtime, the files or the drafter itself.

    Runs what the inputs allow: the static check, captures against the probe, the drafter's weights on the probe's
    golden rows and on what was captured for the same tokens, and a replay on recorded states or a live target. A kind
    of evidence that cannot be used is said and stops none of the others.

    Args:
        path: Checkpoint directory of the drafter, with its contract.
        symptoms: What is known of the server.
        options: Recorded states, or the target to run.
        steps: Draft steps of the replays; by default those that the contract states for serving, else 3.
        tolerance: How far a figure may lie off before chance is taken into account.
        batch_rows: Rows of one replayed batch.
        strict: Count warnings as errors.
        progress: Called with one line at a time.

    Raises:
        InputError: the checkpoint or its contract cannot be used.
        UsageError: an option cannot be used.
    """
    say = progress or (lambda _line: None)
    if steps is not None and not 1 <= steps <= _MAX_STEPS:
        raise UsageError(f"--steps {steps}: write 1 to {_MAX_STEPS}")
    if symptoms.acceptance is not None and not 1 <= symptoms.acceptance <= 1 + _MAX_STEPS * 16:
        raise UsageError(
            f"--acceptance {symptoms.acceptance:g}: tokens per round, the target's own included: 1 or more"
        )
    _check_paths(symptoms, options)
    inputs = load_inputs(
        path,
        target=None if is_gguf(options) else options.target,
        need_contract=True,
        follow_links=options.follow_links,
    )
    assert inputs.contract is not None  # noqa: S101 - asked for
    serving = inputs.contract.serving
    steps = steps or min((serving.num_steps if serving else None) or _STEPS, _MAX_STEPS)
    say("checking the files and the rules")
    static = _static(inputs, symptoms, strict=strict)
    captured = _captured(path, symptoms, options, say)
    rows = rows_stage(inputs, symptoms.captures, options, say=say)
    fed = [item.wiring for item in static.predicted if item.wiring is not None]
    fed += [item.wiring for item in captured.observed]
    replayed = _replayed(path, inputs, options, fed, steps=steps, tolerance=tolerance, batch_rows=batch_rows, say=say)
    gathered = Gathered(
        contract=inputs.contract,
        static=static,
        captured=captured,
        rows=rows,
        replay=replayed,
        named_runtimes=bool(symptoms.runtimes or (serving and serving.runtimes)),
        served_arguments=symptoms.serve_args is not None,
        acceptance=symptoms.acceptance,
        tolerance=tolerance,
        strict=strict,
    )
    diagnosis = conclude(gathered)
    stages = (static, captured, rows, replayed)
    findings = [item for stage in stages for item in stage.findings]
    if diagnosis.cause == "undecided" and not any(item.unchecked for item in findings):
        findings.append(
            finding(
                "inconclusive",
                diagnosis.sentence.removeprefix("undecided: "),
                next_step="provide " + "; or ".join(diagnosis.missing) if diagnosis.missing else "",
            )
        )
    facts = inputs.target
    return Report(
        checkpoint=str(path),
        contract_path=inputs.contract_file,
        contract_sha256=inputs.contract_sha256,
        target=f"{facts.name or facts.source}: {facts.num_hidden_layers} layers, {facts.hidden_size} wide",
        declared=inputs.contract.wiring,
        num_hidden_layers=facts.num_hidden_layers,
        predicted=static.predicted,
        observed=captured.observed,
        drafted=captured.drafted,
        replayed=replayed.replayed,
        diagnosis=diagnosis,
        findings=tuple(dict.fromkeys(findings)) if _hashable(findings) else tuple(findings),
        compared=sum(stage.compared for stage in stages),
        strict=strict,
    )


def _check_paths(symptoms: Symptoms, options: ReplayOptions) -> None:
    """Refuse options that would be left out without a word, and paths with a slip: evidence is not missing then."""
    if options.planes is not None:
        parse_wiring(options.planes, num_hidden_layers=_DEEP)
        if options.states is None:
            raise UsageError("--planes names the planes of stored states: give --states DIR")
    if options.target is None and (options.text is not None or options.tokens is not None):
        raise UsageError("--text and --tokens are for a target that is run: give --target DIR")
    named: list[tuple[str, str | None]] = [("CAPTURE", item) for item in symptoms.captures]
    named += [("--states", options.states), ("--text", options.text), ("--tokens", options.tokens)]
    for option, place in named:
        if place is not None and not os.path.lexists(place):
            raise UsageError(f"{option} {place}: does not exist; check the path")


def _hashable(findings: Sequence[Finding]) -> bool:
    try:
        hash(tuple(findings))
    except TypeError:
        return False
    return True


def _static(inputs: Inputs, symptoms: Symptoms, *, strict: bool) -> Stage:
    try:
        report = check_inputs(
            inputs, symptoms.runtimes, rules=symptoms.rules, serve_args=symptoms.serve_args, strict=strict
        )
    except InputError as error:
        return failed("static", error)
    # No runtime was named: the files alone were compared, and the conclusion says so.
    kept = tuple(item for item in report.findings if item.slug != "nothing-compared")
    return Stage(name="static", ran=True, findings=kept, compared=report.compared, predicted=report.predicted)


def _captured(
    path: str | os.PathLike[str], symptoms: Symptoms, options: ReplayOptions, say: Callable[[str], None]
) -> Stage:
    if not symptoms.captures:
        return Stage(name="captured", ran=False, text="no capture was given")
    say("naming what was captured")
    try:
        report = verify(
            path,
            symptoms.captures,
            target=None if is_gguf(options) else options.target,
            follow_links=options.follow_links,
        )
    except InputError as error:
        return failed("captured", error)
    return Stage(
        name="captured",
        ran=True,
        findings=report.findings,
        compared=report.compared,
        observed=report.observed,
        drafted=report.drafted,
    )


def _replayed(
    path: str | os.PathLike[str],
    inputs: Inputs,
    options: ReplayOptions,
    fed: Sequence[Wiring],
    *,
    steps: int,
    tolerance: float,
    batch_rows: int,
    say: Callable[[str], None],
) -> Stage:
    """Replay the declared wiring, and what is predicted to be fed or was seen to be."""
    if options.states is None and (options.target is None or (options.text is None and options.tokens is None)):
        return Stage(name="replay", ran=False, text="no recorded states and no target with text were given")
    assert inputs.contract is not None  # noqa: S101 - asked for
    declared = inputs.contract.wiring
    left_out: list[str] = []
    try:
        run = prepare(path, options, say)
        chosen: dict[Wiring, tuple[PlaneName, ...]] = {declared: planes_of(run, declared)}
        for wiring in fed:
            try:
                names = planes_of(run, wiring)
            except UsageError:
                left_out.append(str(wiring))
                continue
            if names not in chosen.values() and len(chosen) < _MAX_WIRINGS:
                chosen[wiring] = names
        replayed, tallies = figures(
            run, chosen, declared, steps=steps, confidence=_CONFIDENCE, batch_rows=batch_rows, say=say
        )
    except FeatureContractError as error:
        return failed("replay", error)
    found, compared = judge(run, replayed, tallies, tolerance=tolerance, confidence=_CONFIDENCE, alone=False)
    # That a wiring which is fed cannot be told from the declared one here is its effect, not a question that was asked.
    kept = tuple(item for item in found if not (item.slug == "inconclusive" and "difference" in item.details))
    note = f"; [{left_out[0]}] cannot be replayed on them" if left_out else ""
    return Stage(
        name="replay",
        ran=True,
        text=note,
        findings=kept,
        compared=compared,
        replayed=tuple(replayed),
    )
