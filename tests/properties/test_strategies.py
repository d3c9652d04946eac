"""The public strategies: what they draw is valid, gets its slug, shrinks, and covers the corners."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest
from hypothesis import HealthCheck, assume, find, given, settings
from hypothesis import strategies as st

from featurecontract.contract import Wiring, dumps, loads
from featurecontract.errors import UsageError
from featurecontract.findings import diff
from featurecontract.strategies import can_mutate, captures, contracts, mutations, orderings, wirings

PAGE = Path(__file__).parents[2] / "docs" / "strategies.md"
depths = st.shared(st.integers(1, 96), key="depth")


def mutated(*, states=False, **keywords):
    """Draw the depth, a wiring and a mutation of it."""
    return st.integers(1, 96).flatmap(
        lambda depth: wirings(num_hidden_layers=depth, **keywords).flatmap(
            lambda wiring: st.tuples(
                st.just(wiring),
                st.deferred(lambda: mutations(wiring, num_hidden_layers=depth, states=states))
                if states or can_mutate(wiring, num_hidden_layers=depth)
                else st.nothing(),
            )
        )
    )


@settings(max_examples=400, suppress_health_check=[HealthCheck.too_slow])
@given(mutated(max_slots=5))
def test_a_mutation_gets_one_of_its_slugs(pair):
    wiring, mutation = pair
    assert mutation.wiring != wiring
    assert mutation.slugs
    found = [item.slug for item in diff(wiring, mutation.wiring)]
    assert found in [[slug] for slug in mutation.slugs], mutation.name


@settings(max_examples=200)
@given(mutated(states=True, max_slots=4))
def test_a_state_mutation_gets_its_slug_too(pair):
    wiring, mutation = pair
    found = {item.slug for item in diff(wiring, mutation.wiring)}
    assert found & mutation.slugs, mutation.name


@given(wirings())
def test_wirings_are_what_a_contract_may_declare(wiring):
    assert diff(wiring, wiring) == ()
    assert 1 <= len(wiring.features) <= 8


@given(
    depths.flatmap(lambda d: wirings(num_hidden_layers=d).flatmap(lambda w: contracts(wiring=w, num_hidden_layers=d)))
)
def test_a_contract_of_a_wiring_declares_it(contract):
    assert loads(dumps(contract)) == contract


@given(wirings(min_slots=2).flatmap(lambda w: st.tuples(st.just(w), orderings(w))))
def test_an_order_is_noticed_when_it_is_another(pair):
    wiring, other = pair
    assert [item.slug for item in diff(wiring, other)] == ([] if other == wiring else ["order"])


def feature(wiring, slot=0):
    return wiring.features[slot]


@pytest.mark.parametrize(
    "corner",
    [
        lambda w: w.boundaries[0] == 0 and len(w.features) > 1,
        lambda w: feature(w, -1).boundary == 10,
        lambda w: feature(w, -1).state == "final_norm",
        lambda w: len(set(w.boundaries)) < len(w.features),
        lambda w: len(w.features) == 1,
        lambda w: len(w.features) == 8,
        lambda w: {"residual", "final_norm"} == {f.state for f in w.features if f.boundary == 10},
        lambda w: list(w.boundaries) != sorted(w.boundaries),
    ],
)
def test_every_corner_comes_up_often(corner):
    seen = []

    @settings(max_examples=200, derandomize=True, database=None)
    @given(wirings(num_hidden_layers=10))
    def look(wiring):
        seen.append(corner(wiring))

    look()
    assert sum(seen) >= 4


SMALL = settings(max_examples=2000, derandomize=True, database=None)


def test_wirings_shrink_to_the_smallest():
    assert find(wirings(), lambda _: True, settings=SMALL) == Wiring.from_boundaries((0,), dim=64)
    assert find(wirings(), lambda w: len(w.features) > 3, settings=SMALL).boundaries == (0, 0, 0, 0)
    assert find(wirings(), lambda w: w.boundaries[0] != 0, settings=SMALL).boundaries == (1,)


def test_mutations_and_orders_shrink_to_the_smallest():
    declared = Wiring.from_boundaries((0, 3, 31), dim=8)
    found = find(mutations(declared, num_hidden_layers=61), lambda m: "layer-shift" in m.slugs, settings=SMALL)
    assert (found.name, found.wiring.boundaries) == ("shift all -1", (0, 2, 30))
    assert find(orderings(declared), lambda _: True, settings=SMALL) == declared


@pytest.mark.parametrize(
    "keywords",
    [{"min_slots": 0}, {"min_slots": 9}, {"min_slots": 3, "num_hidden_layers": 1, "distinct": True}],
)
def test_what_cannot_be_drawn_is_a_usage_error(keywords):
    with pytest.raises(UsageError, match="no such wiring"):
        find(wirings(**keywords), lambda _: True)


def test_a_wiring_of_one_normed_slot_has_no_certain_mutation():
    wiring = Wiring.from_boundaries((4,), dim=8, final_norm=True)
    with pytest.raises(UsageError, match="states=True"):
        find(mutations(wiring, num_hidden_layers=4), lambda _: True)
    assert find(mutations(wiring, num_hidden_layers=4, states=True), lambda _: True).slugs


@pytest.fixture(scope="module")
def tiny():
    pytest.importorskip("torch")
    from tiny_runs import probe_of, run, tokens, weights

    model, ids = weights(), tokens()
    planes = run(model, ids)
    probe, contract = probe_of(planes, (0, 3, 6), ids, model.norm)
    return contract, probe


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_drawn_capture_is_healthy_and_a_wrong_one_is_named(tiny, data):
    from featurecontract.gate import verify_captures

    contract, probe = tiny
    capture = data.draw(captures(contract, probe))
    report = verify_captures(contract, probe, [capture], path="x")
    assert [item for item in report.findings if item.severity != "note"] == []
    assert report.exit_status == 0
    fed = data.draw(orderings(contract.wiring) | st.just(Wiring.from_boundaries((0, 4, 7), dim=96)))
    assume(fed != contract.wiring)
    wrong = data.draw(captures(contract, probe, wiring=fed))
    found = verify_captures(contract, probe, [wrong], path="x")
    assert found.observed[0].wiring.boundaries == fed.boundaries
    assert found.exit_status == 1


def test_a_capture_without_a_probe_has_the_right_width(tiny):
    contract, probe = tiny
    assert find(captures(contract), lambda _: True, settings=SMALL).calls[0].values.shape[1] == 3 * 96
    (call,) = find(captures(contract, probe), lambda _: True, settings=SMALL).calls
    assert (call.dtype, len(call.values)) == ("float32", 64)
    with pytest.raises(UsageError, match="does not hold"):
        find(captures(contract, probe, wiring=Wiring.from_boundaries((3,), dim=5)), lambda _: True)


@pytest.mark.parametrize(
    "name",
    ["test_what_is_written_is_what_is_read", "test_a_fault_gets_its_name", "test_another_order_is_noticed"],
)
def test_the_example_of_the_page_runs_as_written(tmp_path, name):
    (example,) = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    (tmp_path / "example.py").write_text(example, "utf-8")
    runpy.run_path(str(tmp_path / "example.py"))[name]()
