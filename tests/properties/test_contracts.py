from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from featurecontract.contract import CONVENTIONS, digest, dumps, from_boundary, loads, parse_wiring, to_boundary
from featurecontract.strategies import contracts


@given(contracts() | contracts(contract_version="1.3"))
def test_load_and_dump_are_inverse_byte_for_byte(contract):
    data = dumps(contract)
    read = loads(data)
    assert read == contract
    assert dumps(read) == data
    assert digest(read) == digest(contract)


@given(st.integers(1, 10_000).flatmap(lambda depth: st.tuples(st.just(depth), st.lists(st.integers(0, depth)))))
def test_translation_round_trips_between_any_two_conventions(target):
    depth, boundaries = target
    for first in CONVENTIONS:
        ids = [from_boundary(b, first) for b in boundaries]
        assert [to_boundary(i, first) for i in ids] == boundaries
        for second in CONVENTIONS:
            there = [from_boundary(to_boundary(i, first), second) for i in ids]
            assert [from_boundary(to_boundary(i, second), first) for i in there] == ids
    # The two conventions never spell a boundary alike: an id without its convention says nothing.
    assert all(from_boundary(b, "layer_output") != from_boundary(b, "layer_input") for b in range(min(depth, 50)))


@given(
    st.integers(1, 999).flatmap(lambda depth: st.tuples(st.just(depth), st.lists(st.integers(0, depth), min_size=1)))
)
def test_a_wiring_reads_its_own_boundaries(target):
    depth, boundaries = target
    text = ",".join("embedding" if b == 0 else str(b) for b in boundaries)
    assert list(parse_wiring(text, num_hidden_layers=depth).boundaries) == boundaries
