"""What is asked of the rules, what they answer, and which entry of a list is the one that holds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from featurecontract.dialects import lookup
from featurecontract.runtimes._versions import in_range

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from featurecontract.contract import Wiring
    from featurecontract.runtimes._format import Caution, IdKey, RuntimeRules

__all__ = ["Case", "Crash", "Query", "Resolution", "key_holds"]

_Entry = TypeVar("_Entry")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Query:
    """What is asked of the rules; ``serving_ids`` come from a server option, ``fc_in`` and below from the header.

    ``architectures`` has the target's outer class first, then its text model's. ``tensors`` are the names in the
    drafter's file, None when there is none to read.
    """

    method: str
    config: Mapping[str, Any]
    num_hidden_layers: int
    hidden_size: int
    architectures: tuple[str, ...] = ()
    target_config: Mapping[str, Any] = field(default_factory=dict)
    serving_ids: tuple[int, ...] | None = None
    fc_in: int | None = None
    fc_out: int | None = None
    own_embedding: bool = True
    own_head: bool = True
    tensors: frozenset[str] | None = None

    @property
    def model_type(self) -> str:
        """The text model_type of the target, empty when nobody gave its config."""
        config = dict(self.target_config)
        inner = next(
            (config[key] for key in ("text_config", "llm_config") if isinstance(config.get(key), dict)), config
        )
        value = inner.get("model_type")
        if isinstance(value, str):
            return value
        return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Crash:
    """A death that the rules foresee: its cause, when it comes, what the user will read and what to do about it."""

    cause: str
    when: str
    message: str
    next_step: str = ""

    @property
    def loading(self) -> bool:
        """Whether the checkpoint does not load, whatever its ids are."""
        return self.cause == "drafter architecture" or self.cause.startswith("needs ")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
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
        feed_crash: The first one that comes from the ids or the width, whether or not loading dies before it.
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
    feed_crash: Crash | None = None
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


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Case:
    """One runner of one version, asked one thing: the context in which entries of the rules match or do not."""

    rules: RuntimeRules
    runner: str
    version: str
    query: Query

    @property
    def drafter(self) -> str:
        """The drafter's first architecture string, empty when there is none."""
        value = self.query.config.get("architectures")
        return value[0] if isinstance(value, list) and value and isinstance(value[0], str) else ""

    def matching(self, entries: tuple[_Entry, ...]) -> Iterator[_Entry]:
        """Yield the entries whose every condition holds, target architectures aside."""
        for entry in entries:
            if self._holds(entry):
                yield entry

    def first(self, entries: tuple[_Entry, ...]) -> _Entry | None:
        """Return the first entry that matches: it is the one that counts."""
        return next(self.matching(entries), None)

    def _holds(self, entry: Any) -> bool:
        methods = getattr(entry, "methods", None) or (getattr(entry, "method", None) or self.query.method,)
        runners = getattr(entry, "runners", ())
        drafters = getattr(entry, "drafters", ())
        return (
            self.query.method in methods
            and (not runners or self.runner in runners)
            and (not drafters or self.drafter in drafters)
            and all(key_holds(self.query.config, key) for key in getattr(entry, "only_if", ()))
            and not any(key_holds(self.query.config, key) for key in getattr(entry, "unless", ()))
            and all(lookup(self.query.config, key)[1] is False for key in getattr(entry, "when_false", ()))
            and in_range(self.version, entry.versions)
            and self._type_fits(getattr(entry, "model_types", ()))
        )

    def _type_fits(self, model_types: tuple[str, ...]) -> bool:
        known = self.query.model_type
        return not model_types or not known or any(item in known for item in model_types)


def key_holds(config: Mapping[str, Any], condition: str) -> bool:
    """Whether ``key`` holds something true, or ``key==word`` this very text."""
    key, compared, word = condition.partition("==")
    value = lookup(config, key)[1]
    return value == word if compared else bool(value)
