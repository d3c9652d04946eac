"""One file of stored hidden states, opened without executing anything in it: safetensors, ``torch.save``, gzip."""

from __future__ import annotations

import gzip
import io
import zlib
from typing import TYPE_CHECKING, Any, BinaryIO

import torch
from safetensors import SafetensorError, safe_open

from featurecontract.checkpoint._paths import entry_path, open_entry, quoted, shown_path
from featurecontract.checkpoint._pickle import unpickle
from featurecontract.checkpoint._safetensors import read_header
from featurecontract.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

__all__ = ["load_file"]

_CHUNK = 2**20
# Hidden states hardly compress: planes that are all zero are the rare exception, and small files of them are read.
_FREE_BYTES = 256 * 2**20
_MOST_EXPANSION = 20
_MAX_ENTRIES = 10_000
_WRITE_AGAIN = "write the file again; it may be from a run that was cut off"


def load_file(path: Path, *, follow_links: bool = False) -> dict[str, Any]:
    """Return the top-level entries of a file: tensors, lists of tensors, plain values.

    The container is told by its first bytes. safetensors and ``torch.save`` archives are memory-mapped; a gzip stream
    is inflated into memory.

    Raises:
        InputError: it is none of these, is cut off, needs more than tensors to load, or inflates without end.
    """
    source = shown_path(path)
    with open_entry(path.parent, path.name, follow_links=follow_links) as stream:
        start = stream.read(9)
        stream.seek(0)
        if start.startswith(b"\x1f\x8b"):
            inflated = _inflate(stream, source)
            content = unpickle(inflated, inflated, source, next_step=_WRITE_AGAIN)
        elif start[8:9] == b"{":
            return _safetensors(path, stream, source, follow_links=follow_links)
        elif not start:
            raise InputError.single(source, "is empty", next_step=_WRITE_AGAIN)
        else:
            real = entry_path(path.parent, path.name, follow_links=follow_links)
            content = unpickle(stream, real, source, next_step=_WRITE_AGAIN)
    if not isinstance(content, dict) or not all(isinstance(name, str) for name in content):
        raise InputError.single(source, "holds no dictionary of named tensors", next_step=_WRITE_AGAIN)
    if len(content) > _MAX_ENTRIES:
        raise InputError.single(source, f"holds {len(content)} entries", next_step="name a folder of hidden states")
    return {name: _checked(value, name, source) for name, value in content.items()}


def _safetensors(path: Path, stream: BinaryIO, source: str, *, follow_links: bool) -> dict[str, Any]:
    facts = read_header(stream, source=source, file=path.name)
    real = entry_path(path.parent, path.name, follow_links=follow_links)
    try:
        with safe_open(str(real), framework="pt") as file:
            return {name: file.get_tensor(name) for name in facts}
    except (SafetensorError, OSError, RuntimeError, ValueError, TypeError, KeyError, AttributeError) as error:
        what = f"cannot be read ({quoted(str(error))})"
        raise InputError.single(source, what, next_step=_WRITE_AGAIN) from None


def _inflate(stream: BinaryIO, source: str) -> io.BytesIO:
    size = stream.seek(0, io.SEEK_END)
    stream.seek(0)
    allowed = _FREE_BYTES + _MOST_EXPANSION * size
    out = io.BytesIO()
    try:
        with gzip.GzipFile(fileobj=stream, mode="rb") as archive:
            while chunk := archive.read(_CHUNK):
                if out.tell() + len(chunk) > allowed:
                    what = f"inflates to more than {allowed} bytes from {size}, which hidden states do not"
                    raise InputError.single(source, what, next_step="check where the file is from")
                out.write(chunk)
    except (OSError, EOFError, zlib.error) as error:
        what = f"is a gzip stream that is cut off or damaged ({quoted(str(error))})"
        raise InputError.single(source, what, next_step=_WRITE_AGAIN) from None
    out.seek(0)
    return out


def _checked(value: Any, name: str, source: str) -> Any:
    """Refuse a tensor whose shape claims more than the file holds: computing with it would fill the memory."""
    if isinstance(value, list | tuple):
        return [_checked(item, f"{name}[{index}]", source) for index, item in enumerate(value[:_MAX_ENTRIES])]
    if not torch.is_tensor(value):
        return value
    tensor: Tensor = value.detach()
    plain = tensor.layout == torch.strided and tensor.device.type == "cpu" and not tensor.is_quantized
    if not plain or tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
        raise InputError.single(
            source,
            "is no plain tensor, or claims more elements than the file holds",
            place=quoted(name),
            next_step=_WRITE_AGAIN,
        )
    return tensor
