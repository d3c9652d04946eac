"""Rules + checkpoint + target -> what a runtime would feed. Pure: reads nothing, decides nothing about right or wrong."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from featurecontract.contract import Feature, Wiring
from featurecontract.dialects import lookup, spaced_layer_ids
from featurecontract.runtimes._expressions import condition_holds, evaluate
from featurecontract.runtimes._versions import in_range

if TYPE_CHECKING:
    from featurecontract.runtimes._format import (
        Caution,
        ExplicitCase,
        IdKey,
        IdRule,
        MethodRule,
        Outcome,
        PlaneCount,
        RuntimeRules,
        TargetRule,
    )

__all__ = ["Crash", "Query", "Resolution", "resolve"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """What is asked of the rules; ``serving_ids`` come from a server option, ``fc_in`` from the safetensors header."""

    method: str
    config: Mapping[str, Any]
    num_hidden_layers: int
    hidden_size: int
    architectures: tuple[str, ...] = ()
    target_config: Mapping[str, Any] = field(default_factory=dict)
    serving_ids: tuple[int, ...] | None = None
    fc_in: int | None = None
    fc_out: int | None = None
    tensors: frozenset[str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Crash:
    """A death that the rules foresee: its cause, when it comes and what the user will read."""

    cause: str
    when: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolution:
    """What one runner of one version would do.

    Attributes:
        runtime, version: The runner's name and the version asked for.
        wiring: The features it would feed and the flags it would run with; None with ``reason``.
        reason: Why there is no wiring.
        key, where, ids, shift: The key that gave the ids, and what turned an id into a boundary.
        defaulted: Whether the default list stood in.
        reads_ids: Whether this runtime ever reads ids for the method.
        intended: What the ids in the config would have given, had the runtime read them; None without such ids.
        listed: The boundaries as listed, before sorting and de-duplication.
        crash: The first death on the way.
        unread_flags: Flags that the config states and this runtime does not read.
        cautions: Known faults of this version that the wiring alone does not show.
        group: The target rule's group, where the rule depends on the target.
        depends: True when the target's architecture is not known to the rules and matters.
        steps, sources: The trace, one line for each decision, and where the rules were read.
        embedding, head: ``target`` or ``own``: which copy the drafter runs with; empty when the rules do not say.
        skips_projection: True when equal widths make the runtime leave out ``fc``.
    """

    runtime: str
    version: str
    wiring: Wiring | None = None
    reason: str = ""
    key: str = ""
    where: str = ""
    ids: tuple[int, ...] | None = None
    shift: int | None = None
    defaulted: bool = False
    reads_ids: bool = True
    intended: Wiring | None = None
    listed: tuple[int, ...] = ()
    crash: Crash | None = None
    unread_flags: tuple[str, ...] = ()
    cautions: tuple[Caution, ...] = ()
    group: str = ""
    depends: bool = False
    alternatives: Mapping[str, Wiring] = field(default_factory=dict)
    steps: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    embedding: str = ""
    head: str = ""
    skips_projection: bool = False
    id_keys: tuple[IdKey, ...] = ()
    id_source: str = ""


def _first(entries: tuple[Any, ...], runner: str, version: str, **wanted: str) -> Any:
    """Return the first rule whose runner, version range and named lists all match; an empty list matches all."""
    for entry in entries:
        if getattr(entry, "runners", ()) and runner not in entry.runners:
            continue
        if not in_range(version, entry.versions):
            continue
        if all(not getattr(entry, name) or value in getattr(entry, name) for name, value in wanted.items()):
            return entry
    return None


def resolve(rules: RuntimeRules, runner: str, version: str, query: Query) -> Resolution:
    """Resolve a checkpoint for one runner of one version of a runtime."""
    base = Resolution(runtime=runner, version=version)
    drafter = _drafter_architecture(query.config)
    method = next(
        (
            item
            for item in rules.methods
            if item.method == query.method
            and (not item.runners or runner in item.runners)
            and in_range(version, item.versions)
        ),
        None,
    )
    if method is None or method.reason:
        reason = method.reason if method else f"{rules.title} {version} has no rule for {query.method} drafters"
        return replace(base, reason=reason, sources=(method.source,) if method and method.source else ())
    base = replace(base, crash=_load_crash(method, query, drafter), sources=_add((), method.source))
    id_rule: IdRule | None = _first(rules.ids, runner, version, methods=query.method)
    matching = [
        item
        for item in rules.targets
        if query.method in item.methods
        and (not item.runners or runner in item.runners)
        and in_range(version, item.versions)
    ]
    target = next((item for item in matching if not item.architectures or _serves(item, query)), None)
    if target is not None and (target.architectures or not _distinct(matching, query)):
        return _resolve_target(rules, runner, base, target, id_rule, query, drafter)
    return _unknown_target(rules, runner, base, matching, id_rule, query, drafter)


def _serves(rule: TargetRule, query: Query) -> bool:
    return any(name in rule.architectures for name in query.architectures)


def _distinct(matching: list[TargetRule], query: Query) -> bool:
    """Whether it matters that nobody named the architecture; a named one that no rule lists gets the general rule."""
    return not query.architectures and len({_behaviour(item) for item in matching}) > 1


def _behaviour(rule: TargetRule) -> tuple[Any, ...]:
    return (rule.explicit, rule.default, rule.embedding, rule.last, rule.order, rule.unsupported, rule.state)


def _unknown_target(
    rules: RuntimeRules,
    runner: str,
    base: Resolution,
    matching: list[TargetRule],
    id_rule: IdRule | None,
    query: Query,
    drafter: str,
) -> Resolution:
    """Show every alternative when the answer depends on an architecture that the rules do not know."""
    answers: dict[str, Resolution] = {}
    for rule in matching:
        found = _resolve_target(rules, runner, base, rule, id_rule, query, drafter)
        answers.setdefault(rule.group or ", ".join(rule.architectures[:2]) or "other targets", found)
    if not answers:
        return replace(base, reason=f"{rules.title} {base.version} has no rule for {query.method} on any target")
    outcomes = {(item.wiring, item.crash, item.reason) for item in answers.values()}
    if len(outcomes) == 1:
        return next(iter(answers.values()))
    named = query.architectures[0] if query.architectures else ""
    reason = (
        f"{rules.title} {base.version} has no rule for the target architecture {named[:80]}"
        if named
        else f"what {rules.title} {base.version} feeds depends on the target's architecture, which nobody named"
    )
    return replace(
        base,
        reason=reason,
        depends=True,
        crash=None,
        alternatives={name: item.wiring for name, item in answers.items() if item.wiring is not None},
        steps=tuple(step for item in list(answers.values())[:1] for step in item.steps),
    )


def _resolve_target(
    rules: RuntimeRules,
    runner: str,
    base: Resolution,
    target: TargetRule,
    id_rule: IdRule | None,
    query: Query,
    drafter: str,
) -> Resolution:
    if target.unsupported:
        crash = base.crash or Crash(cause="target", when="at load", message=target.unsupported)
        named = query.architectures[0] if query.architectures else target.group
        return replace(
            base,
            group=target.group,
            crash=crash,
            reason=f"{rules.title} {base.version} cannot capture from a {named} target",
            sources=_add(base.sources, target.source),
        )
    read = _read_ids(id_rule, query, runner)
    if read.crash is not None:
        return replace(base, group=target.group, crash=base.crash or read.crash, reason=read.crash.message)
    features, listed, shift, trouble, steps = _boundaries(rules, target, read, query)
    wiring, unread, flag_steps = _with_flags(rules, runner, base.version, features, query, drafter)
    crash = base.crash or trouble or _width_crash(rules, runner, base.version, features, query, drafter)
    cautions = tuple(
        item
        for item in rules.cautions
        if query.method in item.methods
        and (not item.runners or runner in item.runners)
        and in_range(base.version, item.versions)
        and (not item.architectures or any(name in item.architectures for name in query.architectures))
        and _applies(item, read, wiring, rules, target, query)
    )
    intended = _intended(rules, target, id_rule, query) if read.defaulted else None
    return replace(
        base,
        wiring=wiring,
        key=read.key,
        where=read.where,
        ids=read.ids,
        shift=None if read.defaulted else shift,
        defaulted=read.defaulted,
        reads_ids=bool(id_rule and id_rule.keys),
        intended=intended,
        listed=listed,
        crash=crash,
        unread_flags=unread,
        cautions=cautions,
        group=target.group,
        steps=(*read.steps, *steps, *flag_steps),
        sources=_add(_add(base.sources, id_rule.source if id_rule else ""), target.source),
        embedding=_copy(rules, base.version, drafter, query, "embedding"),
        head=_copy(rules, base.version, drafter, query, "head"),
        skips_projection=_skips(rules, base.version, features, query),
        id_keys=id_rule.keys if id_rule else (),
        id_source=id_rule.source if id_rule else "",
    )


def _add(sources: tuple[str, ...], source: str) -> tuple[str, ...]:
    return sources if not source or source in sources else (*sources, source)


def _drafter_architecture(config: Mapping[str, Any]) -> str:
    value = config.get("architectures")
    return value[0] if isinstance(value, list) and value and isinstance(value[0], str) else ""


def _load_crash(method: MethodRule, query: Query, drafter: str) -> Crash | None:
    for key in method.needs:
        if lookup(query.config, key)[1] is None:
            message = method.message or f"config.json has no {key}"
            return Crash(cause=f"needs {key}", when="at load", message=message)
    if method.architectures and drafter and drafter not in method.architectures:
        message = (method.unknown or "Model architectures ['{arch}'] are not supported for now").replace(
            "{arch}", drafter[:80]
        )
        return Crash(cause="drafter architecture", when="at load", message=message)
    return None


@dataclass(frozen=True, slots=True)
class _Read:
    """The ids a runtime found, and what it said on the way."""

    ids: tuple[int, ...] | None
    key: str = "default"
    where: str = ""
    offset: int = 0
    steps: tuple[str, ...] = ()
    crash: Crash | None = None

    @property
    def defaulted(self) -> bool:
        return self.ids is None


_PLACES = {"drafter": "", "target": "target ", "serving": "server option "}


def _read_ids(rule: IdRule | None, query: Query, runner: str) -> _Read:
    if rule is None or not rule.keys:
        return _Read(None, steps=(f"{runner} never reads ids for {query.method}: its own list is fixed",))
    looked = []
    for key in rule.keys:
        place = f"{_PLACES[key.where]}{key.path}"
        ids = _ids_at(key, query)
        if ids:
            note = f"reads {place} = {list(ids)}"
            return _Read(ids, key=place, where=key.where, offset=key.offset, steps=(note,))
        looked.append(place)
    if rule.on_missing == "crash":
        return _Read(None, crash=Crash(cause="ids missing", when="at load", message=rule.message))
    return _Read(None, steps=(f"finds no ids at {', '.join(looked)}: falls back to its default list",))


def _ids_at(key: IdKey, query: Query) -> tuple[int, ...]:
    if key.where == "serving":
        return query.serving_ids or ()
    config = query.config if key.where == "drafter" else query.target_config
    for condition in key.only_if:
        if not lookup(config, condition)[1]:
            return ()
    for condition in key.unless:
        if lookup(config, condition)[1]:
            return ()
    value = lookup(config, key.path)[1]
    if isinstance(value, list) and all(isinstance(item, int) and not isinstance(item, bool) for item in value):
        return tuple(value)
    return ()


def _boundaries(
    rules: RuntimeRules, target: TargetRule, read: _Read, query: Query
) -> tuple[tuple[Feature, ...], tuple[int, ...], int, Crash | None, tuple[str, ...]]:
    """Translate ids into features: offset, reach of both ends, order, duplicates."""
    depth, steps = query.num_hidden_layers, []
    if target.state == "final_norm" and not target.default and not target.spaced:
        return (*_last_state(target, query), 0, None, ())
    if read.ids is None:
        listed, shift = _default(target, query), 0
        steps.append(f"default list: {', '.join(f'h[{item}]' for item in listed)}")
    else:
        case = _case(target, read.ids, depth)
        shift = case.offset + read.offset
        listed = tuple(_translate(item, shift, target, depth) for item in read.ids)
        rule = f" because {case.when}" if case.when else ""
        steps.append(f"id k is h[k{shift:+d}]{rule}" if shift else f"id k is h[k]{rule}")
    trouble = _reach(target, listed, depth)
    order = listed
    if target.order == "visit":
        order = tuple(sorted(set(listed)))
        if order != tuple(sorted(listed)):
            steps.append("duplicates collapse: each block is visited once")
        if order != listed and len(order) == len(listed):
            steps.append("concatenates in the order in which blocks run, not as listed")
    if target.final_norm_id is not None and read.ids and target.final_norm_id in read.ids:
        steps.append(f"id {target.final_norm_id} is the state after the final norm")
    features = tuple(_feature(slot, boundary, target, read, query) for slot, boundary in enumerate(order))
    return features, listed, shift, trouble, tuple(steps)


def _last_state(target: TargetRule, query: Query) -> tuple[tuple[Feature, ...], tuple[int, ...]]:
    depth = query.num_hidden_layers
    last = Feature(slot=0, boundary=depth, state="final_norm", dim=query.hidden_size)
    if not target.with_embedding:
        return (last,), (depth,)
    embedding = Feature(slot=0, source="drafter_embedding", dim=query.hidden_size, row_offset=1)
    return (embedding, replace(last, slot=1)), (depth,)


def _feature(slot: int, boundary: int, target: TargetRule, read: _Read, query: Query) -> Feature:
    normed = (
        target.final_norm_id is not None
        and read.ids is not None
        and target.final_norm_id in read.ids
        and boundary == query.num_hidden_layers
    )
    return Feature(slot=slot, boundary=boundary, state="final_norm" if normed else "residual", dim=query.hidden_size)


def _default(target: TargetRule, query: Query) -> tuple[int, ...]:
    depth = query.num_hidden_layers
    if target.spaced:
        layers = query.config.get("num_hidden_layers")
        count = layers if isinstance(layers, int) and 0 < layers < 1000 else 1  # noqa: PLR2004
        return tuple(item + 1 for item in spaced_layer_ids(count, depth))
    return tuple(evaluate(item, depth) for item in target.default)


def _case(target: TargetRule, ids: tuple[int, ...], depth: int) -> ExplicitCase:
    return next(item for item in target.explicit if condition_holds(item.when, ids, depth))


def _translate(item: int, shift: int, target: TargetRule, depth: int) -> int:
    if target.final_norm_id is not None and item == target.final_norm_id:
        return depth
    for name, boundary in target.aliases.items():
        if item == evaluate(name, depth):
            return evaluate(boundary, depth)
    return item + shift


def _reach(target: TargetRule, listed: tuple[int, ...], depth: int) -> Crash | None:
    """Return what goes wrong at the ends of the target: the embedding, the last state, and beyond."""
    for boundary, outcome, cause in (
        (0, target.embedding, "embedding"),
        (depth, target.last, "last state"),
    ):
        if boundary in listed and outcome.outcome != "fed":
            return _outcome_crash(outcome, cause, boundary)
    for boundary in listed:
        if not 0 <= boundary <= depth and target.beyond.outcome != "fed":
            return _outcome_crash(target.beyond, "out of range", boundary)
    return None


def _outcome_crash(outcome: Outcome, cause: str, boundary: int) -> Crash:
    dropped = f"h[{boundary}] is never captured, so fc gets too few columns"
    message = outcome.message or (dropped if outcome.outcome == "dropped" else f"fails on h[{boundary}]")
    return Crash(cause=cause, when=outcome.when, message=message)


def _intended(rules: RuntimeRules, target: TargetRule, id_rule: IdRule | None, query: Query) -> Wiring | None:
    """Return what the config's own ids would have given at the key that the runtime does look at."""
    from featurecontract.dialects import ID_KEYS

    for key in ID_KEYS:
        value = lookup(query.config, key)[1]
        if isinstance(value, list) and value and all(type(item) is int for item in value):
            offset = id_rule.keys[0].offset if id_rule and id_rule.keys else 0
            read = _Read(tuple(value), key=key, offset=offset)
            return Wiring(features=_boundaries(rules, target, read, query)[0])
    return None


def _with_flags(
    rules: RuntimeRules, runner: str, version: str, features: tuple[Feature, ...], query: Query, drafter: str
) -> tuple[Wiring, tuple[str, ...], tuple[str, ...]]:
    """Apply the norm flags as this runtime reads them."""
    values: dict[str, bool] = {}
    unread: list[str] = []
    steps: list[str] = []
    for name, places in _FLAG_PLACES.items():
        rule = next(
            (
                item
                for item in rules.flags
                if item.flag == name
                and (not item.runners or runner in item.runners)
                and in_range(version, item.versions)
                and (not item.drafters or drafter in item.drafters)
                and all(lookup(query.config, key)[1] for key in item.only_if)
            ),
            None,
        )
        stated = next((v for path in places if isinstance(v := lookup(query.config, path)[1], bool)), None)
        if rule is None:
            continue
        read = next((v for path in rule.paths if isinstance(v := lookup(query.config, path)[1], bool)), None)
        values[name] = rule.default if read is None else read
        if stated and read is None and not values[name]:
            unread.append(name)
            where = f"only at {', '.join(rule.paths)}" if rule.paths else "nowhere"
            steps.append(f"{name} is set in the config, and read {where}")
    pre_norm = "unknown"
    if "norm_before_fc" in values or "fc_norm" in values:
        joint, each = values.get("norm_before_fc"), values.get("fc_norm")
        pre_norm = "per_feature" if each else "joint" if joint else "none"
    recurrent = "unknown"
    if "norm_output" in values:
        recurrent = "post_norm" if values["norm_output"] else "pre_norm"
    wiring = Wiring(
        features=features,
        pre_norm=pre_norm,  # type: ignore[arg-type]
        recurrent_state=recurrent,  # type: ignore[arg-type]
        norm_before_residual=values.get("norm_before_residual"),
        bias=values.get("bias"),
    )
    return wiring, tuple(unread), tuple(steps)


# Every place where a published config was seen to state a flag.
_FLAG_PLACES: Mapping[str, tuple[str, ...]] = {
    "norm_before_fc": ("norm_before_fc", "eagle_config.norm_before_fc"),
    "fc_norm": ("fc_norm", "use_aux_norm", "eagle_config.fc_norm"),
    "norm_output": ("norm_output", "eagle_config.norm_output", "eagle_config.return_hidden_post_norm"),
    "norm_before_residual": ("norm_before_residual", "eagle_config.norm_before_residual"),
    "bias": ("bias", "eagle_config.bias"),
}


def _applies(item: Caution, read: _Read, wiring: Wiring, rules: RuntimeRules, target: TargetRule, query: Query) -> bool:
    if item.when == "explicit":
        return not read.defaulted
    if item.when == "explicit-differs":
        default = tuple(sorted(_default(target, query)))
        return not read.defaulted and wiring.boundaries != default
    return True


def _width_crash(
    rules: RuntimeRules,
    runner: str,
    version: str,
    features: tuple[Feature, ...],
    query: Query,
    drafter: str,
) -> Crash | None:
    """Return the death by width: fc is built for one number of planes, the file or the target gives another."""
    count: PlaneCount | None = next(
        (
            item
            for item in rules.planes
            if query.method in item.methods
            and (not item.runners or runner in item.runners)
            and in_range(version, item.versions)
            and (not item.drafters or drafter in item.drafters)
        ),
        None,
    )
    if count is None:
        return None
    if count.exactly is not None and len(features) != count.exactly:
        message = count.message or f"takes exactly {count.exactly} features"
        return Crash(cause="number of planes", when=count.when, message=message)
    built = _built_planes(count, query, len(features))
    width = _fc_width(query)
    if query.fc_in is not None and built * width != query.fc_in:
        planes = f"{query.fc_in / query.hidden_size:g}"
        message = (
            f"fc is built for {built} x {width} = {built * width} columns, and the file holds {query.fc_in} "
            f"({planes} planes of {query.hidden_size})"
        )
        return Crash(cause="number of planes", when="at load", message=message)
    if built != len(features) and features and not _single_state(features):
        fed, wanted = len(features) * query.hidden_size, built * width
        out = query.fc_out or width
        text = rules.width_message or "mat1 and mat2 shapes cannot be multiplied ({rows}x{fed} and {wanted}x{out})"
        message = text.format(rows="N", fed=fed, wanted=wanted, out=out)
        return Crash(cause="number of planes", when="at the first request", message=message)
    return None


def _single_state(features: tuple[Feature, ...]) -> bool:
    return any(item.state == "final_norm" for item in features)


def _built_planes(count: PlaneCount, query: Query, fed: int) -> int:
    for entry in count.count:
        if entry == "fed":
            return fed
        if entry.isdigit():
            return int(entry)
        value = lookup(query.config, entry.removeprefix("#"))[1]
        if entry.startswith("#") and isinstance(value, list) and value:
            return len(value)
        if not entry.startswith("#") and isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return fed


def _fc_width(query: Query) -> int:
    stated = query.config.get("target_hidden_size")
    own = query.config.get("hidden_size")
    for value in (stated, own):
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return query.hidden_size


def _copy(rules: RuntimeRules, version: str, drafter: str, query: Query, part: str) -> str:
    """Return whose embedding or head the drafter runs with."""
    rule = next(
        (
            item
            for item in rules.embeddings
            if item.part == part
            and in_range(version, item.versions)
            and (not item.drafters or drafter in item.drafters)
        ),
        None,
    )
    if rule is None:
        return ""
    if rule.rule == "own-if-present":
        name = "embed_tokens.weight" if part == "embedding" else "lm_head.weight"
        present = query.tensors is None or any(item.endswith(name) for item in query.tensors)
        return "own" if present else "target"
    if rule.rule == "target-unless-own-width":
        stated = query.config.get("target_hidden_size")
        return "own" if isinstance(stated, int) and stated != query.config.get("hidden_size") else "target"
    return rule.rule


def _skips(rules: RuntimeRules, version: str, features: tuple[Feature, ...], query: Query) -> bool:
    if not rules.skips_equal_width or not in_range(version, rules.skips_equal_width):
        return False
    own = query.config.get("hidden_size")
    return len(features) * query.hidden_size == own and query.fc_in == own
