"""What a replay means: against the contract's quality, against other wirings, and what a search makes of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from featurecontract.contract import Feature, Wiring
from featurecontract.findings import Finding, diff, feature_values, finding
from featurecontract.gate._from_search import projection_sha256

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from featurecontract.contract import Contract
    from featurecontract.findings import Estimate, Replayed
    from featurecontract.gate._replay_inputs import ReplayRun
    from featurecontract.replay import Found, PlaneName, Tally

__all__ = ["judge", "judge_search", "search_object", "wiring_of"]

# With fewer, an interval over sequences means nothing; with fewer rows, neither does the figure.
_MIN_SEQUENCES, _MIN_ROWS = 4, 200
_SUSPICIOUS = 0.995
_MAX_LISTED = 6


def judge(
    run: ReplayRun,
    replayed: Sequence[Replayed],
    tallies: Sequence[Tally],
    *,
    tolerance: float,
    confidence: float,
    alone: bool,
) -> tuple[list[Finding], int]:
    """Return findings, and how many statements were compared; ``alone`` says that no search follows."""
    if not replayed:
        return [], 0
    findings: list[Finding] = []
    first = replayed[0]
    if first.sequences < _MIN_SEQUENCES or first.rows < _MIN_ROWS:
        findings.append(
            finding(
                "inconclusive",
                f"{first.rows} rows in {first.sequences} sequences are too few to judge a drafter by",
                details={"rows": first.rows, "sequences": first.sequences},
                next_step=f"give at least {_MIN_SEQUENCES} sequences and {_MIN_ROWS} rows",
            )
        )
        return findings, 0
    compared = 0
    contract = run.inputs.contract
    declared = next((item for item in replayed if item.declared), None)
    for item in replayed:
        findings += _suspicious(item)
    if declared is not None and contract is not None and contract.quality is not None:
        found, count = _quality(declared, contract, tallies[replayed.index(declared)], tolerance, confidence)
        findings += found
        compared += count
    if declared is not None:
        at = replayed.index(declared)
        for item, tally in zip(replayed, tallies, strict=True):
            if item is not declared:
                found = list(_against(declared, item, tallies[at], tally, confidence))
                findings += found
                # A tie says nothing for the declared wiring, so it is no comparison that holds.
                compared += not any(entry.unchecked for entry in found)
        if not any(entry.slug == "accuracy-below" and entry.details.get("step") == 1 for entry in findings):
            findings += _never_right(declared)
    if alone and not compared and not findings:
        findings.append(
            finding(
                "nothing-compared",
                "the contract states no accuracy, and no other wiring was replayed: these figures stand alone",
                next_step="write the trainer's figures into the contract's quality, or name a wiring that should lose: "
                "--wiring LIST",
            )
        )
    return findings, compared


def _suspicious(item: Replayed) -> Iterator[Finding]:
    measured = item.measure
    if measured and all(figure.value >= _SUSPICIOUS for figure in measured):
        yield finding(
            "accuracy-below",
            f"[{item.wiring}]: every step is right in at least {_SUSPICIOUS:.1%} of the rows: no drafter is that good",
            actual=[round(figure.value, 4) for figure in measured],
            details={"wiring": str(item.wiring), "above": True},
            cause="labels that the features already hold, states of the text that is predicted, or one token repeated",
            next_step="look at the states: their tokens, and which row each plane belongs to",
        )


def _quality(
    item: Replayed, contract: Contract, tally: Tally, tolerance: float, confidence: float
) -> tuple[list[Finding], int]:
    quality = contract.quality
    assert quality is not None  # noqa: S101 - the caller looked
    findings: list[Finding] = []
    compared = 0
    for step, (stated, figure) in enumerate(zip(quality.step_accuracies, item.measure, strict=False), start=1):
        compared += 1
        findings += _off(f"step {step}", stated, figure, tolerance, {"step": step})
    whole = quality.acceptance_length
    if whole is None or item.acceptance_length is None:
        return findings, compared
    steps = _steps_of(contract)
    # No more than one token for each step and the target's own are accepted: a figure above that is of more steps.
    length = None if steps is None and whole > 1 + _replayed_steps(tally) else _length_of(tally, steps, confidence)
    if length is not None:
        compared += 1
        findings += _off("the acceptance length", whole, length, tolerance * max(1.0, whole), {"step": None})
    elif not compared:
        findings.append(
            finding(
                "inconclusive",
                f"the contract's acceptance length of {whole:.4g} is of {steps or 'more'} draft steps, fewer were "
                "replayed",
                next_step=f"replay with --steps {steps}" if steps else "replay with more --steps",
            )
        )
    return findings, compared


def _steps_of(contract: Contract) -> int | None:
    """Return how many draft steps the contract's acceptance length is of; None where it does not say."""
    quality, serving = contract.quality, contract.serving
    if quality is not None and quality.step_accuracies:
        return len(quality.step_accuracies)
    return serving.num_steps if serving is not None else None


def _replayed_steps(tally: Tally) -> int:
    return int(tally.chained[0].shape[1]) if tally.chained else 0


def _length_of(tally: Tally, steps: int | None, confidence: float) -> Estimate | None:
    """Return the acceptance length over so many steps, or over all; None where fewer were replayed."""
    from featurecontract.replay import acceptance_length

    counts = tally.agree_chained or tally.chained
    if steps is not None and steps > _replayed_steps(tally):
        return None
    return acceptance_length([item[:, :steps] for item in counts], confidence=confidence)


def _off(what: str, stated: float, figure: Estimate, tolerance: float, details: dict[str, Any]) -> Iterator[Finding]:
    low = figure.value if figure.low is None else figure.low
    high = figure.value if figure.high is None else figure.high
    if high >= stated - tolerance and low <= stated + tolerance:
        return
    above = low > stated + tolerance
    yield finding(
        "accuracy-below",
        f"{what} is {figure.value:.4g} [{low:.4g}, {high:.4g}] over {figure.samples} rows, the contract states "
        f"{stated:.4g}: {'above' if above else 'below'} it by more than chance and the tolerance of {tolerance:.3g}",
        expected=stated,
        actual={"value": round(figure.value, 6), "interval": [round(low, 6), round(high, 6)]},
        details=details | {"above": above},
        cause="states of the wrong kind of text, or rows that already hold the answer"
        if above
        else "another wiring, another flag, states of another target, or text that the drafter was not trained for",
        next_step="replay with --search: a wiring that does clearly better is the one it was trained with",
    )


def _never_right(item: Replayed) -> Iterator[Finding]:
    """Yield a finding where the share of right tokens at step 1 cannot be told from 0."""
    first = item.measure[0] if item.measure else None
    if first is None or (first.value if first.low is None else first.low) > 0:
        return
    high = first.value if first.high is None else first.high
    yield finding(
        "accuracy-below",
        f"[{item.wiring}]: step 1 is right in {first.value:.4g} [0, {high:.4g}] of {first.samples} rows, which cannot "
        "be told from never",
        actual={"value": round(first.value, 6), "interval": [0.0, round(high, 6)]},
        details={"wiring": str(item.wiring), "step": 1, "above": False},
        cause="another wiring, another flag, states or tokens of another target, or weights that were never trained",
        next_step="replay with --search, and look at the tokens that belong to the states",
    )


def _against(declared: Replayed, other: Replayed, mine: Tally, theirs: Tally, confidence: float) -> Iterator[Finding]:
    """Compare with another wiring at step 1, paired by sequence; no finding where the declared one wins."""
    from featurecontract.replay import paired_counts

    known = theirs.agree and mine.agree
    lead = paired_counts(theirs.agree if known else theirs.full, mine.agree if known else mine.full)
    back = paired_counts(mine.agree if known else mine.full, theirs.agree if known else theirs.full)
    beyond = (1 - confidence) / 10
    if lead.chance >= beyond and back.chance >= beyond:
        yield finding(
            "inconclusive",
            f"the declared [{declared.wiring}] and [{other.wiring}] cannot be told apart at step 1: they differ in "
            f"{abs(lead.difference):.1%} of the rows, {abs(lead.margin):.1f} standard errors over {lead.sequences} "
            "sequences",
            details={"difference": round(lead.difference, 6), "sequences": lead.sequences},
            next_step="replay more sequences, samples of the training data among them, or name a wiring that should "
            "lose clearly",
        )
    if lead.difference > 0 and lead.chance < beyond:
        yield finding(
            "wiring-disagrees",
            f"[{other.wiring}] is right in {lead.difference:.1%} more of the rows at step 1 than the declared "
            f"[{declared.wiring}]: {lead.margin:.1f} standard errors over {lead.sequences} sequences",
            expected=_values(declared.wiring),
            actual=_values(other.wiring),
            details={"difference": round(lead.difference, 6), "margin": round(lead.margin, 2)},
            cause="the contract states what was intended, not what training did",
            next_step="look at the training code; then `init CKPT --features "
            f"{_spelled(other.wiring)} --force`, and write the serving ids from it",
        )


def wiring_of(names: Sequence[PlaneName], dim: int | None = None) -> Wiring:
    """Return the wiring that feeds these planes."""
    return Wiring(
        features=tuple(
            Feature(slot=slot, boundary=name.boundary, state=name.state, dim=dim)  # type: ignore[arg-type]
            for slot, name in enumerate(names)
        )
    )


def _values(wiring: Wiring) -> list[dict[str, Any]]:
    return feature_values(wiring.features)


def _spelled(wiring: Wiring) -> str:
    return ",".join("final_norm" if f.state == "final_norm" else str(f.boundary) for f in wiring.features)


def judge_search(run: ReplayRun, found: Found, declared: Wiring | None) -> tuple[list[Finding], int]:
    """Return what a search says of the declared wiring; a search without a winner could not check anything."""
    best = wiring_of(found.ranking[0].wiring, run.drafter.spec.target_hidden_size)
    by = "the target's distribution" if found.expected else "the text"
    figures = (
        f"{found.margin:.1f} standard errors ahead of the runner-up, confidence {found.confidence:.3f}, over "
        f"{found.tokens} tokens in {found.sequences} sequences (by the likelihood of {by}); "
        f"{found.full_replays} full replays of {found.possible} possible wirings"
    )
    if found.winner is None:
        tied = "; ".join(f"[{wiring_of(names)}]" for names in found.tied[:_MAX_LISTED])
        more = f" and {len(found.tied) - _MAX_LISTED} more" if len(found.tied) > _MAX_LISTED else ""
        if found.pulls:
            return [_pulled(found, best, figures, tied + more)], 0
        return [
            finding(
                "inconclusive",
                f"these cannot be told apart{_where(found)}: {tied}{more}; the best, [{best}], is {figures}",
                actual=_values(best),
                details={"margin": round(found.margin, 2), "confidence": round(found.confidence, 4)},
                next_step="search on more sequences, and on samples of the training data: on unseen text neighbouring "
                "blocks serve a drafter equally well",
            )
        ], 0
    if declared is None:
        return [], 1
    wrong = [
        item for item in diff(declared, best, origin="observed") if item.severity == "error" and not item.unchecked
    ]
    if not wrong:
        return [], 1
    return [
        finding(
            "wiring-disagrees",
            f"the weights were trained with [{best}], the contract declares [{declared}]: {figures}",
            expected=_values(declared),
            actual=_values(best),
            details={"margin": round(found.margin, 2), "confidence": round(found.confidence, 4)},
            cause=wrong[0].message,
            next_step=f"look at the training code; then `init CKPT --features {_spelled(best)} --force`",
        )
    ], 1


def _pulled(found: Found, best: Wiring, figures: str, tied: str) -> Finding:
    return finding(
        "inconclusive",
        f"[{best}] leads beyond chance, but features between it and another do better still"
        f"{_where(found)}: {tied}; the first is {figures}",
        actual=_values(best),
        details={"margin": round(found.margin, 2), "confidence": round(found.confidence, 4), "pulled": True},
        cause="text that the drafter was not trained on, or a wiring whose planes are not all among the recorded ones",
        next_step="search on samples of the training data, with every boundary recorded",
    )


def _where(found: Found) -> str:
    """Say in which slots the tied wirings differ: ``between h[2] and h[3] in slot 1``."""
    between = []
    for slot, names in _open_slots(found):
        more = " and others" if len(names) > _MAX_LISTED else ""
        between.append(f"between {' and '.join(map(str, names[:_MAX_LISTED]))}{more} in slot {slot}")
    return f" ({', '.join(between)})" if between else ""


def _open_slots(found: Found) -> list[tuple[int, list[PlaneName]]]:
    """Return the slots in which the tied wirings differ, each with its planes in the order of the target."""
    slots = enumerate(zip(*found.tied, strict=True))
    return [(slot, sorted(set(names))) for slot, names in slots if len(set(names)) > 1]


def search_object(run: ReplayRun, found: Found) -> dict[str, Any]:
    """Return the search's answer as JSON values; ``init --from-search`` reads it."""
    dim = run.drafter.spec.target_hidden_size
    return {
        "projection_sha256": projection_sha256(run.inputs.checkpoint),
        "winner": None if found.winner is None else _values(wiring_of(found.winner, dim)),
        "wiring": None if found.winner is None else _spelled(wiring_of(found.winner)),
        "confidence": round(found.confidence, 6),
        "margin": round(found.margin, 3),
        "undecided": [
            {"slot": slot, "features": [_spelled(wiring_of([name])) for name in names]}
            for slot, names in _open_slots(found)
        ],
        "pulled_to": [_spelled(wiring_of(names)) for names in found.pulls],
        "possible": found.possible,
        "screened": found.screened,
        "full_replays": found.full_replays,
        "tokens": found.tokens,
        "sequences": found.sequences,
        "likelihood": "target" if found.expected else "text",
        "ahead_of_blind": round(found.blind.margin, 3),
        "ranking": [
            {
                "wiring": _spelled(wiring_of(item.wiring)),
                "log_likelihood": round(item.log_likelihood, 6),
                "behind": None if item.behind is None else round(item.behind.difference, 6),
                "margin": None if item.behind is None else round(item.behind.margin, 3),
            }
            for item in found.ranking
        ],
    }
