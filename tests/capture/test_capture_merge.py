"""Merging: shards and stages side by side, replicas once, or the reason why not."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from featurecontract.capture import Call, Capture, Tap, capturing, load, merge, tag
from featurecontract.errors import InputError

WHOLE = torch.arange(24, dtype=torch.float32).reshape(4, 6)


def shards(count, *, start=0.0, **facts):
    """Return the parts of one call, by rank."""
    parts = (WHOLE + start).chunk(count, dim=1)
    return [
        Call(values=part.clone(), rank=rank, shard=(rank, count), extra={"place": "fc"}, **facts)
        for rank, part in enumerate(parts)
    ]


def captures(*calls_by_rank, **how):
    return [
        Capture(calls=tuple(calls), source=f"rank {rank}", extra={"rank": rank}, **how)
        for rank, calls in enumerate(calls_by_rank)
    ]


def refused(found, match):
    with pytest.raises(InputError, match=match) as caught:
        merge(found)
    assert caught.value.slug == "nothing-captured"
    assert "verify the captures one by one" in str(caught.value) or "merge" in str(caught.value)


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("backwards", [False, True])
def test_column_shards_are_gathered_in_call_order(count, backwards):
    first, second = shards(count, token_ids=(1, 2, 3, 4)), shards(count, start=100.0)
    found = captures(*zip(first, second, strict=True))
    merged = merge(found[::-1] if backwards else found)
    assert [call.values.tolist() for call in merged.calls] == [WHOLE.tolist(), (WHOLE + 100).tolist()]
    assert [call.token_ids for call in merged.calls] == [(1, 2, 3, 4), None]
    assert [call.shard for call in merged.calls] == [None, None]
    assert merged.calls[0].extra == {"place": "fc", "gathered": "shard", "ranks": list(range(count))}


def test_row_shards_are_gathered_with_their_facts():
    parts = [
        Call(values=part, shard=(rank, 2), rank=rank, token_ids=tuple(ids), extra={"shard_axis": "rows"})
        for rank, (part, ids) in enumerate(zip(WHOLE.chunk(2), ([1, 2], [3, 4]), strict=True))
    ]
    (call,) = merge(captures([parts[0]], [parts[1]])).calls
    assert call.values.tolist() == WHOLE.tolist()
    assert call.token_ids == (1, 2, 3, 4)


def test_stages_are_gathered_in_their_order():
    left, right = WHOLE[:, :2], WHOLE[:, 2:]
    found = captures([Call(values=right, stage=1)] * 2, [Call(values=left, stage=0)] * 2)
    assert [call.values.tolist() for call in merge(found).calls] == [WHOLE.tolist()] * 2


def test_equal_replicas_are_kept_once():
    whole = Call(values=WHOLE, token_ids=(1, 2, 3, 4))
    merged = merge(captures([whole, whole], [whole, whole]))
    assert len(merged.calls) == 2
    nan = Call(values=torch.full((1, 2), float("nan")))
    assert len(merge(captures([nan], [nan])).calls) == 1


def test_unequal_replicas_are_all_kept():
    found = captures([Call(values=WHOLE)], [Call(values=WHOLE * 2, rank=1)])
    assert [(call.rank, call.values[0, 1].item()) for call in merge(found).calls] == [(0, 1.0), (1, 2.0)]


def test_other_points_keep_their_place_in_the_order():
    fed, back = Call(values=WHOLE), Call(values=WHOLE[:, :2], point="recurrent")
    assert [call.point for call in merge(captures([fed, back, fed])).calls] == ["features", "recurrent", "features"]


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (captures([shards(3)[0]], [shards(3)[2]]), "features: shard 1 of 3 is missing"),
        (captures([shards(2)[0]] * 2, [shards(2)[1]]), r"numbers of calls differ \(shard 0: 2, shard 1: 1\)"),
        (
            captures([shards(2)[0]], [Call(values=WHOLE[:3, 3:], shard=(1, 2), rank=1, extra={"place": "fc"})]),
            r"different rows per shard \(\[4, 3\], \[3, 3\]\)",
        ),
        (
            captures([shards(2, token_ids=(1, 2, 3, 4))[0]], [shards(2, token_ids=(1, 2, 3, 5))[1]]),
            "different token_ids per shard",
        ),
        (
            [captures([Call(values=WHOLE)], contract_sha256=letter * 64)[0] for letter in "ab"],
            "of 2 contracts",
        ),
    ],
)
def test_what_cannot_be_merged_is_said(found, message):
    refused(found, message)


def test_nothing_to_merge():
    for found in ([], captures([], [])):
        with pytest.raises(InputError, match="no call was captured") as caught:
            merge(found)
        assert caught.value.slug == "nothing-captured"
    with pytest.raises(InputError, match=r"no call was captured \(fc: TypeError\)"):
        merge(captures([], failure="fc: TypeError"))


def test_a_shard_cut_short_by_its_bound_still_fits():
    cut = Capture(calls=(shards(2)[1],), dropped=1)
    merged = merge([*captures([shards(2)[0], shards(2, start=9.0)[0]]), cut])
    assert [call.values.tolist() for call in merged.calls] == [WHOLE.tolist()]
    assert merged.dropped == 1
    last = Capture(calls=(shards(2)[1],), dropped=1, extra={"keep": "last"})
    refused([*captures([shards(2)[0]]), last], "keeps its last calls")


def test_facts_of_the_captures_are_kept():
    found = captures([Call(values=WHOLE)], [Call(values=WHOLE)], runtime="sglang==0.5.12", contract_sha256="a" * 64)
    found.append(Capture(calls=(), failure="fc: MemoryError: no", source="rank 2", dropped=2))
    merged = merge(found)
    assert (merged.runtime, merged.contract_sha256, merged.dropped) == ("sglang==0.5.12", "a" * 64, 2)
    assert merged.failure == "rank 2: fc: MemoryError: no"


def test_two_ranks_from_tap_to_merge(tmp_path):
    for rank, part in enumerate(WHOLE.chunk(2, dim=1)):
        model = nn.Identity()
        with capturing(Tap.module(model, shard=(rank, 2)), rank=rank) as recording, tag(token_ids=range(4)):
            model(part)
        recording.save(tmp_path)
    (call,) = merge(load(tmp_path)).calls
    assert call.values.tolist() == WHOLE.tolist()
    assert call.token_ids == (0, 1, 2, 3)


def test_a_count_of_shards_takes_no_memory():
    import tracemalloc

    (part, _) = shards(2)
    part = Call(values=part.values, shard=(0, 2_000_000), extra={"place": "fc"})
    tracemalloc.start()
    try:
        refused(captures([part]), "shard 1 of 2000000 is missing \\(there are: 0\\)")
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()
