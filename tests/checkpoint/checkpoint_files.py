"""Builders of small checkpoints for the tests."""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def entry(dtype: str, shape: list, begin: int, end: int) -> dict:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def safetensors_bytes(header: object, data: bytes = b"", *, length: int | None = None) -> bytes:
    """Return a safetensors file; ``header`` may be raw bytes, ``length`` a lie about them."""
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(raw) if length is None else length) + raw + data


def tensors_bytes(tensors: dict[str, tuple[str, list, bytes]]) -> bytes:
    """Return a valid safetensors file of name -> (dtype, shape, data)."""
    header, data = {}, b""
    for name, (dtype, shape, raw) in tensors.items():
        header[name] = entry(dtype, shape, len(data), len(data) + len(raw))
        data += raw
    return safetensors_bytes(header, data)


def write_checkpoint(directory: Path, tensors: dict | None = None, config: dict | None = None) -> Path:
    """Write config.json and, with ``tensors``, model.safetensors."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps({} if config is None else config))
    if tensors is not None:
        (directory / "model.safetensors").write_bytes(tensors_bytes(tensors))
    return directory


def int64(values: list[int]) -> tuple[str, list, bytes]:
    return "I64", [len(values)], struct.pack(f"<{len(values)}q", *values)


def int32(values: list[int]) -> tuple[str, list, bytes]:
    return "I32", [len(values)], struct.pack(f"<{len(values)}i", *values)


def mask(size: int, ids: list[int]) -> tuple[str, list, bytes]:
    marked = set(ids)
    return "BOOL", [size], bytes(each in marked for each in range(size))
