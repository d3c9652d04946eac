"""``--feature-contract-fuzz N``: this contract's order, layers and dims, fuzzed against the one diff and the rules.

Each statement draws N examples from `featurecontract.strategies`. A wrong wiring that nothing catches, an equivalent
one that is refused, or a statement that ran no example is a failure that prints the smallest example. Runs are
derandomised: the same run gives the same examples. Nothing is written into the project.
"""

from __future__ import annotations

import json
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from featurecontract.contract import (
    CONVENTIONS,
    contract_from_dict,
    contract_to_dict,
    dumps,
    from_boundary,
    loads,
    parse_wiring,
    to_boundary,
)
from featurecontract.errors import InputError
from featurecontract.findings import diff, verdict_of
from featurecontract.plugin._names import part, unique

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from hypothesis.strategies import SearchStrategy

    from featurecontract.contract import Contract, Feature, Wiring
    from featurecontract.runtimes import Query, RuntimeChoice

__all__ = ["GROUP", "Fuzzed", "fuzz_statements", "fuzz_with", "run_examples"]

GROUP = "fuzz"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fuzzed:
    """One statement's run: how many examples ran, and the smallest one that failed, as text; empty when none did."""

    examples: int
    survivor: str = ""


class _Survivor(Exception):  # noqa: N818 - an example that got through, not an error of the program
    """Raised for an example that fails, so that hypothesis shrinks it."""


def fuzz_statements(contract: Contract, choices: Iterable[RuntimeChoice], query: Query) -> dict[str, Any]:
    """Return statement -> a function of N that runs it; statements with nothing to draw from are left out.

    ``order`` needs two different slices, ``dims`` a stated width, ``runtime-NAME-VERSION`` a runtime that is known and
    reads ids from a config.
    """
    from featurecontract.runtimes import resolve

    out: dict[str, Callable[[int], Fuzzed]] = {}
    if len({_slice(item) for item in contract.features}) > 1:
        out["order"] = partial(_fuzz_order, contract)
    out["layers"] = partial(_fuzz_layers, contract)
    if any(item.dim for item in contract.features):
        out["dims"] = partial(_fuzz_dims, contract)
    out["equivalent"] = partial(_fuzz_equivalent, contract)
    for choice in choices:
        found = resolve(choice.rules, choice.runner, choice.version, query)
        if found.id_keys and not any(item.unchecked for item in choice.findings):
            name = unique("runtime-" + part(choice.key.replace("==", "-")), out)
            out[name] = partial(_fuzz_runtime, contract, choice, query)
    return out


def run_examples(strategy: SearchStrategy[Any], judge: Callable[[Any], str], count: int) -> Fuzzed:
    """Draw ``count`` examples and judge each: an empty text holds, anything else is shrunk and returned."""
    from hypothesis import HealthCheck, Phase, given, settings
    from hypothesis.errors import Unsatisfiable

    ran = 0

    def check(example: Any) -> None:
        nonlocal ran
        ran += 1
        text = judge(example)
        if text:
            raise _Survivor(text)

    test = settings(
        max_examples=count,
        derandomize=True,
        database=None,
        deadline=None,
        print_blob=False,
        report_multiple_bugs=False,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )(given(strategy)(check))
    with _elsewhere():
        try:
            test()
        except _Survivor as found:
            return Fuzzed(examples=ran, survivor=str(found))
        except Unsatisfiable:
            return Fuzzed(examples=0)
    return Fuzzed(examples=ran)


@contextmanager
def _elsewhere() -> Iterator[None]:
    """Keep what hypothesis caches out of the user's project; its directory is a setting of the whole process."""
    from hypothesis import configuration

    found: Any = configuration.storage_directory(intent_to_write=False)
    before = getattr(found, "home_directory", found)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as home:
        configuration.set_hypothesis_home_dir(home)
        try:
            yield
        finally:
            configuration.set_hypothesis_home_dir(before)


def _slice(feature: Feature) -> tuple[Any, ...]:
    return (feature.source, feature.boundary, feature.state, feature.dim, feature.row_offset, feature.scale)


def _slices(wiring: Wiring) -> list[tuple[Any, ...]]:
    return [_slice(item) for item in wiring.features]


def _shown(wiring: Wiring) -> str:
    return f"[{', '.join(str(item) for item in wiring.features)}]"


def _caught(declared: Wiring, fed: Wiring) -> str:
    """Judge a wiring by the diff: what differs must fail, what does not must pass."""
    found = diff(declared, fed)
    failed = verdict_of(found, compared=1) == "fail"
    wrong = _slices(fed) != _slices(declared)
    if wrong == failed:
        return ""
    said = ", ".join(item.slug for item in found) or "no finding"
    return _text("the diff", wrong=wrong, declared=declared, fed=_shown(fed), said=said)


def _text(who: str, *, wrong: bool, declared: Wiring, fed: str, said: str) -> str:
    title = "a wrong wiring survives" if wrong else "an equivalent wiring is refused"
    return f"{title}: {who} says {said}\n  contract says: {_shown(declared)}\n  example:       {fed}"


def _fuzz_order(contract: Contract, count: int) -> Fuzzed:
    from featurecontract.strategies import orderings

    return run_examples(orderings(contract.wiring), partial(_caught, contract.wiring), count)


def _fuzz_layers(contract: Contract, count: int) -> Fuzzed:
    return run_examples(_other_layers(contract), partial(_caught, contract.wiring), count)


def _other_layers(contract: Contract) -> SearchStrategy[Wiring]:
    """Draw what a mistake makes of the layers, and any other wiring of this target."""
    from featurecontract.strategies import can_mutate, mutations, wirings

    declared, depth = contract.wiring, contract.target.num_hidden_layers
    most = len(declared.features) + 1
    others = wirings(num_hidden_layers=depth, dim=declared.features[0].dim, max_slots=most)
    if not can_mutate(declared, num_hidden_layers=depth):
        return others
    return mutations(declared, num_hidden_layers=depth).map(lambda item: item.wiring) | others


def _fuzz_dims(contract: Contract, count: int) -> Fuzzed:
    from hypothesis import strategies as st

    declared = contract.wiring
    able = [item.slot for item in declared.features if item.dim]
    widths = st.integers(1, 2 * max(item.dim or 1 for item in declared.features))

    def judge(changed: dict[int, int]) -> str:
        features = tuple(replace(item, dim=changed.get(item.slot, item.dim)) for item in declared.features)
        other = replace(contract, features=features)
        text = _caught(declared, other.wiring)
        # The widths of a projection's slots are stated twice: a contract that contradicts itself must not load.
        sums = sum(item.dim or 0 for item in features) != sum(item.dim or 0 for item in declared.features)
        reads_all = any(len(item.slots) == len(features) for item in contract.projections)
        if not text and sums and reads_all and _loads(other):
            said = "nothing when the contract is loaded"
            text = _text("the contract's reader", wrong=True, declared=declared, fed=_shown(other.wiring), said=said)
        return f"{text}\n  dims:          {[item.dim for item in features]}" if text else ""

    return run_examples(st.dictionaries(st.sampled_from(able), widths, min_size=1), judge, count)


def _loads(contract: Contract) -> bool:
    try:
        contract_from_dict(contract_to_dict(contract), source="fuzz")
    except InputError:
        return False
    return True


def _fuzz_equivalent(contract: Contract, count: int) -> Fuzzed:
    from hypothesis import strategies as st

    def judge(way: tuple[str, str, bool, int]) -> str:
        convention, spelling, silent, indent = way
        read = _respelled(contract, convention, spelling, indent)
        if silent:
            read = replace(read, pre_norm="unknown", recurrent_state="unknown", norm_before_residual=None, bias=None)
        text = _caught(contract.wiring, read)
        return f"{text}\n  way:           {spelling} {convention}, indent {indent}" if text else ""

    plain = all(item.source == "target" and item.boundary is not None for item in contract.features)
    spellings = ("file", "ids", "text") if plain else ("file",)
    ways = st.tuples(st.sampled_from(list(CONVENTIONS)), st.sampled_from(spellings), st.booleans(), st.integers(0, 8))
    return run_examples(ways, judge, count)


def _respelled(contract: Contract, convention: Any, spelling: str, indent: int) -> Wiring:
    """Write the wiring another way and read it back: a reformatted file, ids in a convention, a comma list."""
    wiring = contract.wiring
    if spelling == "file":
        value = json.loads(dumps(contract))
        turned = dict(sorted(value.items(), reverse=bool(indent % 2)))
        return loads(json.dumps(turned, indent=indent or None, ensure_ascii=bool(indent % 3)).encode()).wiring
    boundaries = [item.boundary or 0 for item in wiring.features]
    if spelling == "ids":
        back = [to_boundary(from_boundary(item, convention), convention) for item in boundaries]
        features = zip(wiring.features, back, strict=True)
        return replace(wiring, features=tuple(replace(item, boundary=boundary) for item, boundary in features))
    words = [
        "final_norm" if item.state == "final_norm" else "embedding" if item.boundary == 0 else str(item.boundary)
        for item in wiring.features
    ]
    read = parse_wiring(",".join(words), num_hidden_layers=contract.target.num_hidden_layers)
    kept = zip(wiring.features, read.features, strict=True)
    return replace(wiring, features=tuple(replace(old, boundary=new.boundary, state=new.state) for old, new in kept))


def _fuzz_runtime(contract: Contract, choice: RuntimeChoice, query: Query, count: int) -> Fuzzed:
    """Write other ids where this runtime reads them, in memory; what it would then feed must be judged rightly."""
    from hypothesis import strategies as st

    from featurecontract.runtimes import express, resolve
    from featurecontract.runtimes._express import _edit

    declared, depth = contract.wiring, contract.target.num_hidden_layers
    spelled = express(choice.rules, choice.runner, choice.version, query, declared)
    keys = resolve(choice.rules, choice.runner, choice.version, query).id_keys
    key = next((item for item in keys if spelled and item.path == spelled.key), keys[0])
    right = spelled.ids if spelled and spelled.ids else ()
    # What fails also with the right ids, such as a norm that the runtime does not read, says nothing of the ids.
    usual = _failing(contract, choice, _edit(query, key, right))[1] if right else frozenset()
    drawn = _other_layers(contract).map(lambda w: tuple((b or 0) - key.offset for b in w.boundaries))
    ids = drawn | st.lists(st.integers(-2, depth + 2), min_size=1, max_size=len(declared.features) + 1).map(tuple)

    def judge(listed: tuple[int, ...]) -> str:
        fed, slugs = _failing(contract, choice, _edit(query, key, listed))
        wrong = fed is None or [i[:3] for i in _slices(fed)] != [i[:3] for i in _slices(declared)]
        if wrong == bool(slugs if wrong else slugs - usual):
            return ""
        shown = f"{key.path} = {list(listed)}, which feeds {'nothing' if fed is None else _shown(fed)}"
        said = ", ".join(sorted(slugs)) or "no error"
        return _text(f"the check of {choice.key}", wrong=wrong, declared=declared, fed=shown, said=said)

    return run_examples(ids | st.just(right) if right else ids, judge, count)


def _failing(contract: Contract, choice: RuntimeChoice, query: Query) -> tuple[Wiring | None, frozenset[str]]:
    """Return what would be fed, None when it would not get that far, and the slugs that keep the check from passing."""
    from featurecontract.gate._judge import judge
    from featurecontract.runtimes import resolve

    found = resolve(choice.rules, choice.runner, choice.version, query)
    findings, _ = judge(choice, query, found, contract)
    slugs = frozenset(item.slug for item in findings if item.severity == "error" or item.unchecked)
    return (None if found.feed_crash is not None else found.wiring), slugs


def fuzz_with(statements: Mapping[str, Callable[[int], Fuzzed]], name: str, count: int) -> str:
    """Run one statement and return what fails it, empty when it holds."""
    found = statements[name](count)
    if found.survivor:
        return f"{found.survivor}\n  after {found.examples} examples; the same run gives the same example"
    if not found.examples:
        return "no example ran, so nothing is known; raise --feature-contract-fuzz"
    return ""
