"""The header of a safetensors file: names, dtypes, shapes and byte ranges, with no tensor data read.

The format: 8 bytes little-endian header length N, N bytes of JSON that begin with ``{``, then the tensor data, which
the ranges must cover without a hole or an overlap (huggingface/safetensors README, "Format", and
``Metadata::validate`` in safetensors/src/tensor.rs, 0.8). Refused here although that library lets it pass: duplicate
names, white space before the ``{``, and a null ``__metadata__``.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from typing import BinaryIO, NoReturn, cast

from featurecontract.checkpoint._paths import quoted
from featurecontract.contract.strict_json import parse_json
from featurecontract.errors import InputError, Problem

__all__ = ["DTYPE_BITS", "MAX_HEADER_BYTES", "TensorFacts", "read_header"]

#: Admits about 250 000 tensors in one file; a shard of a 64-shard, 1T-parameter checkpoint needs about 1 MiB.
MAX_HEADER_BYTES = 32 * 1024 * 1024
_MAX_HEADER_VALUES = 4_000_000
_MAX_PROBLEMS = 100
_MAX_TENSOR_BITS = 2**63

#: Bits per element of every dtype that safetensors 0.8 knows.
DTYPE_BITS = {
    "BOOL": 8,
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    "U8": 8,
    "I8": 8,
    "F8_E5M2": 8,
    "F8_E4M3": 8,
    "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8,
    "F8_E5M2FNUZ": 8,
    "I16": 16,
    "U16": 16,
    "F16": 16,
    "BF16": 16,
    "I32": 32,
    "U32": 32,
    "F32": 32,
    "C64": 64,
    "F64": 64,
    "I64": 64,
    "U64": 64,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorFacts:
    """What a header says about one tensor.

    ``file`` is a name in the checkpoint directory; ``begin`` and ``end`` are absolute byte offsets in it (both 0 for
    a tensor in a pickle, which is reached through torch).
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: str
    begin: int
    end: int


def read_header(stream: BinaryIO, *, source: str, file: str) -> dict[str, TensorFacts]:
    """Read and check the header of an open safetensors file; O(N log N) for N tensors.

    Raises:
        InputError: with every tensor that is wrong (at most 100).
    """
    size = os.fstat(stream.fileno()).st_size
    stream.seek(0)
    prefix = stream.read(8)
    if len(prefix) < 8:  # noqa: PLR2004 - the format's length field
        _refuse(source, f"has {size} bytes, too few for a safetensors file")
    length: int = struct.unpack("<Q", prefix)[0]
    if length > size - 8:
        _refuse(source, f"says that its header has {length} bytes, but {size - 8} follow")
    if length > MAX_HEADER_BYTES:
        _refuse(source, f"says that its header has {length} bytes, more than the limit of {MAX_HEADER_BYTES}")
    data = stream.read(length)
    if len(data) < length:
        _refuse(source, "became shorter while it was read")
    if not data.startswith(b"{"):
        _refuse(source, f"has a header that begins with {quoted(data[:4])}, not with '{{'")
    header = cast("dict[str, object]", parse_json(data, source=f"{source} (header)", max_values=_MAX_HEADER_VALUES))
    problems = _check_metadata(header.pop("__metadata__", {}))
    tensors: dict[str, TensorFacts] = {}
    for name, entry in header.items():
        if len(problems) >= _MAX_PROBLEMS:
            break
        facts = _tensor(name, entry, file=file, base=8 + length, size=size)
        if isinstance(facts, str):
            problems.append(Problem(place=quoted(name), message=facts))
        else:
            tensors[name] = facts
    problems = problems or _check_cover(tensors, base=8 + length, size=size)
    if problems:
        last = Problem(place=problems[-1].place, message=problems[-1].message, next_step=_NEXT_STEP)
        raise InputError(source, (*problems[:-1], last))
    return tensors


_NEXT_STEP = "copy the file again, or save it again with the safetensors library"


def _refuse(source: str, message: str) -> NoReturn:
    raise InputError.single(source, message, next_step=_NEXT_STEP)


def _check_metadata(metadata: object) -> list[Problem]:
    if not isinstance(metadata, dict):
        return [Problem(place="__metadata__", message="must be an object of strings")]
    bad = [key for key, value in metadata.items() if not isinstance(value, str)]
    return [Problem(place=f"__metadata__[{quoted(key)}]", message="must be a string") for key in bad[:_MAX_PROBLEMS]]


def _tensor(name: str, entry: object, *, file: str, base: int, size: int) -> TensorFacts | str:
    """Return the tensor, or what is wrong with it."""
    if not isinstance(entry, dict):
        return "must be an object with dtype, shape and data_offsets"
    dtype, shape, offsets = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
    if not isinstance(dtype, str) or dtype not in DTYPE_BITS:
        return f"has the unknown dtype {quoted(dtype)} (known: {', '.join(DTYPE_BITS)})"
    # type() and not isinstance: True is an int.
    if not isinstance(shape, list) or any(type(dim) is not int or dim < 0 for dim in shape):
        return f"has the shape {quoted(shape)}, which is not a list of whole numbers from 0"
    if not isinstance(offsets, list) or [type(at) for at in offsets[:3]] != [int, int] or min(offsets) < 0:
        return f"has the data_offsets {quoted(offsets)}, which are not [begin, end]"
    begin, end = offsets
    facts = TensorFacts(name=name, dtype=dtype, shape=tuple(shape), file=file, begin=base + begin, end=base + end)
    return _range_fault(facts, base=base, size=size) or facts


def _range_fault(facts: TensorFacts, *, base: int, size: int) -> str:
    bits = DTYPE_BITS[facts.dtype]
    for dim in facts.shape:
        bits *= dim
        if bits > _MAX_TENSOR_BITS:
            return f"has the shape {quoted(list(facts.shape))}, too large for any file"
    held = facts.end - facts.begin
    if held < 0:
        return f"begins at {facts.begin - base}, behind its end at {facts.end - base}"
    if bits % 8:
        return f"has the shape {quoted(list(facts.shape))}, which in {facts.dtype} does not end at a byte"
    if held != bits // 8:
        return f"needs {bits // 8} bytes for {facts.dtype} {quoted(list(facts.shape))}, but its range has {held}"
    if facts.end > size:
        return f"ends at {facts.end - base}, but the file has {size - base} bytes of data"
    return ""


def _check_cover(tensors: dict[str, TensorFacts], *, base: int, size: int) -> list[Problem]:
    reached = base
    for facts in sorted(tensors.values(), key=lambda facts: (facts.begin, facts.end)):
        if facts.begin != reached:
            what = "overlaps the tensor before it" if facts.begin < reached else "leaves a hole before it"
            message = f"begins at {facts.begin - base} and {what}, which ends at {reached - base}"
            return [Problem(place=quoted(facts.name), message=message)]
        reached = facts.end
    if reached != size:
        return [Problem(place="", message=f"has {size - reached} bytes behind the last tensor")]
    return []
