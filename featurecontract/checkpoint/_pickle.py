"""Checkpoints saved with ``torch.save``: the only module here that needs torch, imported when it is used.

Weights-only, memory-mapped, and refused before torch sees them when the archive is compressed or its pickle is huge.
"""

from __future__ import annotations

import io
import re
import warnings
from pathlib import Path
from typing import IO, TYPE_CHECKING, BinaryIO, cast

from featurecontract.checkpoint._paths import entry_path, open_entry, quoted, shown_path
from featurecontract.checkpoint._safetensors import TensorFacts
from featurecontract.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

__all__ = ["has_torch", "read_pickle", "tensor_bytes", "unpickle"]

_MAX_PICKLE_BYTES = 32 * 1024 * 1024
_CHUNK_ELEMENTS = 1024 * 1024
_DTYPES = {
    "bool": "BOOL",
    "uint8": "U8",
    "int8": "I8",
    "int16": "I16",
    "uint16": "U16",
    "int32": "I32",
    "uint32": "U32",
    "int64": "I64",
    "uint64": "U64",
    "float16": "F16",
    "bfloat16": "BF16",
    "float32": "F32",
    "float64": "F64",
    "complex64": "C64",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "float8_e8m0fnu": "F8_E8M0",
    "float8_e4m3fnuz": "F8_E4M3FNUZ",
    "float8_e5m2fnuz": "F8_E5M2FNUZ",
}
# torch's text is a page of advice with the cause in the middle.
_CAUSE = re.compile(r"(?<=WeightsUnpickler error: )[^\n]+|(?<=Trying to load )unsupported [^\n]+")
_SAVE_AGAIN = "save it again as safetensors, from a machine where you trust it"


def has_torch() -> bool:
    """Tell whether torch can be imported; imports it."""
    try:
        import torch  # noqa: F401 - only whether it is there; nobody who reads safetensors needs it
    except (ImportError, OSError):  # OSError: a library of its own that it cannot load
        return False
    return True


def read_pickle(directory: Path, file: str, *, follow_links: bool) -> dict[str, TensorFacts]:
    """List the tensors of a ``torch.save`` state dict; their byte ranges are 0, 0.

    Raises:
        InputError: the file is no such archive, or its pickle needs more than tensors.
    """
    state = _load(directory, file, follow_links=follow_links)
    facts = {}
    for name, tensor in state.items():
        dtype = str(tensor.dtype).removeprefix("torch.")
        shape = tuple(tensor.shape)
        facts[name] = TensorFacts(name=name, dtype=_DTYPES.get(dtype, dtype), shape=shape, file=file, begin=0, end=0)
    return facts


def tensor_bytes(directory: Path, facts: TensorFacts, *, follow_links: bool) -> Iterator[bytes]:
    """Yield the elements of one tensor in row-major order, as in a safetensors file.

    Raises:
        InputError: as ``read_pickle``; or the tensor is not in the file any more.
    """
    state = _load(directory, facts.file, follow_links=follow_links)
    tensor = state.get(facts.name)
    source = shown_path(directory / facts.file)
    if tensor is None or facts.dtype not in _DTYPES.values() or str(tensor.layout) != "torch.strided":
        raise InputError.single(source, "has no such dense tensor", place=quoted(facts.name), next_step=_SAVE_AGAIN)
    if tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
        message = "has more elements than the file holds (an expanded tensor)"
        raise InputError.single(source, message, place=quoted(facts.name), next_step=_SAVE_AGAIN)
    import ctypes  # here, like zipfile below, because who reads safetensors should not wait for it

    flat = tensor.detach().reshape(-1)
    for start in range(0, flat.numel(), _CHUNK_ELEMENTS):
        chunk = flat[start : start + _CHUNK_ELEMENTS].contiguous()
        yield ctypes.string_at(chunk.data_ptr(), chunk.numel() * chunk.element_size())


def unpickle(stream: BinaryIO, origin: Path | BinaryIO, source: str, *, next_step: str = _SAVE_AGAIN) -> object:
    """Return what a ``torch.save`` archive holds, weights-only; memory-mapped where ``origin`` is a path.

    ``stream`` is the open archive, looked at before torch sees it; ``origin`` is what torch loads.

    Raises:
        InputError: it is no such archive, is compressed, or needs more than tensors and plain values.
    """
    _check_archive(stream, source, next_step)
    import torch  # nobody who reads safetensors needs it

    stream.seek(0)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.load(origin, map_location="cpu", mmap=isinstance(origin, Path), weights_only=True)
    except Exception as error:  # noqa: BLE001 - an unpickler fails in any way that its input likes
        cause = _CAUSE.search(str(error))
        reason = quoted(cause[0] if cause else str(error).strip().partition("\n")[0])
        message = f"cannot be loaded weights-only ({type(error).__name__}: {reason})"
        raise InputError.single(source, message, next_step=next_step) from None


def _load(directory: Path, file: str, *, follow_links: bool) -> dict[str, torch.Tensor]:
    source = shown_path(directory / file)
    with open_entry(directory, file, follow_links=follow_links) as stream:
        state = unpickle(stream, entry_path(directory, file, follow_links=follow_links), source)
    if not isinstance(state, dict):
        raise InputError.single(source, "does not hold a state dict", next_step=_SAVE_AGAIN)
    import torch

    tensors = {name: value for name, value in state.items() if isinstance(name, str) and torch.is_tensor(value)}
    if not tensors:
        raise InputError.single(source, "holds no named tensors", next_step=_SAVE_AGAIN)
    return tensors


def _check_archive(stream: BinaryIO, source: str, next_step: str) -> None:
    import zipfile

    try:
        with zipfile.ZipFile(cast("IO[bytes]", _Bounded(stream))) as archive:
            entries = archive.infolist()
    except Exception:  # noqa: BLE001 - zipfile documents one error and raises half a dozen
        message = "is not a zip archive as torch.save writes it since 1.6"
        raise InputError.single(source, message, next_step=next_step) from None
    for entry in entries:
        if entry.compress_type != zipfile.ZIP_STORED or entry.compress_size != entry.file_size:
            message = f"is compressed ({quoted(entry.filename)}), which torch.save never does"
            raise InputError.single(source, message, next_step=next_step)
        if "/data/" not in entry.filename and entry.file_size > _MAX_PICKLE_BYTES:
            message = f"holds {quoted(entry.filename)} of {entry.file_size} bytes, more than {_MAX_PICKLE_BYTES}"
            raise InputError.single(source, message, next_step=next_step)


class _Bounded(io.RawIOBase):
    """A file for ``zipfile``, which reads a directory of whatever size the archive claims."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._stream.seek(offset, whence)

    def tell(self) -> int:
        return self._stream.tell()

    def seekable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        return self._stream.read(min(size, _MAX_PICKLE_BYTES) if size >= 0 else _MAX_PICKLE_BYTES)
