"""Rules + checkpoint + target -> what a runtime would feed. Pure: reads nothing, says nothing of right or wrong."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from featurecontract.dialects import lookup
from featurecontract.runtimes._expressions import condition_holds
from featurecontract.runtimes._flags import apply_flags
from featurecontract.runtimes._ids import Read, default_boundaries, intended_wiring, read_ids, translate
from featurecontract.runtimes._query import Case, Crash, Query, Resolution
from featurecontract.runtimes._versions import in_range
from featurecontract.runtimes._width import owner_of, skips_projection, width_crash

if TYPE_CHECKING:
    from collections.abc import Iterator

    from featurecontract.contract import Wiring
    from featurecontract.runtimes._format import Caution, MethodRule, Requirement, RuntimeRules, TargetRule

__all__ = ["resolve"]


def resolve(rules: RuntimeRules, runner: str, version: str, query: Query) -> Resolution:
    """Resolve a checkpoint for one runner of one version of a runtime."""
    query = _with_class(rules, query)
    case = Case(rules, runner, version, query)
    base = Resolution(runtime=runner, version=version)
    missing = next(
        (item for item in rules.runners if item.name == runner and not in_range(version, item.versions)), None
    )
    if missing is not None:
        why = f": {missing.reason}" if missing.reason else f" ({missing.versions})"
        return replace(base, reason=f"{rules.title} {version} does not have the runner {runner}{why}")
    method = case.first(rules.methods)
    if method is None or method.reason:
        reason = method.reason if method else f"{rules.title} {version} has no rule for {query.method} drafters"
        return replace(base, reason=reason, sources=(method.source,) if method and method.source else ())
    base = replace(base, crash=_load_crash(method, case), sources=_add((), method.source))
    return _answer(case, base)


def _answer(case: Case, base: Resolution) -> Resolution:
    """Choose the target's rule, or show what can be said when none is known to hold."""
    rules, query = case.rules, case.query
    matching = list(case.matching(rules.targets))
    target = next((item for item in matching if not item.architectures or _serves(item, query)), None)
    if target is not None and _decided(target):
        return _resolve_target(case, base, target)
    if query.architectures and _named_elsewhere(rules, query):
        return _resolve_target(case, base, target) if target is not None else _not_this_version(case, base)
    inner = _inner_answers(case, base, matching)
    if inner:
        return _wrapped(case, base, target, inner)
    if target is not None and not _distinct(matching, query):
        return _resolve_target(case, base, target)
    return _unknown_target(case, base, matching)


def _with_class(rules: RuntimeRules, query: Query) -> Query:
    """Return the query with the class first that this runtime dispatches on: the outer one nearly everywhere."""
    inner = rules.target_class == "inner" and len(query.architectures) > 1
    if inner and query.architectures[0] not in rules.keeps_outer:
        return replace(query, architectures=(query.architectures[-1],))
    return query


def _serves(rule: TargetRule, query: Query) -> bool:
    """Whether the rule lists the class that the runtime builds; a model inside of it does not count."""
    return query.architectures[:1] != () and query.architectures[0] in rule.architectures


def _named_elsewhere(rules: RuntimeRules, query: Query) -> bool:
    """Whether a rule of another version or runner lists this class: then this one is known not to serve it."""
    return any(query.method in item.methods and _serves(item, query) for item in rules.targets)


def _not_this_version(case: Case, base: Resolution) -> Resolution:
    title, named = case.rules.title, case.query.architectures[0][:80]
    reason = f"{title} {base.version} cannot capture from a {named} target for {case.query.method}; other versions can"
    crash = base.crash or Crash(cause="target", when="at load", message=f"{named} has no such capture in this version")
    return replace(base, crash=crash, reason=reason)


def _inner_answers(case: Case, base: Resolution, matching: list[TargetRule]) -> dict[str, Resolution]:
    """Return what would be fed if the unknown outer class captured as its text model does."""
    answers: dict[str, Resolution] = {}
    for name in case.query.architectures[1:]:
        query = replace(case.query, architectures=(name,))
        rule = next((item for item in matching if _serves(item, query)), None)
        if rule is not None:
            inner = _resolve_target(replace(case, query=query), base, rule)
            answers[f"as {name} inside"] = inner
    return answers


def _wrapped(case: Case, base: Resolution, general: TargetRule | None, answers: dict[str, Resolution]) -> Resolution:
    """Show the alternatives for an outer class that no rule knows, around a text model that one does."""
    if general is not None:
        answers = {general.group or "other targets": _resolve_target(case, base, general)} | answers
        if len({(item.wiring, item.crash, item.reason) for item in answers.values()}) == 1:
            return next(iter(answers.values()))
    outer, inner = case.query.architectures[0][:80], ", ".join(case.query.architectures[1:])[:200]
    return replace(
        base,
        reason=f"{case.rules.title} {base.version} has no rule for the target architecture {outer}; "
        f"its text model is {inner}, and whether the outer class captures from it is not known",
        depends=True,
        crash=None,
        alternatives={name: item.wiring for name, item in answers.items() if item.wiring is not None},
        steps=tuple(step for item in list(answers.values())[-1:] for step in item.steps),
    )


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
        message = target.unsupported.replace("{model_type}", query.model_type[:80] or "...")
        crash = base.crash or Crash(cause="target", when="at load", message=message)
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
    feeding = found.crash or width_crash(case, found.features)
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
        crash=base.crash or feeding,
        feed_crash=feeding,
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
        if item.architectures and not any(name in item.architectures for name in case.query.architectures[:1]):
            continue
        if not _tensors_fit(item, case.query):
            continue
        if item.when and read.defaulted:
            continue
        default = tuple(sorted(default_boundaries(target, case.query)))
        if item.when == "explicit-differs" and wiring.boundaries == default:
            continue
        yield item


def _add(sources: tuple[str, ...], source: str) -> tuple[str, ...]:
    return sources if not source or source in sources else (*sources, source)


def _tensors_fit(item: Caution, query: Query) -> bool:
    if not item.with_tensors and not item.without_tensors:
        return True
    if query.tensors is None:
        return False
    names = query.tensors
    return (not item.with_tensors or any(name.startswith(item.with_tensors) for name in names)) and not (
        item.without_tensors and any(name.startswith(item.without_tensors) for name in names)
    )


def _load_crash(method: MethodRule, case: Case) -> Crash | None:
    for key in method.needs:
        if lookup(case.query.config, key)[1] is None:
            message = method.message or f"config.json has no {key}"
            return Crash(cause=f"needs {key}", when="at load", message=message)
    for key in method.needs_present:
        if not lookup(case.query.config, key)[0]:
            return Crash(cause=f"needs {key}", when="at load", message=method.message or f"config.json has no {key}")
    if method.architectures and not case.drafter:
        listed = str(case.query.config.get("architectures"))[:80]
        return Crash(
            cause="drafter architecture",
            when="at load",
            message=f"config.json names no architecture to load (architectures: {listed})",
        )
    if method.architectures and case.drafter not in method.architectures:
        text = method.unknown or "Model architectures ['{arch}'] are not supported for now"
        return Crash(cause="drafter architecture", when="at load", message=text.replace("{arch}", case.drafter[:80]))
    return next((found for item in case.matching(case.rules.requires) if (found := _unmet(item, case.query))), None)


def _unmet(item: Requirement, query: Query) -> Crash | None:
    present, value = lookup(query.config, item.key)
    cause = f"needs {item.key}"
    if item.rule == "present":
        met = present
    elif item.rule == "not-null":
        met = value is not None
    elif item.rule == "not-null-if-present":
        met = not present or value is not None
    elif item.rule == "exactly":
        met = not present or value == item.value
        cause = f"needs {item.key} {item.value}"
    else:
        cause = "drafter architecture"
        met = isinstance(value, list) and bool(value) and all(isinstance(name, str) and name for name in value)
    return None if met else Crash(cause=cause, when="at load", message=item.message, next_step=item.next_step)
