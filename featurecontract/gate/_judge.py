"""A prediction against the declared wiring: the diff, with the causes that the rule's trace knows."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from featurecontract.findings import Finding, diff, feature_values, finding
from featurecontract.gate._advice import advise

if TYPE_CHECKING:
    from collections.abc import Iterator

    from featurecontract.contract import Contract, Wiring
    from featurecontract.dialects import IdsAt
    from featurecontract.runtimes import Query, Resolution, RuntimeChoice

__all__ = ["judge", "judge_alone"]

STRUCTURAL = (
    "order",
    "embedding-missing",
    "slot-missing",
    "slot-extra",
    "slot-duplicate",
    "layer-shift",
    "layer-mismatch",
)


def judge(
    choice: RuntimeChoice, query: Query, found: Resolution, contract: Contract
) -> tuple[tuple[Finding, ...], int]:
    """Return the findings of one runtime and how many statements were compared."""
    declared = contract.wiring
    out = list(choice.findings)
    if any(item.unchecked for item in out):
        # The nearest rule is shown and holds for another version: nothing it says is a violation of this one.
        return _tagged(out, choice), 0
    if found.depends:
        out.append(_inconclusive(found))
        return _tagged(out, choice), 0
    if found.wiring is None:
        out.append(_unsupported(found))
        return _tagged(out, choice), 1
    differences = list(diff(declared, found.wiring))
    structural = [item for item in differences if item.slug in STRUCTURAL]
    others = [item for item in differences if item.slug not in STRUCTURAL]
    step = advise(choice, query, declared) if structural or found.defaulted or found.crash else ""
    if found.crash is not None:
        out.append(_crash(found, step))
    out += _wiring(found, declared, structural, step)
    out += [_flagged(item, found) for item in others]
    out += _copies(found, contract)
    out += _cautions(found)
    if found.skips_projection:
        out.append(
            finding(
                "width",
                "features and drafter are equally wide, so the runtime leaves the projection out",
                next_step="serve with a runtime that always applies fc, or train with more than one feature",
            )
        )
    return _tagged(out, choice), len(declared.features) + 3


def judge_alone(choice: RuntimeChoice, found: Resolution, ids_listed: tuple[IdsAt, ...]) -> tuple[Finding, ...]:
    """Return what is worth saying of a prediction when there is no contract to compare it with."""
    out = list(choice.findings)
    # A missing method, an open question and a crash stand in the prediction itself.
    if found.wiring is not None:
        if found.crash is not None and found.crash.cause == "embedding":
            out.append(_crash(found, ""))
        listed = next((item.ids for item in ids_listed if item.ids), ())
        if found.defaulted and (found.intended is not None or (listed and not found.reads_ids)):
            out.append(_defaulted(found, found.intended or found.wiring, "", severity="warning"))
        out += _cautions(found)
    return _tagged(out, choice)


def _tagged(findings: list[Finding], choice: RuntimeChoice) -> tuple[Finding, ...]:
    return tuple(item if item.runtime else replace(item, runtime=choice.key) for item in findings)


def _inconclusive(found: Resolution) -> Finding:
    groups: dict[str, list[str]] = {}
    for name, wiring in found.alternatives.items():
        groups.setdefault(f"[{wiring}]", []).append(name)
    listed = "; ".join(f"{wiring} on {_some(names)}" for wiring, names in list(groups.items())[:6])
    return finding(
        "inconclusive",
        f"{found.reason}. It could be {listed}",
        details={"alternatives": {name: feature_values(w.features) for name, w in found.alternatives.items()}},
        next_step="name the architecture: --target DIR, or name:L,H,ARCHITECTURE such as LlamaForCausalLM",
    )


def _some(names: list[str]) -> str:
    shown = ", ".join(names[:4])
    return shown if len(names) <= 4 else f"{shown} and {len(names) - 4} more"  # noqa: PLR2004


def _unsupported(found: Resolution) -> Finding:
    source = "; ".join(found.sources)
    if found.crash is not None:
        return finding(
            "runtime-crash",
            f"{found.reason}: {found.crash.when} it says {found.crash.message!r}",
            details={"when": found.crash.when, "cause": found.crash.cause},
            next_step="serve with a runtime that supports this target; `predict` lists what each would do",
            source=source,
        )
    return finding(
        "method-unsupported",
        found.reason,
        next_step="serve with a runtime that has the method; `predict` lists what each would do",
        source=source,
    )


def _crash(found: Resolution, step: str) -> Finding:
    crash = found.crash
    if crash is None:  # pragma: no cover - the callers have looked
        raise ValueError("no crash")
    details = {"when": crash.when, "cause": crash.cause}
    source = "; ".join(found.sources)
    if crash.cause == "embedding":
        return finding(
            "embedding-unexpressible",
            f"the config asks for the embedding, h[0], at {found.key}; {found.runtime} {found.version} fails on it "
            f"{crash.when}: {crash.message}",
            slots=(0,),
            actual=list(found.ids or ()),
            details=details,
            next_step=step or "serve with a runtime or version that can feed h[0]; `predict` lists them",
            source=source,
        )
    return finding(
        "runtime-crash",
        f"{found.runtime} {found.version} dies {crash.when} ({crash.cause}): {crash.message}",
        actual=list(found.ids or ()),
        details=details,
        next_step=crash.next_step or (_load_step(crash.cause) if crash.loading else step),
        source=source,
    )


def _load_step(cause: str) -> str:
    if cause.startswith("needs "):
        return f"add {cause.removeprefix('needs ')} to config.json, or convert the checkpoint for this runtime"
    return "name an architecture that this runtime registers in config.json, or convert the checkpoint"


def _wiring(found: Resolution, declared: Wiring, structural: list[Finding], step: str) -> Iterator[Finding]:
    predicted = found.wiring
    if predicted is None:  # pragma: no cover - the callers have looked
        return
    lucky = found.intended is not None and found.intended.boundaries == predicted.boundaries
    if found.defaulted and structural and not lucky:
        replaced = tuple(item.slug for item in structural)
        yield _defaulted(found, declared, step, severity="error", replaces=replaced)
        return
    if found.defaulted and (found.reads_ids or structural):
        yield _defaulted(found, declared, step, severity="warning", declared=True)
    elif found.defaulted:
        # A fixed list that is the declared one: true of every version with these rules, and nothing can be written.
        yield _defaulted(found, declared, "nothing, unless another wiring is wanted", severity="note", declared=True)
    for item in structural:
        yield replace(item, next_step=step, cause=_cause(item, found), source="; ".join(found.sources))


def _defaulted(
    found: Resolution,
    wanted: Wiring,
    step: str,
    *,
    severity: Any,
    declared: bool = False,
    replaces: tuple[str, ...] = (),
) -> Finding:
    """Say that a default list stands in, and whether it is the wanted one by luck."""
    predicted = found.wiring
    if predicted is None:  # pragma: no cover - the callers have looked
        raise ValueError("no wiring")
    slug = "ids-defaulted" if found.reads_ids else "ids-unread"
    if not found.reads_ids:
        what = f"{found.runtime} never reads layer ids from this config; its own list"
    elif found.intended is None:
        what = f"the config names no ids where {found.runtime} looks; its default"
    else:
        what = f"the config's ids stand where {found.runtime} does not look; its default"
    same = predicted.boundaries == wanted.boundaries
    if declared and same:
        result = "which is the declared list, by luck"
    elif found.intended is not None and found.intended.boundaries == predicted.boundaries:
        result = "and the ids would have given the same there"
    elif declared or replaces:
        result = f"not the declared [{wanted}]"
    else:
        result = f"where the ids would have given [{wanted}]"
    return finding(
        slug,
        f"{what} [{predicted}] is fed, {result}",
        severity=severity,
        slots=tuple(item.slot for item in predicted.features) if replaces else (),
        expected=feature_values(wanted.features),
        actual=feature_values(predicted.features),
        details={"default": list(predicted.boundaries), "replaces": list(replaces)},
        cause=found.steps[0] if found.steps else "",
        next_step=step or "write the ids where this runtime reads them, so that no default stands in",
        source="; ".join(found.sources),
    )


def _cause(item: Finding, found: Resolution) -> str:
    predicted = found.wiring
    fed = [b for b in predicted.boundaries if b is not None] if predicted else []
    if item.slug == "order" and list(found.listed) != fed:
        return f"listed as {list(found.ids or ())}, and this runtime concatenates in the order in which blocks run"
    if item.slug == "slot-missing" and len(found.listed) > len(fed):
        return f"listed as {list(found.ids or ())}, and this runtime takes each block once"
    return "; ".join(found.steps[:2])


def _flagged(item: Finding, found: Resolution) -> Finding:
    """Replace a norm or bias difference by its cause, where the runtime does not read the flag at all."""
    flags = {
        "norm-before-fc": ("norm_before_fc", "fc_norm"),
        "recurrent-state": ("norm_output",),
        "norm-before-residual": ("norm_before_residual",),
    }.get(item.slug, ())
    unread = [flag for flag in flags if flag in found.unread_flags]
    if unread:
        return finding(
            "norm-flag-unread",
            f"{unread[0]} is set in the config and not read by {found.runtime} {found.version}: {item.message}",
            slots=item.slots,
            expected=item.expected,
            actual=item.actual,
            details={"flag": unread[0], "replaces": [item.slug]},
            cause=next((step for step in found.steps if step.startswith(unread[0])), ""),
            next_step="serve with a version that reads it; `predict --changes` shows from which on",
            source="; ".join(found.sources),
        )
    if flags and not item.next_step:
        return replace(item, next_step=f"state {flags[0]} in config.json as the drafter was trained")
    return item


def _copies(found: Resolution, contract: Contract) -> Iterator[Finding]:
    """Compare whose embedding and head the drafter runs with; ``own`` in a contract means trained."""
    for part, slug, declared, actual in (
        ("embedding", "embedding-source", contract.drafter.embedding, found.embedding),
        ("head", "head-source", contract.drafter.head, found.head),
    ):
        if declared == "own" and actual == "target":
            yield finding(
                slug,
                f"the drafter was trained with its own {part}; {found.runtime} {found.version} uses the target's",
                expected="own",
                actual="target",
                details={"part": part},
                next_step="serve with a runtime that keeps the drafter's, or declare the target's if it is a copy",
                source="; ".join(found.sources),
            )


def _cautions(found: Resolution) -> Iterator[Finding]:
    for item in found.cautions:
        yield finding(
            item.slug,
            item.message,
            severity=item.severity,  # type: ignore[arg-type]
            next_step=item.next_step,
            source=item.source,
            details={"caution": True},
        )
