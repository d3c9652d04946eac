"""The ring: on the CPU, the very operations that a CUDA graph replays."""

from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from featurecontract.capture._ring import Clock, Ring


def ring(*, capacity=4, keep="first", armed=True):
    clock = Clock(torch.device("cpu"), tag=0, armed=armed)
    return Ring(capacity=capacity, width=2, dtype=torch.float32, clock=clock, keep=keep)


def block(count, start):
    return torch.arange(start, start + count, dtype=torch.float32).unsqueeze(1).expand(count, 2)


def contents(found):
    calls, dropped = found.read()
    return [(call.values[:, 0].tolist(), call.rows) for call in calls], dropped


@pytest.mark.parametrize(
    ("keep", "counts", "expected"),
    [
        ("first", (), ([], 0)),
        ("first", (2,), ([([0, 1], 2)], 0)),
        ("first", (4,), ([([0, 1, 2, 3], 4)], 0)),
        ("first", (4, 1), ([([0, 1, 2, 3], 4)], 1)),
        ("first", (3, 3, 1), ([([0, 1, 2], 3), ([10], 3)], 1)),
        ("first", (9,), ([([0, 1, 2, 3], 9)], 0)),
        ("first", (1, 9, 1), ([([0], 1), ([10, 11, 12], 9)], 1)),
        ("first", (1, 1, 1, 1, 1), ([([0], 1), ([10], 1), ([20], 1), ([30], 1)], 1)),
        ("last", (), ([], 0)),
        ("last", (4, 1), ([([10], 1)], 1)),
        ("last", (1, 3), ([([0], 1), ([10, 11, 12], 3)], 0)),
        ("last", (3, 3), ([([10, 11, 12], 3)], 1)),
        ("last", (2, 5, 1), ([([0, 1], 2), ([20], 1)], 1)),
        ("last", (1, 1, 1, 1, 1, 1), ([([20], 1), ([30], 1), ([40], 1), ([50], 1)], 2)),
    ],
)
def test_bounds(keep, counts, expected):
    found = ring(keep=keep)
    for number, count in enumerate(counts):
        found.write(block(count, 10 * number))
    assert contents(found) == expected


@pytest.mark.parametrize("keep", ["first", "last"])
def test_a_long_run_equals_a_simple_model(keep):
    generator = torch.Generator().manual_seed(1)
    found, kept, seen = ring(capacity=7, keep=keep), [], 0
    counts = torch.randint(1, 9, (300,), generator=generator).tolist()
    for number, count in enumerate(counts):
        found.write(block(count, 100 * number))
        values = [float(100 * number + row) for row in range(count)]
        if keep == "first":
            kept += [(values[: 7 - seen], count)] if seen < 7 else []
            seen += count
        elif count <= 7:
            kept.append((values, count))
            while sum(size for _, size in kept) > 7:
                kept.pop(0)
        calls, dropped = contents(found)
        assert calls == kept
        assert dropped == number + 1 - len(kept)


def test_the_memory_is_taken_once():
    found = ring()
    before = [tensor.data_ptr() for tensor in (found.values, found.log, found.counter, found.calls)]
    for number in range(50):
        found.write(block(3, number))
    found.reset()
    assert [tensor.data_ptr() for tensor in (found.values, found.log, found.counter, found.calls)] == before
    assert found.values.shape == (5, 2)


def test_an_unarmed_ring_keeps_nothing_and_counts_nothing():
    found = ring(armed=False)
    found.write(block(2, 0))
    assert contents(found) == ([], 0)
    found.clock.armed.fill_(1)
    found.write(block(2, 10))
    found.clock.armed.fill_(0)
    found.write(block(9, 20))
    assert contents(found) == ([([10, 11], 2)], 0)


@pytest.mark.parametrize("keep", ["first", "last"])
def test_what_an_unarmed_ring_sees_overwrites_nothing(keep):
    found = ring(keep=keep)
    found.write(block(4, 0))
    found.clock.armed.fill_(0)
    found.write(block(2, 50))
    assert contents(found) == ([([0, 1, 2, 3], 4)], 0)


def test_tags_and_order_are_read_from_the_device():
    one = ring()
    other = Ring(capacity=4, width=2, dtype=torch.float32, clock=one.clock)
    for number, target in enumerate((one, other, one)):
        one.clock.tag.fill_(number + 5)
        target.write(block(1, number))
    assert [(call.tag, call.order) for call in one.read()[0]] == [(5, 0), (7, 2)]
    assert [(call.tag, call.order) for call in other.read()[0]] == [(6, 1)]


def test_a_reset_begins_anew():
    found = ring()
    found.write(block(9, 0))
    found.reset()
    found.write(block(1, 5))
    assert contents(found) == ([([5], 1)], 0)


@pytest.mark.parametrize("keep", ["first", "last"])
def test_a_write_reads_no_value(keep):
    """What would wait for a device is `item` (``_local_scalar_dense``), a copy, or a shape that depends on values."""
    seen = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            seen.append(function)
            return function(*args, **(kwargs or {}))

    found = ring(keep=keep)
    with Watch():
        found.write(block(2, 0))
    names = {str(function) for function in seen}
    assert "aten.index_copy_.default" in names
    assert not any(
        word in name for name in names for word in ("scalar_dense", "nonzero", "_to_copy", "masked_select", "unique")
    )
    assert not any(torch.Tag.data_dependent_output in f.tags or torch.Tag.dynamic_output_shape in f.tags for f in seen)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64, torch.float8_e4m3fn])
def test_rows_keep_their_dtype(dtype):
    clock = Clock(torch.device("cpu"), tag=0, armed=True)
    found = Ring(capacity=4, width=2, dtype=dtype, clock=clock)
    found.write(block(3, 1).to(dtype))
    ((call,), _) = found.read()
    assert call.values.dtype == dtype
    assert torch.equal(call.values.float(), block(3, 1))
