"""A drafter's checkpoint: its config.json and what the headers of its tensor files say; no weights are loaded."""

from __future__ import annotations

import hashlib
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal, cast

from featurecontract.checkpoint._paths import has_entry, open_entry, quoted, shown_path
from featurecontract.checkpoint._safetensors import DTYPE_BITS, TensorFacts
from featurecontract.checkpoint._shards import capped, read_file, read_sharded, read_weight_map
from featurecontract.contract.strict_json import parse_json, read_all
from featurecontract.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["Checkpoint", "open_checkpoint", "read_config"]

Format = Literal["safetensors", "safetensors-sharded", "pytorch", "none"]

_CHUNK_BYTES = 1024 * 1024
_MAX_VALUE_BYTES = 64 * 1024 * 1024
_MODEL = "model.safetensors"
_MODEL_INDEX = "model.safetensors.index.json"
#: dtype to the format character of ``memoryview.cast``.
_INTEGER_CODES = {"BOOL": "B", "U8": "B", "I8": "b", "U16": "H", "I16": "h", "U32": "I", "I32": "i"} | {
    "U64": "Q",
    "I64": "q",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A checkpoint directory, read.

    ``tensors`` is None when there is no tensor file or it could not be read, and ``tensors_reason`` then says why.
    ``notes`` are one-line remarks on the tensor files that are no errors.
    """

    path: Path
    directory: Path
    config: dict[str, object]
    format: Format
    tensors: Mapping[str, TensorFacts] | None
    tensors_reason: str = ""
    notes: tuple[str, ...] = ()
    follow_links: bool = False

    def section(self, name: str) -> dict[str, object] | None:
        """Return a nested object of the config (``"eagle_config"``, or dotted ``"a.b"``), or None."""
        found: object = self.config
        for part in name.split("."):
            found = found.get(part) if isinstance(found, dict) else None
        return found if isinstance(found, dict) else None

    def read_values(self, name: str, *, max_bytes: int = _MAX_VALUE_BYTES) -> list[int] | list[bool]:
        """Return the values of a one-dimensional integer or bool tensor, such as ``d2t`` or ``t2d``.

        Raises:
            InputError: there is no such tensor, or it has another shape or dtype or more than ``max_bytes``.
        """
        facts = self._facts(name)
        code = _INTEGER_CODES.get(facts.dtype)
        if code is None or len(facts.shape) != 1:
            message = f"is {facts.dtype} {quoted(list(facts.shape))}, not one row of integers or bools"
            raise self._error(facts, message, "save it as a 1-D I64, I32, BOOL or U8 tensor")
        size = facts.shape[0] * DTYPE_BITS[facts.dtype] // 8
        if size > max_bytes:
            raise self._error(facts, f"has {size} bytes, more than the limit of {max_bytes}", "name the right file")
        data = bytearray().join(self._chunks(facts))
        if facts.dtype == "BOOL":
            if data.translate(None, b"\0\1"):
                raise self._error(facts, "is BOOL but holds bytes other than 0 and 1", "save the tensor again")
            return [*map(bool, data)]
        return [*_little_endian(data, code)]

    def read_bytes(self, name: str) -> bytearray:
        """Return a tensor's elements, row-major and little-endian, in memory of their own.

        Raises:
            InputError: there is no such tensor, or it cannot be read.
        """
        facts = self._facts(name)
        out = bytearray()
        for chunk in self._chunks(facts):
            out += chunk
        return out

    def sha256(self, name: str) -> str:
        """Return the SHA-256 of a tensor's bytes (row-major, little-endian), in hexadecimal; reads in pieces.

        Raises:
            InputError: there is no such tensor, or it cannot be read.
        """
        digest = hashlib.sha256()
        for chunk in self._chunks(self._facts(name)):
            digest.update(chunk)
        return digest.hexdigest()

    def _facts(self, name: str) -> TensorFacts:
        if self.tensors is None:
            step = "give the checkpoint a tensor file that can be read"
            raise InputError.single(shown_path(self.path), self.tensors_reason, next_step=step)
        if name not in self.tensors:
            message = f"has no tensor {quoted(name)}; it has {capped(sorted(self.tensors))}"
            raise InputError.single(shown_path(self.path), message, next_step="name one of its tensors")
        return self.tensors[name]

    def _error(self, facts: TensorFacts, message: str, step: str) -> InputError:
        source = shown_path(self.directory / facts.file)
        return InputError.single(source, message, place=quoted(facts.name), next_step=step)

    def _chunks(self, facts: TensorFacts) -> Iterator[bytes]:
        if self.format == "pytorch":
            from featurecontract.checkpoint import _pickle

            yield from _pickle.tensor_bytes(self.directory, facts, follow_links=self.follow_links)
            return
        left = facts.end - facts.begin
        try:
            with open_entry(self.directory, facts.file, follow_links=self.follow_links) as stream:
                stream.seek(facts.begin)
                while left and (chunk := stream.read(min(left, _CHUNK_BYTES))):
                    left -= len(chunk)
                    yield chunk
        except OSError as error:
            raise self._error(facts, f"cannot be read ({error.strerror})", "check the disk") from None
        if left:
            raise self._error(facts, "the file became shorter since its header was read", "run again")


def _little_endian(data: bytearray, code: str) -> memoryview[int]:
    values = memoryview(data).cast(cast("Literal['q']", code))
    if sys.byteorder == "big":  # pragma: no cover - no such machine in CI
        size = values.itemsize
        data[:] = b"".join(data[at : at + size][::-1] for at in range(0, len(data), size))
    return values


def open_checkpoint(path: str | os.PathLike[str], *, follow_links: bool = False) -> Checkpoint:
    """Open a checkpoint: a directory, the ``config.json`` in it, or one ``.safetensors`` file with its config beside.

    Args:
        path: may itself be a link to a directory; the entries of the directory may not leave it.
        follow_links: let them.

    Raises:
        InputError: there is no config.json, or a file that is there is malformed.
    """
    chosen = Path(path)
    kind: Format
    directory = _chosen_directory(chosen)
    if directory == chosen or chosen.suffix != ".safetensors":
        kind, file, reason = _tensor_files(directory)
    else:
        kind, file, reason = "safetensors", chosen.name, ""
    config = read_config(directory, follow_links=follow_links)
    tensors: dict[str, TensorFacts] | None = None
    notes: tuple[str, ...] = ()
    if kind == "safetensors":
        tensors = read_file(directory, file, follow_links=follow_links)
    elif kind == "safetensors-sharded":
        tensors, notes = read_sharded(directory, file, follow_links=follow_links)
    elif kind == "pytorch":
        tensors = _read_pickles(directory, file, follow_links=follow_links)
        reason = "" if tensors is not None else f"{file} needs torch to be read; install featurecontract[torch]"
    return Checkpoint(
        path=chosen,
        directory=directory,
        config=config,
        format=kind,
        tensors=None if tensors is None else MappingProxyType(tensors),
        tensors_reason=reason,
        notes=notes,
        follow_links=follow_links,
    )


def _chosen_directory(path: Path) -> Path:
    """Return the checkpoint directory that the user means by itself, its config.json or a safetensors file in it.

    Raises:
        InputError: it is none of these.
    """
    try:
        if path.is_dir():
            return path
        if (path.name == "config.json" or path.suffix == ".safetensors") and path.parent.is_dir():
            return path.parent
        what = "is not a checkpoint" if path.exists() else "does not exist"
    except PermissionError as error:
        step = "check its permissions"
        raise InputError.single(shown_path(path), f"cannot be read ({error.strerror})", next_step=step) from None
    except (OSError, ValueError):
        what = "does not exist"
    step = "name a checkpoint directory, its config.json, or a .safetensors file beside one"
    raise InputError.single(shown_path(path), what, next_step=step)


def read_config(directory: Path, *, file: str = "config.json", follow_links: bool) -> dict[str, object]:
    """Read the config.json of a directory.

    Raises:
        InputError: it is missing, malformed, or not an object.
    """
    if not has_entry(directory, file):
        step = "name the directory that was saved with save_pretrained or exported for serving, or copy the file there"
        raise InputError.single(shown_path(directory), f"has no {file}", next_step=step)
    source = shown_path(directory / file)
    with open_entry(directory, file, follow_links=follow_links) as stream:
        config = parse_json(read_all(stream, source=source), source=source)
    if not isinstance(config, dict):
        step = "name the config.json of a model"
        raise InputError.single(source, f"must be an object, not {type(config).__name__}", next_step=step)
    return config


def _tensor_files(directory: Path) -> tuple[Format, str, str]:
    """Choose the tensor file or index of a directory, in the order of transformers; or say why there is none."""
    try:
        with os.scandir(directory) as entries:
            names = {entry.name for entry in entries if entry.name.endswith((".safetensors", ".bin", ".json"))}
    except OSError as error:
        message = f"cannot be listed ({error.strerror})"
        raise InputError.single(shown_path(directory), message, next_step="check its permissions") from None
    if {_MODEL, _MODEL_INDEX} <= names:
        message = f"holds both {_MODEL} and {_MODEL_INDEX}, and runtimes differ in which they load"
        raise InputError.single(shown_path(directory), message, next_step="remove the one that is out of date")
    indexes = sorted(name for name in names if name.endswith(".safetensors.index.json"))
    files = sorted(name for name in names if name.endswith(".safetensors"))
    choices: tuple[tuple[Format, list[str]], ...] = (
        ("safetensors-sharded", [_MODEL_INDEX]),
        ("safetensors", [_MODEL]),
        ("safetensors-sharded", indexes),
        ("safetensors", files),
        ("pytorch", ["pytorch_model.bin"]),
        ("pytorch", ["pytorch_model.bin.index.json"]),
    )
    for kind, candidates in choices:
        present = [name for name in candidates if name in names]
        if len(present) == 1:
            return kind, present[0], ""
        if present:
            step = f"pass the path of one, or add {_MODEL_INDEX}"
            return "none", "", f"several files could hold the tensors: {capped(present)}; {step}"
    return "none", "", f"no tensor file in {shown_path(directory)}"


def _read_pickles(directory: Path, file: str, *, follow_links: bool) -> dict[str, TensorFacts] | None:
    """Read what ``torch.save`` wrote, in one file or by its index; None without torch."""
    from featurecontract.checkpoint import _pickle

    if not _pickle.has_torch():
        return None
    files = [file]
    if file.endswith(".json"):
        files = sorted(set(read_weight_map(directory, file, follow_links=follow_links).values()))
    tensors: dict[str, TensorFacts] = {}
    for each in files:
        found = _pickle.read_pickle(directory, each, follow_links=follow_links)
        if twice := sorted(found.keys() & tensors.keys()):
            message = f"tensors stand in more than one shard: {capped(twice)}"
            raise InputError.single(shown_path(directory / file), message, next_step="keep one of them")
        tensors.update(found)
    return tensors
