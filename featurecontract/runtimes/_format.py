"""The rule format: what a runtime does, as data with version ranges and sources. docs/rule-format.md describes it.

Our own rules and a fork's ``--rules FILE`` are the same format and pass the same validation.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from functools import cache
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

from featurecontract.contract import strict_json
from featurecontract.errors import InputError, Problem, UsageError
from featurecontract.runtimes._expressions import condition_holds, evaluate
from featurecontract.runtimes._versions import in_range, parse_version

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

__all__ = [
    "Caution",
    "Embedding",
    "ExplicitCase",
    "Flag",
    "IdKey",
    "IdRule",
    "MethodRule",
    "Outcome",
    "PlaneCount",
    "Requirement",
    "Runner",
    "RuntimeRules",
    "TargetRule",
    "allowed_words",
    "field_types",
    "parse_rules",
    "read_rules",
    "trust_rules",
]

RULES_FORMAT = "featurecontract-rules/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What happens at a boundary that a runtime may not reach: ``fed``, ``dropped`` or ``crash``."""

    outcome: str = "fed"
    when: str = "at the first request"
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplicitCase:
    """How explicit ids become boundaries when ``when`` holds of the list: boundary = id + offset."""

    when: str = ""
    offset: int = 0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class IdKey:
    """A place of ids: ``path`` in the drafter's config, in the target's, or ``serving`` for a server option.

    ``only_if`` and ``unless`` name keys of the same config that must, or must not, hold something true;
    ``key==word`` holds when the key has this very text.
    """

    path: str
    where: str = "drafter"
    offset: int = 0
    only_if: tuple[str, ...] = ()
    unless: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class IdRule:
    """Which keys a runtime reads for a method, first match wins; no keys at all means that it never reads ids."""

    methods: tuple[str, ...]
    versions: str = ""
    runners: tuple[str, ...] = ()
    keys: tuple[IdKey, ...] = ()
    on_missing: str = "default"
    message: str = ""
    source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class TargetRule:
    """What the target's model code does with ids: translation, default, reach of both ends, order.

    ``only_if``, ``unless`` and ``when_false`` name keys of the drafter's config that must, or must not, hold something
    true, or must be exactly false; a rule with one of them speaks for every target that it lists, named or not.
    ``model_types`` are parts of which the target's own text model_type must hold one, where it is known.
    """

    methods: tuple[str, ...]
    source: str
    architectures: tuple[str, ...] = ()
    drafters: tuple[str, ...] = ()
    model_types: tuple[str, ...] = ()
    versions: str = ""
    runners: tuple[str, ...] = ()
    group: str = ""
    explicit: tuple[ExplicitCase, ...] = (ExplicitCase(),)
    default: tuple[str, ...] = ()
    spaced: bool = False
    state: str = "residual"
    embedding: Outcome = field(default_factory=Outcome)
    last: Outcome = field(default_factory=Outcome)
    beyond: Outcome = field(default_factory=lambda: Outcome(outcome="dropped"))
    unsorted: Outcome = field(default_factory=Outcome)
    missing: Outcome = field(default_factory=Outcome)
    aliases: Mapping[str, str] = field(default_factory=dict)
    final_norm_id: int | None = None
    with_embedding: bool = False
    order: str = "visit"
    unsupported: str = ""
    unsupported_when: str = ""
    only_if: tuple[str, ...] = ()
    unless: tuple[str, ...] = ()
    when_false: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class PlaneCount:
    """How many planes the runtime builds ``fc`` for: a key, ``#key`` for the length of a list, or a number."""

    methods: tuple[str, ...]
    versions: str = ""
    runners: tuple[str, ...] = ()
    drafters: tuple[str, ...] = ()
    only_if: tuple[str, ...] = ()
    count: tuple[str, ...] = ()
    exactly: int | None = None
    when: str = "at load"
    message: str = ""
    source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Flag:
    """Where a flag of the drafter is read; no paths: the runtime does not have it. No methods: every method."""

    flag: str
    methods: tuple[str, ...] = ()
    versions: str = ""
    runners: tuple[str, ...] = ()
    drafters: tuple[str, ...] = ()
    only_if: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()
    default: bool = False
    source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Embedding:
    """Which embedding or head the drafter runs with: ``target``, ``own-if-present``, ``target-unless-own-width``."""

    part: str
    rule: str
    methods: tuple[str, ...] = ()
    versions: str = ""
    drafters: tuple[str, ...] = ()
    source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class MethodRule:
    """Whether a runtime has a method in a version range, for which drafters, and what it says when it has not."""

    method: str
    versions: str = ""
    runners: tuple[str, ...] = ()
    only_if: tuple[str, ...] = ()
    architectures: tuple[str, ...] = ()
    reason: str = ""
    needs: tuple[str, ...] = ()
    needs_present: tuple[str, ...] = ()
    message: str = ""
    unknown: str = ""
    source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Requirement:
    """What must hold of a key of the drafter's config, or it does not load; every entry that matches counts."""

    methods: tuple[str, ...]
    key: str
    rule: str
    message: str
    source: str
    value: int | None = None
    versions: str = ""
    runners: tuple[str, ...] = ()
    drafters: tuple[str, ...] = ()
    only_if: tuple[str, ...] = ()
    unless: tuple[str, ...] = ()
    next_step: str = ""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Caution:
    """A known fault of a version range that the wiring alone does not show; ``when`` narrows it to explicit ids.

    ``with_tensors`` and ``without_tensors`` are beginnings of names of tensors that the file must, or must not, hold.
    """

    methods: tuple[str, ...]
    slug: str
    message: str
    source: str
    severity: str = "warning"
    versions: str = ""
    runners: tuple[str, ...] = ()
    architectures: tuple[str, ...] = ()
    drafters: tuple[str, ...] = ()
    with_tensors: tuple[str, ...] = ()
    without_tensors: tuple[str, ...] = ()
    when: str = ""
    next_step: str = ""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Runner:
    """One of several model runners of a runtime, such as vLLM's two; ``reason`` says why it has no other version."""

    name: str
    versions: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class RuntimeRules:
    """Everything known of one runtime. In every list the first entry that matches holds."""

    format: str
    runtime: str
    title: str
    releases: tuple[str, ...]
    source: str
    scheme: str = "pep440"
    snapshot: str = ""
    target_class: str = "outer"
    keeps_outer: tuple[str, ...] = ()
    capture_note: str = ""
    runners: tuple[Runner, ...] = ()
    falls_back: bool = False
    methods: tuple[MethodRule, ...] = ()
    requires: tuple[Requirement, ...] = ()
    ids: tuple[IdRule, ...] = ()
    targets: tuple[TargetRule, ...] = ()
    planes: tuple[PlaneCount, ...] = ()
    flags: tuple[Flag, ...] = ()
    embeddings: tuple[Embedding, ...] = ()
    cautions: tuple[Caution, ...] = ()
    skips_equal_width: str = ""
    width_message: str = ""

    @property
    def oldest(self) -> str:
        """The oldest version that the rules speak about."""
        return self.releases[0]

    @property
    def newest(self) -> str:
        """The newest version that the rules speak about."""
        return self.releases[-1]


_WORDS: Mapping[tuple[str, str], tuple[str, ...]] = {
    ("Outcome", "outcome"): ("fed", "dropped", "crash"),
    ("Outcome", "when"): ("at load", "at the first request", "at conversion"),
    ("PlaneCount", "when"): ("at load", "at the first request", "at conversion"),
    ("Caution", "when"): ("", "explicit", "explicit-differs"),
    ("Caution", "severity"): ("error", "warning", "note"),
    ("IdKey", "where"): ("drafter", "target", "serving"),
    ("IdRule", "on_missing"): ("default", "crash"),
    ("TargetRule", "order"): ("visit", "listed"),
    ("TargetRule", "state"): ("residual", "final_norm"),
    ("Embedding", "part"): ("embedding", "head"),
    ("Embedding", "rule"): ("target", "own-if-present", "target-unless-own-width"),
    ("RuntimeRules", "scheme"): ("pep440", "build", "snapshot"),
    ("RuntimeRules", "target_class"): ("outer", "inner"),
    ("Requirement", "rule"): ("present", "not-null", "not-null-if-present", "exactly", "names"),
    ("RuntimeRules", "format"): (RULES_FORMAT,),
}
_CHECKED: Mapping[str, Callable[[Any], object]] = {
    "versions": lambda text: in_range("1", text),
    "when": lambda text: condition_holds(text, (1,), 30),
    "unsupported_when": lambda text: condition_holds(text, (1,), 30),
    "default": lambda text: evaluate(text, 30),
}


# Which class a nested object becomes; the same key holds plain words elsewhere.
_NESTED: Mapping[str, Any] = {
    "runners": Runner,
    "methods": MethodRule,
    "requires": Requirement,
    "ids": IdRule,
    "targets": TargetRule,
    "planes": PlaneCount,
    "flags": Flag,
    "embeddings": Embedding,
    "cautions": Caution,
    "keys": IdKey,
    "explicit": ExplicitCase,
    "embedding": Outcome,
    "last": Outcome,
    "beyond": Outcome,
    "unsorted": Outcome,
    "missing": Outcome,
}


def trust_rules(value: dict[str, Any]) -> RuntimeRules:
    """Build rules that the tests have parsed already: our own, at every start of the gate."""
    return RuntimeRules(**{key: _trust(key, entry) for key, entry in value.items()})


def _trust(key: str, value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_trust(key, item) for item in value)
    if isinstance(value, dict) and key in _NESTED:
        return _NESTED[key](**{inner: _trust(inner, entry) for inner, entry in value.items()})
    return value


def read_rules(path: Path) -> RuntimeRules:
    """Read a rules file; raises InputError with every problem."""
    return parse_rules(strict_json.read_json(path), source=str(path))


def parse_rules(value: object, *, source: str) -> RuntimeRules:
    """Build rules from JSON values; raises InputError with every problem and its path."""
    problems: list[Problem] = []
    rules = _build(RuntimeRules, value, "", problems)
    if rules is not None:
        _check_releases(rules, problems)
        _check_targets(rules, problems)
    if problems or rules is None:
        raise InputError(source, tuple(problems), slug="runtime-unknown")
    parsed: RuntimeRules = rules
    return parsed


def _check_releases(rules: RuntimeRules, problems: list[Problem]) -> None:
    if not rules.releases:
        problems.append(Problem(place="releases", message="is empty", next_step="list the versions you have read"))
        return
    try:
        versions = [parse_version(item) for item in rules.releases]
    except UsageError as error:
        problems.append(Problem(place="releases", message=str(error)))
        return
    if versions != sorted(versions):
        problems.append(Problem(place="releases", message="is not in ascending order"))


@cache
def field_types(cls: Any) -> dict[str, Any]:
    """Return the types of a rule class's fields, resolved."""
    return get_type_hints(cls, globals() | {"Mapping": dict})


def allowed_words(cls: Any, name: str) -> tuple[str, ...]:
    """Return the words that a field may hold, empty for free text."""
    return _WORDS.get((cls.__name__, name), ())


def _check_targets(rules: RuntimeRules, problems: list[Problem]) -> None:
    for index, rule in enumerate(rules.targets):
        if not rule.explicit or rule.explicit[-1].when:
            problems.append(
                Problem(
                    place=f"targets[{index}].explicit",
                    message="no case is left for other lists of ids",
                    next_step="end it with a case that has no `when`",
                )
            )


def _build(cls: Any, value: object, path: str, problems: list[Problem]) -> Any:
    if not isinstance(value, dict):
        problems.append(Problem(place=path, message="expected an object"))
        return None
    hints = field_types(cls)
    names = {item.name for item in fields(cls)}
    prefix = f"{path}." if path else ""
    before = len(problems)
    problems += [
        Problem(place=f"{prefix}{key[:60]}", message="unknown key", next_step="remove it")
        for key in value
        if key not in names
    ]
    known = {
        key: _convert(cls.__name__, key, hints[key], entry, f"{prefix}{key}", problems)
        for key, entry in value.items()
        if key in names
    }
    if len(problems) > before:
        return None
    try:
        return cls(**known)
    except TypeError as error:
        problems.append(Problem(place=path or "the file", message=str(error).split(") ")[-1]))
        return None


def _convert(  # noqa: PLR0917 - recursive, and private to this border
    owner: str, key: str, hint: Any, value: Any, path: str, problems: list[Problem]
) -> Any:
    text = str(hint)
    if text.startswith("tuple["):
        if not isinstance(value, list):
            problems.append(Problem(place=path, message="expected a list"))
            return ()
        inner = get_args(hint)[0]
        return tuple(_convert(owner, key, inner, item, f"{path}[{i}]", problems) for i, item in enumerate(value))
    if isinstance(hint, type) and hint not in (str, int, bool, dict):
        return _build(hint, value, path, problems)
    wanted: tuple[type, ...] = (dict,) if text.startswith("dict") else (int,) if "int" in text else (bool,)
    wanted = (str,) if hint is str else wanted
    if not isinstance(value, wanted) or (isinstance(value, bool) and bool not in wanted):
        problems.append(Problem(place=path, message=f"expected {wanted[0].__name__}"))
        return None
    words = _WORDS.get((owner, key))
    if words and value not in words:
        problems.append(Problem(place=path, message=f"expected one of {', '.join(words)}"))
    check = _CHECKED.get(key) if isinstance(value, str) and not words else None
    if check is not None:
        try:
            check(value)
        except UsageError as error:
            problems.append(Problem(place=path, message=str(error)))
    return value
