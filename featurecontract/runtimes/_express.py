"""The way back: which key and value make a runtime feed a declared wiring, and from which version on."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from featurecontract.runtimes._resolve import resolve
from featurecontract.runtimes._versions import release_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from featurecontract.contract import Wiring
    from featurecontract.runtimes._format import IdKey, RuntimeRules
    from featurecontract.runtimes._query import Query, Resolution

__all__ = ["Spelled", "express", "express_from"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Spelled:
    """A config edit that feeds the declared wiring: write ``ids`` at ``key``, or remove every list of ids."""

    version: str
    key: str
    where: str
    ids: tuple[int, ...] | None


def express(rules: RuntimeRules, runner: str, version: str, query: Query, declared: Wiring) -> Spelled | None:
    """Return how this version can be made to feed the declared boundaries, None when it cannot.

    Every answer has been resolved forward: it is what the rules say of the edited config, not an inversion.
    """
    wanted = declared.boundaries
    if None in wanted or any(item.source != "target" for item in declared.features):
        return None
    first = resolve(rules, runner, version, query)
    for key in first.id_keys:
        for ids in _spellings(key, wanted):
            edited = _edit(query, key, ids)
            found = resolve(rules, runner, version, edited)
            # A default list that happens to fit says nothing of this key.
            if not found.defaulted and _feeds(found, declared):
                return Spelled(version=version, key=key.path, where=key.where, ids=ids)
    if _feeds(resolve(rules, runner, version, _without_ids(query)), declared):
        return Spelled(version=version, key="", where="drafter", ids=None)
    return None


def express_from(rules: RuntimeRules, runner: str, version: str, query: Query, declared: Wiring) -> Spelled | None:
    """Return the first later version that can feed the declared boundaries, None when none that is known can."""
    known = [item for item in rules.releases if release_of(item) > release_of(version)]
    for later in known:
        found = express(rules, runner, later, query, declared)
        if found is not None:
            return found
    return None


def _spellings(key: IdKey, wanted: tuple[int | None, ...]) -> Iterator[tuple[int, ...]]:
    """Yield id lists to try, the natural offsets first; what is tried here is checked by resolving."""
    boundaries = [item for item in wanted if item is not None]
    for offset in (key.offset, key.offset + 1, key.offset - 1):
        yield tuple(item - offset for item in boundaries)


def _feeds(found: Resolution, declared: Wiring) -> bool:
    # What keeps the checkpoint from loading at all is another finding; its ids can be right all the same.
    if found.wiring is None or found.feed_crash is not None:
        return False
    return [(item.boundary, item.state) for item in found.wiring.features] == [
        (item.boundary, item.state) for item in declared.features
    ]


def _edit(query: Query, key: IdKey, ids: tuple[int, ...]) -> Query:
    if key.where == "serving":
        return replace(query, serving_ids=ids)
    # What else stands in the files stays there, as it does for a user who writes this one key.
    if key.where == "target":
        return replace(query, target_config=_put(dict(query.target_config), key.path, list(ids)))
    return replace(query, config=_put(dict(query.config), key.path, list(ids)))


def _put(config: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    config = copy.deepcopy(config)
    *parents, last = path.split(".")
    place = config
    for part in parents:
        inner = place.get(part)
        if not isinstance(inner, dict):
            inner = {}
            place[part] = inner
        place = inner
    place[last] = value
    return config


def _without_ids(query: Query) -> Query:
    """Return the query with every list of ids taken out, so that only the edit speaks."""
    from featurecontract.dialects import ID_KEYS, lookup

    config = dict(query.config)
    for path in ID_KEYS:
        if lookup(config, path)[0]:
            config = copy.deepcopy(config)
            *parents, last = path.split(".")
            place: Any = config
            for part in parents:
                place = place[part]
            del place[last]
    return replace(query, config=config, serving_ids=None)
