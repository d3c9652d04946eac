"""From gathered evidence to one sentence: pure, so that its table of tests is the specification."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from featurecontract.errors import InputError
from featurecontract.findings import Diagnosis, Evidence, finding, rule_for

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from featurecontract.contract import Contract, Wiring
    from featurecontract.errors import FeatureContractError
    from featurecontract.findings import Cause, Drafted, Estimate, Finding, Observed, Predicted, Replayed

__all__ = ["Gathered", "Stage", "cause_of", "conclude", "failed"]

_FLAGS = frozenset(
    (
        "bias-unread",
        "embedding-source",
        "head-source",
        "norm-before-fc",
        "norm-before-residual",
        "norm-flag-unread",
        "recurrent-state",
        "rope",
    )
)
_RUNTIME = frozenset(("runtime-crash", "method-unsupported", "draft-tokens-differ"))
# Below this share of the figure that is stated, the states are as likely at fault as the weights.
_FAR = 0.25
_ORDER: tuple[Cause, ...] = ("wiring", "flags", "runtime", "checkpoint", "drafter")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Stage:
    """One kind of evidence; ``text`` says why it did not run, or what its findings and figures do not."""

    name: str
    ran: bool
    text: str = ""
    findings: tuple[Finding, ...] = ()
    compared: int = 0
    predicted: tuple[Predicted, ...] = ()
    observed: tuple[Observed, ...] = ()
    drafted: tuple[Drafted, ...] = ()
    replayed: tuple[Replayed, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Gathered:
    """All evidence.

    Attributes:
        contract: What is declared.
        static: The files and the rules.
        captured: What was captured, against the probe.
        rows: The weights on the probe's golden rows and on those captured for the same tokens.
        replay: The weights on recorded states or a live target.
        named_runtimes: Whether anybody said what serves it.
        served_arguments: Whether the server's command line was given.
        acceptance: Tokens per round as served; None when nobody said.
        tolerance: How far a figure may lie off, chance apart.
        strict: Whether warnings count.
    """

    contract: Contract
    static: Stage
    captured: Stage
    rows: Stage
    replay: Stage
    named_runtimes: bool = False
    served_arguments: bool = False
    acceptance: float | None = None
    tolerance: float = 0.05
    strict: bool = False


def failed(name: str, error: FeatureContractError) -> Stage:
    """Return a stage that could not be run, with the reason as a finding that settles nothing."""
    slug = error.slug if isinstance(error, InputError) else "nothing-compared"
    step = error.problems[0].next_step if isinstance(error, InputError) else "correct the option"
    text = str(error)[:2000]
    found = finding(slug, text, next_step=step)
    if not found.unchecked:
        # States of another target, say: evidence that cannot be used is no fault of what is served.
        found = finding("nothing-compared", text, next_step=step)
    return Stage(name=name, ran=False, text=text, findings=(found,))


def cause_of(slug: str) -> Cause:
    """Return what a finding of this rule, as an error, is a case of."""
    if slug in _FLAGS:
        return "flags"
    if slug in _RUNTIME:
        return "runtime"
    if slug == "accuracy-below":
        return "drafter"
    group = rule_for(slug).group
    if group == "flags":
        return "flags"
    # What a search or another wiring in a replay says is about the wiring too.
    return "wiring" if group in ("wiring", "rows", "replay") else "checkpoint"


def conclude(known: Gathered) -> Diagnosis:
    """Return the split verdict.

    The gravest cause that has an error gives the sentence, what was observed before what was predicted; the others
    follow. Without any error the drafter is to blame only where its own figures say so, and nothing is to blame only
    where every kind of evidence was there.
    """
    sentences = dict(_causes(known))
    missing = tuple(_missing(known, sentences))
    evidence = tuple(_evidence(known))
    first = next((cause for cause in _ORDER if cause in sentences), None)
    if first is not None and not _contradicted(known, first):
        also = tuple(text for cause, text in sentences.items() if cause != first)
        return Diagnosis(cause=first, sentence=sentences[first], also=also, evidence=evidence, missing=missing)
    if first is not None:
        sentence = (
            "undecided: the rules predict another wiring than the contract's, and the captures of "
            f"{_runtimes(known)} show the contract's: "
        ) + (
            "other flags or another build were captured than the rules were asked about"
            if _named(known)
            else "the version that was captured is not the one that was named"
        )
        return Diagnosis(
            cause="undecided",
            sentence=sentence,
            also=tuple(sentences.values()),
            evidence=evidence,
            missing=("--runtime with the version that really serves", *missing),
        )
    cause, sentence = _without_errors(known, missing)
    return Diagnosis(cause=cause, sentence=sentence, evidence=evidence, missing=missing)


def _errors(stage: Stage, *, strict: bool) -> Iterator[Finding]:
    failing = ("error", "warning") if strict else ("error",)
    return (item for item in stage.findings if item.severity in failing and not item.unchecked)


def _causes(known: Gathered) -> Iterator[tuple[Cause, str]]:
    """Yield each cause once, in the order of gravity, with its sentence."""
    found: dict[Cause, list[Finding]] = {}
    for stage in (known.captured, known.static, known.replay, known.rows):
        for item in _errors(stage, strict=known.strict):
            # Figures that are too good put the states in doubt, not the drafter.
            if not item.details.get("above"):
                found.setdefault(cause_of(item.slug), []).append(item)
    # Where the weights themselves prefer another wiring, the contract is wrong, and not whoever departs from it.
    found.get("wiring", []).sort(key=lambda item: item.slug != "wiring-disagrees")
    for cause in _ORDER:
        if cause in found:
            first, *more = found[cause]
            others = sorted({item.slug for item in more} - {first.slug})
            tail = f" (and {', '.join(others[:4])})" if others else ""
            yield cause, _sentence(known, cause, first) + tail
    if "drafter" not in found and (weak := _weak(known)):
        yield "drafter", weak


def _sentence(known: Gathered, cause: Cause, item: Finding) -> str:
    where = f"{item.runtime}: " if item.runtime else ""
    if cause == "drafter":
        what = f"{item.message}{_doubt(item)}"
        return f"drafter quality: with exactly the declared wiring, and no runtime in between, {what}"
    effect = _effect(known, item) if cause == "wiring" else ""
    return f"{cause}: {where}{item.message}{effect}"


def _doubt(item: Finding) -> str:
    """Return what else gives figures so far below: stored states and their tokens carry no names."""
    value = item.actual.get("value") if isinstance(item.actual, dict) else None
    stated = item.expected if isinstance(item.expected, (int, float)) else None
    if value is None or (stated is not None and value > _FAR * stated):
        return ""
    return "; states of another target, text or row give such a figure too"


def _effect(known: Gathered, item: Finding) -> str:
    """Say what the wiring that is fed does to the drafter, where it was replayed."""
    wiring = _fed_by(known, item.runtime)
    declared = _declared(known)
    if wiring is None or declared is None:
        return ""
    fed = next((entry for entry in known.replay.replayed if _same(entry.wiring, wiring) and not entry.declared), None)
    if fed is None or not fed.measure or not declared.measure:
        return ""
    return (
        f"; replayed with that, step 1 is right in {_share(fed.measure[0])} of the rows, with the declared wiring in "
        f"{_share(declared.measure[0])}"
    )


def _fed_by(known: Gathered, runtime: str | None) -> Wiring | None:
    for seen in known.captured.observed:
        label = f"{seen.runtime or 'capture'}{f' {seen.phase}' if seen.phase else ''}"
        # `pass 1` may follow, where passes differ.
        if runtime is not None and f"{runtime} ".startswith(f"{label} "):
            return seen.wiring
    return next((item.wiring for item in known.static.predicted if item.runtime == runtime), None)


def _same(first: Wiring, second: Wiring) -> bool:
    def key(wiring: Wiring) -> list[tuple[int | None, str]]:
        return [(feature.boundary, feature.state) for feature in wiring.features]

    return key(first) == key(second)


def _contradicted(known: Gathered, cause: Cause) -> bool:
    """Whether only a prediction says so, and what was captured holds in every slot."""
    if cause != "wiring" or not known.captured.ran or not known.captured.observed:
        return False
    if any(item.unchecked or item.severity == "error" for item in known.captured.findings):
        return False
    wrong = [item for item in _errors(known.static, strict=known.strict) if cause_of(item.slug) == "wiring"]
    others = [item for item in _errors(known.replay, strict=known.strict) if cause_of(item.slug) == "wiring"]
    if not wrong or others:
        return False
    # A capture says nothing of another runtime, nor of another version where its own was named beside that.
    captured = {item.runtime for item in known.captured.observed}
    named = {_plain(item.runtime) for item in known.static.predicted}
    return all(
        any(
            not seen
            or not item.runtime
            or seen == _plain(item.runtime)
            or (_family(seen) == _family(item.runtime) and seen not in named)
            for seen in captured
        )
        for item in wrong
    )


def _plain(runtime: str) -> str:
    """Return ``vllm==0.32.0`` for both of its model runners, ``vllm-v1==0.32.0`` and ``vllm-v2==0.32.0``."""
    name, mark, version = runtime.partition("==")
    return name.removesuffix("-v1").removesuffix("-v2") + mark + version


def _family(runtime: str) -> str:
    return _plain(runtime).partition("==")[0]


def _named(known: Gathered) -> bool:
    """Whether the very version that was captured is among those that were predicted."""
    named = {_plain(item.runtime) for item in known.static.predicted}
    return any(item.runtime in named for item in known.captured.observed)


def _declared(known: Gathered) -> Replayed | None:
    return next((item for item in known.replay.replayed if item.declared), None)


def _weak(known: Gathered) -> str:
    """Return the sentence that blames the weights where a replay without any runtime accepts no more than is served."""
    declared = _declared(known)
    length = declared.acceptance_length if declared is not None else None
    if known.acceptance is None or length is None or not _enough(known):
        return ""
    low = length.value if length.low is None else length.low
    if known.acceptance < low - known.tolerance * length.value:
        return ""
    if any(item.details.get("above") for item in known.replay.findings):
        return ""
    return (
        f"drafter quality: with exactly the declared wiring, and no runtime in between, the weights accept "
        f"{_number(length)} tokens per round, and {known.acceptance:.2f} are served: nothing is lost on the way"
    )


def _enough(known: Gathered) -> bool:
    return known.replay.ran and not any(item.unchecked for item in known.replay.findings)


def _without_errors(known: Gathered, missing: Sequence[str]) -> tuple[Cause, str]:
    stages = (known.static, known.captured, known.rows, known.replay)
    open_points = [item for stage in stages for item in stage.findings if item.unchecked]
    declared = _declared(known)
    length = declared.acceptance_length if declared is not None else None
    if any(item.details.get("above") for item in known.replay.findings):
        return "undecided", "undecided: the replay's figures are better than they can be, so the states are in doubt"
    if known.acceptance is not None and length is not None and _enough(known):
        lost = (
            f"{known.acceptance:.2f} tokens per round are served where the weights accept {_number(length)} on the "
            "replayed text"
        )
        if missing or open_points:
            return "undecided", f"undecided: {lost}, and what was run does not say where they are lost"
        return "undecided", (
            f"undecided: {lost}, and yet wiring, flags and drafts hold: the served text is another one, or drafts are "
            "dropped behind the drafter"
        )
    if open_points:
        return "undecided", f"undecided: {open_points[0].slug}: {open_points[0].message}"
    if missing:
        return "undecided", "undecided: what was run holds, and not everything was run"
    drafts = "drafts what the weights draft, " if any(item.compared for item in known.captured.drafted) else ""
    figure = f" ({_number(length)} tokens per round in the replay)" if length is not None else ""
    return "none", (
        f"none: the runtime feeds what is declared, {drafts}and the replay holds; an acceptance that is still too low "
        f"is the drafter's own{figure}"
    )


def _missing(known: Gathered, sentences: dict[Cause, str]) -> Iterator[str]:
    """Yield what would settle more, the most telling first; nothing where a cause was observed."""
    if any(True for _ in _errors(known.captured, strict=known.strict)):
        return
    if not known.captured.ran:
        yield "a capture of what is served: `featurecontract capture CKPT --runtime NAME --target T --out captured`"
    elif not any(item.compared for item in known.captured.drafted) and "wiring" not in sentences:
        reason = next((item.reason for item in known.captured.drafted if item.reason), "none were compared")
        yield f"draft tokens of the runtime that can be drafted again ({reason})"
    if not known.replay.ran and "wiring" not in sentences:
        yield "--states DIR (recorded hidden states), or --target T with --text FILE"
    if not known.named_runtimes:
        yield "--runtime NAME==VERSION, what serves it"
    if not known.served_arguments and "wiring" not in sentences:
        yield "--serve-args with the server's command line"
    quality = known.contract.quality
    stated = quality is not None and (quality.step_accuracies or quality.acceptance_length is not None)
    if known.acceptance is None and not stated and "wiring" not in sentences:
        yield "--acceptance A, the tokens per round that are served"


def _evidence(known: Gathered) -> Iterator[Evidence]:
    yield Evidence(name="static", ran=known.static.ran, text=_static_text(known))
    captured = known.captured
    text = captured.text
    if captured.ran:
        text = "; ".join(
            f"{item.runtime or 'capture'}{f' {item.phase}' if item.phase else ''}: [{item.wiring}]"
            for item in captured.observed[:4]
        ) + (f" and {len(captured.observed) - 4} more" if len(captured.observed) > 4 else "")  # noqa: PLR2004
        text += f"; {_counted(captured)}"
    yield Evidence(name="captured", ran=captured.ran, text=text)
    yield _drafts_evidence(captured)
    yield Evidence(name="rows", ran=known.rows.ran, text=known.rows.text)
    declared = _declared(known)
    text = known.replay.text
    if declared is not None:
        step = f"step 1 right in {_share(declared.measure[0])}, " if declared.measure else ""
        length = declared.acceptance_length
        text = (
            f"declared wiring: {step}{_number(length) if length is not None else 'no'} tokens per round over "
            f"{declared.rows} rows in {declared.sequences} sequences{known.replay.text}"
        )
    yield Evidence(name="replay", ran=known.replay.ran, text=text)


def _drafts_evidence(captured: Stage) -> Evidence:
    """Say how many of the runtime's draft tokens the weights draft on the captured rows."""
    compared = [item for item in captured.drafted if item.compared]
    if not compared:
        reasons = [item.reason for item in captured.drafted if item.reason]
        return Evidence(name="drafts", ran=False, text=reasons[0] if reasons else captured.text or "none were captured")
    total, equal = (sum(getattr(item, name) for item in compared) for name in ("compared", "equal"))
    ties = sum(item.near_ties for item in compared)
    text = f"{equal} of {total} draft tokens are what the weights draft on the captured rows"
    return Evidence(name="drafts", ran=True, text=text + (f", {ties} differ at a near tie" if ties else ""))


def _static_text(known: Gathered) -> str:
    stage = known.static
    if not stage.ran:
        return stage.text
    who = ", ".join(item.runtime for item in stage.predicted[:4]) or "no runtime was named"
    arguments = "" if known.served_arguments else "; no command line was given"
    return f"{who}; {_counted(stage)}{arguments}"


def _counted(stage: Stage) -> str:
    wrong = sum(item.severity == "error" and not item.unchecked for item in stage.findings)
    unclear = sum(item.unchecked for item in stage.findings)
    found = [f"{wrong} wrong"] if wrong else []
    found += [f"{unclear} could not be checked"] if unclear else []
    return f"{stage.compared} statements compared, {' and '.join(found) or 'all hold'}"


def _runtimes(known: Gathered) -> str:
    names = dict.fromkeys(item.runtime or "the capture" for item in known.captured.observed)
    return ", ".join(list(names)[:4])


def _share(figure: Estimate) -> str:
    text = f"{100 * figure.value:.1f} %"
    if figure.low is None or figure.high is None:
        return text
    return f"{text} [{100 * figure.low:.1f}, {100 * figure.high:.1f}]"


def _number(figure: Estimate) -> str:
    text = f"{figure.value:.2f}"
    return text if figure.low is None or figure.high is None else f"{text} [{figure.low:.2f}, {figure.high:.2f}]"
