"""Ids -> boundaries: where a runtime looks, what it makes of what it finds, and how far it reaches."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from featurecontract.contract import Feature, Wiring
from featurecontract.dialects import ID_KEYS, lookup, spaced_layer_ids
from featurecontract.runtimes._expressions import condition_holds, evaluate
from featurecontract.runtimes._query import Crash, key_holds

if TYPE_CHECKING:
    from featurecontract.runtimes._format import ExplicitCase, IdKey, IdRule, Outcome, TargetRule
    from featurecontract.runtimes._query import Case, Query

__all__ = ["Read", "Translated", "default_boundaries", "intended_wiring", "read_ids", "translate"]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Read:
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


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Translated:
    """Features from ids: ``listed`` before sorting and de-duplication, ``shift`` what turned an id into a boundary."""

    features: tuple[Feature, ...]
    listed: tuple[int, ...]
    shift: int = 0
    crash: Crash | None = None
    steps: tuple[str, ...] = ()


_PLACES = {"drafter": "", "target": "target ", "serving": "server option "}


def read_ids(rule: IdRule | None, case: Case) -> Read:
    """Return the ids at the first key that holds some, else the default with what was looked at."""
    query = case.query
    if rule is None or not rule.keys:
        return Read(None, steps=(f"{case.runner} never reads ids for {query.method}: its own list is fixed",))
    looked = []
    for key in rule.keys:
        place = f"{_PLACES[key.where]}{key.path}"
        ids = _ids_at(key, query)
        if ids:
            note = f"reads {place} = {list(ids)}"
            return Read(ids, key=place, where=key.where, offset=key.offset, steps=(note,))
        looked.append(place)
    if rule.on_missing == "crash":
        return Read(None, crash=Crash(cause="ids missing", when="at load", message=rule.message))
    return Read(None, steps=(f"finds no ids at {', '.join(looked)}: falls back to its default list",))


def _ids_at(key: IdKey, query: Query) -> tuple[int, ...]:
    if key.where == "serving":
        return query.serving_ids or ()
    config = query.config if key.where == "drafter" else query.target_config
    for condition in key.only_if:
        if not key_holds(config, condition):
            return ()
    for condition in key.unless:
        if key_holds(config, condition):
            return ()
    value = lookup(config, key.path)[1]
    if isinstance(value, list) and all(isinstance(item, int) and not isinstance(item, bool) for item in value):
        return tuple(value)
    return ()


def translate(target: TargetRule, read: Read, query: Query) -> Translated:
    """Translate ids into features: offset, reach of both ends, order, duplicates."""
    depth = query.num_hidden_layers
    steps: list[str] = []
    if target.state == "final_norm" and not target.default and not target.spaced:
        return _last_state(target, query)
    if read.ids is None:
        listed, shift = default_boundaries(target, query), 0
        steps.append(f"default list: {', '.join(f'h[{item}]' for item in listed)}")
    else:
        chosen = _id_case(target, read.ids, depth)
        shift = chosen.offset + read.offset
        listed = tuple(_boundary(item, shift, target, depth) for item in read.ids)
        rule = f" because {chosen.when}" if chosen.when else ""
        steps.append(f"id k is h[k{shift:+d}]{rule}" if shift else f"id k is h[k]{rule}")
    trouble = _reach(target, listed, depth)
    if trouble is None and target.unsorted.outcome == "crash" and list(listed) != sorted(set(listed)):
        trouble = Crash(cause="unsorted ids", when=target.unsorted.when, message=target.unsorted.message)
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
    return Translated(features, listed, shift, trouble, tuple(steps))


def _last_state(target: TargetRule, query: Query) -> Translated:
    depth = query.num_hidden_layers
    last = Feature(slot=0, boundary=depth, state="final_norm", dim=query.hidden_size)
    if not target.with_embedding:
        return Translated((last,), (depth,))
    embedding = Feature(slot=0, source="drafter_embedding", dim=query.hidden_size, row_offset=1)
    return Translated((embedding, replace(last, slot=1)), (depth,))


def _feature(slot: int, boundary: int, target: TargetRule, read: Read, query: Query) -> Feature:
    normed = (
        target.final_norm_id is not None
        and read.ids is not None
        and target.final_norm_id in read.ids
        and boundary == query.num_hidden_layers
    )
    return Feature(slot=slot, boundary=boundary, state="final_norm" if normed else "residual", dim=query.hidden_size)


def default_boundaries(target: TargetRule, query: Query) -> tuple[int, ...]:
    """Return the boundaries that stand in when no ids are read."""
    depth = query.num_hidden_layers
    if target.spaced:
        layers = query.config.get("num_hidden_layers")
        count = layers if isinstance(layers, int) and 0 < layers < 1000 else 1  # noqa: PLR2004
        return tuple(item + 1 for item in spaced_layer_ids(count, depth))
    return tuple(evaluate(item, depth) for item in target.default)


def _id_case(target: TargetRule, ids: tuple[int, ...], depth: int) -> ExplicitCase:
    return next(item for item in target.explicit if condition_holds(item.when, ids, depth))


def _boundary(item: int, shift: int, target: TargetRule, depth: int) -> int:
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


def intended_wiring(target: TargetRule, rule: IdRule | None, query: Query) -> Wiring | None:
    """Return what the config's own ids would have given at the key that the runtime does look at."""
    for key in ID_KEYS:
        value = lookup(query.config, key)[1]
        if isinstance(value, list) and value and all(type(item) is int for item in value):
            offset = rule.keys[0].offset if rule and rule.keys else 0
            read = Read(tuple(value), key=key, offset=offset)
            return Wiring(features=translate(target, read, query).features)
    return None
