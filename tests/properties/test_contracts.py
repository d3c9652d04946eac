from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from featurecontract.contract import (
    CONVENTIONS,
    METHODS,
    Alignment,
    Block,
    Contract,
    Drafter,
    Feature,
    Projection,
    Provenance,
    Quality,
    Rope,
    Serving,
    Statement,
    Target,
    TensorRecord,
    Vocab,
    digest,
    dumps,
    from_boundary,
    loads,
    parse_wiring,
    to_boundary,
)

words = st.text(st.characters(codec="utf-8"), min_size=1, max_size=12)
maybe_words = st.none() | words
shas = st.none() | st.text("0123456789abcdef", min_size=64, max_size=64)
reals = st.floats(allow_nan=False, allow_infinity=False)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | reals | words,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(words, inner, max_size=2),
    max_leaves=4,
)


@st.composite
def contracts(draw, *, version="1.0"):
    """A contract that states a random part of everything; of a newer minor version also what nobody knows."""
    depth, width = draw(st.integers(1, 100_000)), draw(st.integers(1, 2**20))
    extra = st.dictionaries(words.map(lambda w: f"x-{w}"), json_values, max_size=2) if version != "1.0" else st.just({})
    boundaries = draw(st.lists(st.integers(0, depth), min_size=1, max_size=4))
    features = tuple(
        Feature(
            slot=slot,
            boundary=boundary,
            dim=width,
            scale=draw(reals),
            row_offset=draw(st.integers(-9, 9)),
            state="final_norm" if boundary == depth and draw(st.booleans()) else "residual",
            extra=draw(extra),
        )
        for slot, boundary in enumerate(boundaries)
    )
    fc = Projection(
        tensor=draw(words),
        role="fc",
        slots=tuple(range(len(features))),
        in_features=width * len(features),
        out_features=draw(st.integers(1, 2**31)),
        bias=draw(st.booleans()),
        pre_norm=draw(st.sampled_from(["none", "joint", "per_feature", "unknown"])),
        extra=draw(extra),
    )
    record = TensorRecord(name=draw(words), dtype="BF16", shape=tuple(draw(st.lists(st.integers(0, 9)))), sha256=None)
    return Contract(
        contract_version=version,
        name=draw(words),
        method=draw(st.sampled_from(METHODS)),
        target=Target(num_hidden_layers=depth, hidden_size=width, name=draw(maybe_words), tokenizer_sha256=draw(shas)),
        drafter=Drafter(
            hidden_size=width,
            block=draw(st.none() | st.builds(Block, size=st.integers(1, 64), anchor=maybe_words, extra=extra)),
            tensors=draw(st.sampled_from([(), (record,)])),
        ),
        features=features,
        projections=draw(st.sampled_from([(), (fc,)])),
        alignment=Alignment(token_shift=draw(st.integers(-3, 3))),
        norm_before_residual=draw(st.none() | st.booleans()),
        vocab=Vocab(d2t=draw(st.sampled_from([None, "offset", "absolute"])), t2d_sha256=draw(shas)),
        rope=draw(
            st.none()
            | st.builds(
                Rope,
                theta=st.none() | st.floats(0, 1e9),
                scaling=st.none() | st.dictionaries(words, json_values, max_size=2),
            )
        ),
        quality=draw(st.none() | st.builds(Quality, step_accuracies=st.lists(st.floats(0, 1)).map(tuple))),
        serving=draw(st.none() | st.builds(Serving, runtimes=st.lists(words, max_size=2).map(tuple))),
        provenance=Provenance(
            ids=draw(st.none() | st.lists(st.integers(-(2**31), 99)).map(tuple)),
            convention=draw(st.sampled_from([None, *CONVENTIONS])),
            statements=(Statement(path=draw(words), source="inferred", confidence=draw(st.floats(0, 1))),),
        ),
        extra=draw(extra),
    )


@given(contracts() | contracts(version="1.3"))
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
