from __future__ import annotations

import hashlib
import random
import time

import pytest
from checkpoint_files import int32, int64, mask, write_checkpoint
from hypothesis import given, settings
from hypothesis import strategies as st

from featurecontract.checkpoint import VocabFacts, check_vocab_map, open_checkpoint


def facts_of(directory, tensors, target=None, draft=None) -> VocabFacts:
    checkpoint = open_checkpoint(write_checkpoint(directory, tensors))
    return check_vocab_map(checkpoint, target_vocab_size=target, draft_vocab_size=draft)


def offsets(ids: list[int]) -> list[int]:
    return [target - draft for draft, target in enumerate(ids)]


IDS = [0, 1, 4, 5, 9]
ZERO = "all 5 values of d2t are 0, but the target's vocabulary has 10"

#: d2t, t2d, target vocabulary, draft vocabulary -> kind, first bad index, t2d agrees, problems
CASES = {
    "offset": (offsets(IDS), mask(10, IDS), 10, 5, "offset", None, True, ()),
    "offset without t2d": (offsets(IDS), None, 10, 5, "offset", None, None, ()),
    "offset, nothing known": (offsets(IDS), None, None, None, "offset", None, None, ()),
    "offset by t2d's length": (offsets(IDS), mask(10, IDS), None, None, "offset", None, True, ()),
    "absolute": (IDS, mask(10, IDS), 10, 5, "absolute", None, True, ()),
    "absolute by the range": (IDS, None, 10, 5, "absolute", None, None, ()),
    "both fit, t2d says offset": ([0, 1, 2], mask(10, [0, 2, 4]), 10, 3, "offset", None, True, ()),
    "both fit, t2d says absolute": ([0, 1, 2], mask(10, [0, 1, 2]), 10, 3, "absolute", None, True, ()),
    "both fit, no t2d": (
        *([0, 1, 2], None, 10, 3, "unknown", None, None),
        ("d2t can be read as offsets and as target ids, and there is no t2d to decide",),
    ),
    "both fit, t2d agrees with neither": (
        *([0, 1, 2], mask(10, [0, 1, 3]), 10, 3, "unknown", None, None),
        ("d2t can be read as offsets and as target ids, and t2d agrees with neither",),
    ),
    "identity": ([0] * 5, mask(5, range(5)), 5, 5, "identity", None, True, ()),
    "identity without t2d": ([0] * 5, None, 5, None, "identity", None, None, ()),
    "the whole vocabulary as target ids": (list(range(5)), None, 5, 5, "absolute", None, None, ()),
    "zeros": ([0] * 5, None, 10, 5, "zeros", None, None, (ZERO,)),
    "zeros, t2d empty too": ([0] * 5, mask(10, []), 10, 5, "zeros", None, None, (ZERO,)),
    "zeros, the first ids marked": ([0] * 5, mask(10, range(5)), 10, 5, "offset", None, True, ()),
    "zeros, nothing known": (
        *([0] * 5, None, None, None, "unknown", None, None),
        ("all 5 values of d2t are 0, right only if the target's vocabulary, not known, has as many",),
    ),
    "not rising": (
        *([0, 0, -1, 3], None, 10, 4, "unknown", 2, None),
        ("d2t[2] = -1, read as an offset, gives target id 1, not above the 1 before it",),
    ),
    "absolute with a twin": (
        *([3, 5, 5, 9], None, 10, 4, "unknown", 3, None),
        ("d2t[3] = 9, read as an offset, gives target id 12, outside 0..9",),
    ),
    "absolute and falling": (
        *([7, 8, 2], None, 9, 3, "unknown", 2, None),
        ("d2t[2] = 2, read as a target id, gives target id 2, not above the 8 before it",),
    ),
    "beyond the vocabulary": (
        *([0, 0, 9], None, 10, 3, "unknown", 2, None),
        ("d2t[2] = 9, read as an offset, gives target id 11, outside 0..9",),
    ),
    "negative": (
        *([-1, 0, 0], None, None, 3, "unknown", 0, None),
        ("d2t[0] = -1, read as an offset, gives target id -1, below 0",),
    ),
    "empty": ([], None, 10, None, "unknown", None, None, ("d2t is empty",)),
    "t2d marks one more": (
        *(offsets(IDS), mask(10, [*IDS, 7]), 10, 5, "offset", None, False),
        ("target id 7 is in t2d and not in d2t (d2t maps to 5 ids, t2d marks 6)",),
    ),
    "t2d marks two others": (
        *(offsets(IDS), mask(10, [0, 1, 4, 5, 7, 8]), 10, 5, "offset", None, False),
        ("target id 7 is in t2d and not in d2t (d2t maps to 5 ids, t2d marks 6)",),
    ),
    "t2d misses one": (
        *(offsets(IDS), mask(10, IDS[:-1]), 10, 5, "offset", None, False),
        ("target id 9 is in d2t and not in t2d (d2t maps to 5 ids, t2d marks 4)",),
    ),
    "other sizes": (
        *(offsets(IDS), mask(10, IDS), 12, 6, "offset", None, True),
        (
            "d2t has 5 entries, but the draft vocabulary has 6",
            "t2d has 10 entries, but the target vocabulary has 12",
        ),
    ),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("encode", [int64, int32])
def test_the_kind_of_the_map(tmp_path, case, encode):
    values, t2d, target, draft, kind, bad, agrees, problems = CASES[case]
    tensors = {"d2t": encode(values)} | ({} if t2d is None else {"t2d": t2d})
    facts = facts_of(tmp_path, tensors, target, draft)
    assert (facts.kind, facts.first_bad_index, facts.t2d_agrees) == (kind, bad, agrees)
    assert facts.problems == problems
    assert bool(facts.why) == (kind in ("zeros", "unknown"))
    assert facts.present == tuple(tensors)


def test_sizes_counts_and_digests(tmp_path):
    d2t, t2d = int64(offsets(IDS)), mask(10, IDS[1:])
    facts = facts_of(tmp_path, {"model.d2t": d2t, "model.t2d": t2d}, 10, 5)
    assert facts == VocabFacts(
        present=("model.d2t", "model.t2d"),
        kind="offset",
        problems=("target id 0 is in d2t and not in t2d (d2t maps to 5 ids, t2d marks 4)",),
        d2t="model.d2t",
        t2d="model.t2d",
        d2t_size=5,
        t2d_size=10,
        t2d_count=4,
        t2d_agrees=False,
        t2d_first_bad_index=0,
        d2t_sha256=hashlib.sha256(d2t[2]).hexdigest(),
        t2d_sha256=hashlib.sha256(t2d[2]).hexdigest(),
    )


def test_a_mask_of_bytes_is_a_mask(tmp_path):
    _, shape, raw = mask(10, IDS)
    assert facts_of(tmp_path, {"d2t": int64(offsets(IDS)), "t2d": ("U8", shape, raw)}, 10).t2d_agrees is True


@pytest.mark.parametrize(
    ("tensors", "kind", "why", "problems"),
    [
        ({}, "absent", "the checkpoint has no d2t", ()),
        ({"t2d": mask(4, [1])}, "absent", "the checkpoint has no d2t", ("t2d is there without d2t",)),
        ({"d2t": ("F32", [1], bytes(4))}, "unknown", "d2t is F32 [1], not one row of integers", None),
        ({"d2t": ("I64", [1, 1], bytes(8))}, "unknown", "d2t is I64 [1, 1], not one row of integers", None),
        ({"d2t": ("U16", [1 << 23], bytes(1 << 24))}, "unknown", "d2t has 8388608 entries, more than 4194304", None),
        (
            {"a.d2t": int64([0]), "b.d2t": int64([0])},
            *("unknown", "several tensors are called d2t: 'a.d2t', 'b.d2t'", None),
        ),
        (
            {"d2t": int64([0, 0, 1]), "t2d": ("U8", [4], b"\0\1\2\0")},
            *("offset", "", ("t2d holds values other than 0 and 1, so it does not mark target ids",)),
        ),
        (
            {"d2t": int64([0, 0, 1]), "t2d": ("BOOL", [2, 2], b"\1\1\0\1")},
            *("offset", "", ("t2d is BOOL [2, 2], not one row of integers",)),
        ),
    ],
)
def test_what_cannot_be_a_map(tmp_path, tensors, kind, why, problems):
    facts = facts_of(tmp_path, tensors, 4)
    assert (facts.kind, facts.why) == (kind, why)
    assert facts.problems == ((why,) if problems is None else problems)


def test_no_tensors_read(tmp_path):
    facts = facts_of(tmp_path, None)
    assert (facts.kind, facts.why) == ("unknown", f"no tensor file in {tmp_path}")


def test_a_real_size_takes_milliseconds(tmp_path):
    ids = sorted(random.Random(0).sample(range(163_840), 32_000))
    tensors = {"d2t": int64(offsets(ids)), "t2d": mask(163_840, ids)}
    checkpoint = open_checkpoint(write_checkpoint(tmp_path, tensors))
    best = 1.0
    for _ in range(3):
        start = time.perf_counter()
        facts = check_vocab_map(checkpoint, target_vocab_size=163_840, draft_vocab_size=32_000)
        best = min(best, time.perf_counter() - start)
    assert (facts.kind, facts.t2d_agrees, facts.problems) == ("offset", True, ())
    assert best < 0.3  # seconds; about 0.015


@settings(max_examples=50, deadline=None)
@given(ids=st.sets(st.integers(0, 63), min_size=1, max_size=63), absolute=st.booleans())
def test_with_t2d_every_map_is_told_apart(tmp_path_factory, ids, absolute):
    order = sorted(ids)
    values = order if absolute else offsets(order)
    facts = facts_of(tmp_path_factory.getbasetemp() / "ckpt", {"d2t": int64(values), "t2d": mask(64, order)}, 64)
    # For a single token both readings are the same.
    assert facts.kind == ("absolute" if absolute and len(order) > 1 else "offset")
    assert facts.t2d_agrees is True
