from __future__ import annotations

import json
import struct
import time

import pytest
import safetensors
from checkpoint_files import entry, safetensors_bytes, write_checkpoint
from hypothesis import given, settings
from hypothesis import strategies as st

from featurecontract.checkpoint import TensorFacts, open_checkpoint
from featurecontract.checkpoint._safetensors import DTYPE_BITS, read_header
from featurecontract.errors import InputError


def header_of(tmp_path, content: bytes) -> dict[str, TensorFacts]:
    path = tmp_path / "x.safetensors"
    path.write_bytes(content)
    with path.open("rb") as stream:
        return read_header(stream, source="x.safetensors", file="x.safetensors")


def test_names_dtypes_shapes_and_absolute_ranges(tmp_path):
    header = {
        "__metadata__": {"format": "pt"},
        "d2t": entry("I64", [2], 6, 22),
        "fc.weight": entry("BF16", [1, 3], 0, 6),
        "scale": entry("F32", [], 22, 26),
        "empty": entry("F32", [0, 7], 26, 26),
    }
    content = safetensors_bytes(header, bytes(26))
    base = len(content) - 26
    assert header_of(tmp_path, content) == {
        "d2t": TensorFacts(name="d2t", dtype="I64", shape=(2,), file="x.safetensors", begin=base + 6, end=base + 22),
        "fc.weight": TensorFacts(
            name="fc.weight", dtype="BF16", shape=(1, 3), file="x.safetensors", begin=base, end=base + 6
        ),
        "scale": TensorFacts(name="scale", dtype="F32", shape=(), file="x.safetensors", begin=base + 22, end=base + 26),
        "empty": TensorFacts(
            name="empty", dtype="F32", shape=(0, 7), file="x.safetensors", begin=base + 26, end=base + 26
        ),
    }


@pytest.mark.parametrize("content", [safetensors_bytes({}), safetensors_bytes(b"{}      ")])
def test_no_tensors_and_padding_are_fine(tmp_path, content):
    assert header_of(tmp_path, content) == {}


@pytest.mark.parametrize("dtype", sorted(DTYPE_BITS))
def test_every_dtype_of_the_library_has_its_size(tmp_path, dtype):
    size = DTYPE_BITS[dtype]
    content = safetensors_bytes({"a": entry(dtype, [8], 0, size)}, bytes(size))
    assert safetensors.deserialize(content)[0][1]["dtype"] == dtype
    assert header_of(tmp_path, content)["a"].dtype == dtype
    too_long = safetensors_bytes({"a": entry(dtype, [8], 0, size + 1)}, bytes(size + 1))
    with pytest.raises(InputError, match=f"needs {size} bytes for {dtype}"):
        header_of(tmp_path, too_long)


def test_no_dtype_of_the_installed_library_is_missing():
    with pytest.raises(safetensors.SafetensorError) as caught:
        safetensors.deserialize(safetensors_bytes({"a": entry("?", [1], 0, 1)}, b"x"))
    known = {word for word in str(caught.value).split("`") if word.replace("_", "").isalnum() and word.isupper()}
    assert known <= DTYPE_BITS.keys()
    assert len(known) > 10


def test_a_sparse_file_is_fine_and_no_data_is_read(tmp_path):
    write_checkpoint(tmp_path)
    size = 1 << 40
    path = tmp_path / "model.safetensors"
    path.write_bytes(safetensors_bytes({"w": entry("F32", [1 << 19, 1 << 19], 0, size)}))
    with path.open("r+b") as stream:
        stream.truncate(path.stat().st_size + size)
    start = time.perf_counter()
    assert open_checkpoint(tmp_path).tensors["w"].shape == (1 << 19, 1 << 19)
    assert time.perf_counter() - start < 1


def test_a_header_over_the_limit_is_refused_before_it_is_read(tmp_path):
    write_checkpoint(tmp_path)
    path = tmp_path / "model.safetensors"
    path.write_bytes(struct.pack("<Q", 1 << 30) + b"{")
    with path.open("r+b") as stream:
        stream.truncate(1 << 31)
    start = time.perf_counter()
    with pytest.raises(InputError, match="its header has 1073741824 bytes, more than the limit of 33554432"):
        open_checkpoint(tmp_path)
    assert time.perf_counter() - start < 0.5


@pytest.mark.slow
def test_a_quarter_of_a_million_tensors_are_read_in_seconds(tmp_path):
    header = {f"model.layers.{at}.mlp.weight": entry("U8", [1], at, at + 1) for at in reversed(range(250_000))}
    content = safetensors_bytes(header, bytes(250_000))
    start = time.perf_counter()
    assert len(header_of(tmp_path, content)) == 250_000
    assert time.perf_counter() - start < 30


# --- properties ---------------------------------------------------------------------------------------------------

VALID = safetensors_bytes(
    {"__metadata__": {"format": "pt"}, "a": entry("BF16", [2, 2], 0, 8), "b": entry("BOOL", [3], 8, 11)}, bytes(11)
)


@st.composite
def damaged(draw) -> bytes:
    content = bytearray(VALID)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(content)))
        what = draw(st.sampled_from(["flip", "digit", "cut", "insert", "delete"]))
        if what == "flip" and at < len(content):
            content[at] ^= 1 << draw(st.integers(0, 7))
        elif what == "digit" and at < len(content):
            content[at] = draw(st.sampled_from(b'0123456789-"[]{},.e'))
        elif what == "cut":
            del content[at:]
        elif what == "insert":
            content[at:at] = draw(st.binary(max_size=4))
        else:
            del content[at : at + draw(st.integers(1, 9))]
    if draw(st.booleans()) and len(content) >= 8:  # keep most headers readable, or only the length is tested
        data = draw(st.sampled_from([0, 10, 11, 12]))
        content[:8] = struct.pack("<Q", max(0, len(content) - 8 - data))
    return bytes(content)


@settings(max_examples=1000, deadline=None)
@given(content=damaged())
def test_only_an_input_error_escapes_and_nothing_passes_that_the_library_refuses(tmp_path_factory, content):
    facts, message = None, ""
    try:
        facts = header_of(tmp_path_factory.getbasetemp(), content)
    except InputError as error:
        message = str(error)
    assert message.isprintable()
    if facts is None:
        return
    expected = {name: (one["dtype"], tuple(one["shape"])) for name, one in safetensors.deserialize(content)}
    assert {name: (one.dtype, one.shape) for name, one in facts.items()} == expected


@settings(deadline=None)
@given(
    sizes=st.lists(st.integers(0, 5), max_size=6),
    moves=st.lists(st.tuples(st.integers(0, 5), st.integers(-2, 2), st.integers(-2, 2)), max_size=2),
    extra=st.integers(-1, 1),
)
def test_ranges_are_accepted_exactly_when_the_library_accepts_them(tmp_path_factory, sizes, moves, extra):
    header, end = {}, 0
    for number, size in enumerate(sizes):
        header[f"t{number}"] = entry("U8", [size], end, end + size)
        end += size
    for which, begin, length in moves:
        if f"t{which}" in header:
            one = header[f"t{which}"]
            one["data_offsets"] = [max(0, one["data_offsets"][0] + begin), max(0, one["data_offsets"][1] + begin)]
            one["data_offsets"][1] = max(0, one["data_offsets"][1] + length)
            one["shape"] = [max(0, one["data_offsets"][1] - one["data_offsets"][0])]
    content = safetensors_bytes(json.dumps(header).encode(), bytes(max(0, end + extra)))
    try:
        expected = len(safetensors.deserialize(content))
    except safetensors.SafetensorError:
        expected = None
    try:
        found = len(header_of(tmp_path_factory.getbasetemp(), content))
    except InputError:
        found = None
    assert found == expected
