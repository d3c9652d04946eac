"""Rules + checkpoint + target -> what a runtime would feed. Pure: reads nothing, says nothing of right or wrong."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from featurecontract.dialects import lookup
from featurecontract.runtimes._expressions import condition_holds
from featurecontract.runtimes._flags import apply_flags
from featurecontract.runtimes._ids import Read, default_boundaries, intended_wiring, read_ids, translate
from featurecontract.runtimes._query import Case, Crash, Query, Resolution
from featurecontract.runtimes._width import owner_of, skips_projection, width_crash

if TYPE_CHECKING:
    from collections.abc import Iterator

    from featurecontract.contract import Wiring
    from featurecontract.runtimes._format import Caution, MethodRule, RuntimeRules, TargetRule

__all__ = ["resolve"]


def resolve(rules: RuntimeRules, runner: str, version: str, query: Query) -> Resolution:
    """Resolve a checkpoint for one runner of one version of a runtime."""
    case = Case(rules, runner, version, query)
    base = Resolution(runtime=runner, version=version)
    method = case.first(rules.methods)
    if method is None or method.reason:
        reason = method.reason if method else f"{rules.title} {version} has no rule for {query.method} drafters"
        return replace(base, reason=reason, sources=(method.source,) if method and method.source else ())
    base = replace(base, crash=_load_crash(method, case), sources=_add((), method.source))
    matching = list(case.matching(rules.targets))
    target = next((item for item in matching if not item.architectures or _serves(item, query)), None)
    if target is not None and (_decided(target) or not _distinct(matching, query)):
        return _resolve_target(case, base, target)
    return _unknown_target(case, base, matching)


def _serves(rule: TargetRule, query: Query) -> bool:
    return any(name in rule.architectures for name in query.architectures)


def _decided(rule: TargetRule) -> bool:
    """Whether the rule was chosen by what the target or the config says, not for want of a better one."""
    return bool(rule.architectures or rule.only_if or rule.when_false)


def _distinct(matching: list[TargetRule], query: Query) -> bool:
    """Whether it matters that nobody named the architecture; a named one that no rule lists gets the general rule."""
    return not query.architectures and len({_behaviour(item) for item in matching}) > 1


def _behaviour(rule: TargetRule) -> tuple[Any, ...]:
    return (rule.explicit, rule.default, rule.embedding, rule.last, rule.order, rule.unsupported, rule.state)


def _unknown_target(case: Case, base: Resolution, matching: list[TargetRule]) -> Resolution:
    """Show every alternative when the answer depends on an architecture that the rules do not know."""
    query, title = case.query, case.rules.title
    answers: dict[str, Resolution] = {}
    for rule in matching:
        found = _resolve_target(case, base, rule)
        answers.setdefault(rule.group or ", ".join(rule.architectures[:2]) or "other targets", found)
    if not answers:
        return replace(base, reason=f"{title} {base.version} has no rule for {query.method} on any target")
    outcomes = {(item.wiring, item.crash, item.reason) for item in answers.values()}
    if len(outcomes) == 1:
        return next(iter(answers.values()))
    named = query.architectures[0] if query.architectures else ""
    reason = (
        f"{title} {base.version} has no rule for the target architecture {named[:80]}"
        if named
        else f"what {title} {base.version} feeds depends on the target's architecture, which nobody named"
    )
    return replace(
        base,
        reason=reason,
        depends=True,
        crash=None,
        alternatives={name: item.wiring for name, item in answers.items() if item.wiring is not None},
        steps=tuple(step for item in list(answers.values())[:1] for step in item.steps),
    )


def _resolve_target(case: Case, base: Resolution, target: TargetRule) -> Resolution:
    query, rules = case.query, case.rules
    if target.unsupported and condition_holds(target.unsupported_when, (), query.num_hidden_layers):
        crash = base.crash or Crash(cause="target", when="at load", message=target.unsupported)
        named = query.architectures[0] if query.architectures else target.group
        return replace(
            base,
            group=target.group,
            crash=crash,
            reason=f"{rules.title} {base.version} cannot capture from a {named} target",
            sources=_add(base.sources, target.source),
        )
    id_rule = case.first(rules.ids)
    read = read_ids(id_rule, case)
    if read.crash is not None:
        return replace(base, group=target.group, crash=base.crash or read.crash, reason=read.crash.message)
    if (
        read.defaulted
        and target.state == "residual"
        and (target.missing.outcome == "crash" or not (target.default or target.spaced))
    ):
        message = target.missing.message or f"{rules.title} has no default list, and the config names no ids it reads"
        missing = Crash(cause="ids missing", when=target.missing.when, message=message)
        return replace(base, group=target.group, crash=base.crash or missing, reason=message)
    found = translate(target, read, query)
    wiring, unread, flag_steps = apply_flags(case, found.features)
    return replace(
        base,
        wiring=wiring,
        key=read.key,
        where=read.where,
        ids=read.ids,
        shift=None if read.defaulted else found.shift,
        defaulted=read.defaulted and bool(target.default or target.spaced),
        reads_ids=bool(id_rule and id_rule.keys),
        intended=intended_wiring(target, id_rule, query) if read.defaulted and id_rule and id_rule.keys else None,
        listed=found.listed,
        crash=base.crash or found.crash or width_crash(case, found.features),
        unread_flags=unread,
        cautions=tuple(_cautions(case, target, read, wiring)),
        group=target.group,
        steps=(*read.steps, *found.steps, *flag_steps),
        sources=_add(_add(base.sources, id_rule.source if id_rule else ""), target.source),
        embedding=owner_of(case, "embedding"),
        head=owner_of(case, "head"),
        skips_projection=skips_projection(case, found.features),
        id_keys=id_rule.keys if id_rule else (),
    )


def _cautions(case: Case, target: TargetRule, read: Read, wiring: Wiring) -> Iterator[Caution]:
    """Yield the known faults of this version that apply to this checkpoint and target."""
    for item in case.matching(case.rules.cautions):
        if item.architectures and not any(name in item.architectures for name in case.query.architectures):
            continue
        if item.when and read.defaulted:
            continue
        default = tuple(sorted(default_boundaries(target, case.query)))
        if item.when == "explicit-differs" and wiring.boundaries == default:
            continue
        yield item


def _add(sources: tuple[str, ...], source: str) -> tuple[str, ...]:
    return sources if not source or source in sources else (*sources, source)


def _load_crash(method: MethodRule, case: Case) -> Crash | None:
    for key in method.needs:
        if lookup(case.query.config, key)[1] is None:
            message = method.message or f"config.json has no {key}"
            return Crash(cause=f"needs {key}", when="at load", message=message)
    for key in method.needs_present:
        if not lookup(case.query.config, key)[0]:
            return Crash(cause=f"needs {key}", when="at load", message=method.message or f"config.json has no {key}")
    if method.architectures and case.drafter and case.drafter not in method.architectures:
        text = method.unknown or "Model architectures ['{arch}'] are not supported for now"
        return Crash(cause="drafter architecture", when="at load", message=text.replace("{arch}", case.drafter[:80]))
    return None
