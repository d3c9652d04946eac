"""Contracts as bytes and as files: canonical JSON, digest, atomic save."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from featurecontract.contract._contract import CONTRACT_FILE, Contract
from featurecontract.contract._decode import contract_from_dict, contract_to_dict
from featurecontract.contract.strict_json import parse_json, read_json
from featurecontract.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["atomic_write", "canonical_json", "digest", "dumps", "load", "loads", "same_file_of", "save", "write_output"]

# The largest real probe of token ids is far below this; a contract is a page of text.
MAX_CONTRACT_BYTES = 16 * 2**20


def canonical_json(value: Any) -> bytes:
    """Return the one spelling of a JSON value: sorted keys, two spaces, UTF-8, no NaN, one newline at the end."""
    text = json.dumps(value, sort_keys=True, indent=2, ensure_ascii=False, allow_nan=False)
    return text.encode() + b"\n"


def dumps(contract: Contract) -> bytes:
    """Return the canonical bytes of a contract; ``loads`` is the inverse."""
    return canonical_json(contract_to_dict(contract))


def digest(contract: Contract) -> str:
    """Return the sha256 of the canonical bytes, the contract's identity."""
    return hashlib.sha256(dumps(contract)).hexdigest()


def loads(data: bytes, *, source: str = CONTRACT_FILE) -> Contract:
    """Read a contract from bytes; raises InputError with every problem."""
    return contract_from_dict(parse_json(data, source=source, slug="contract-invalid"), source=source)


def contract_path(path: str | os.PathLike[str]) -> Path:
    """Return the contract's file for a checkpoint directory or for the file itself."""
    found = Path(path)
    # Not `Path.is_dir`, which raises for names that are too long.
    return found / CONTRACT_FILE if os.path.isdir(found) else found  # noqa: PTH112


def load(path: str | os.PathLike[str]) -> Contract:
    """Read the contract of a checkpoint directory, or a contract file.

    Raises InputError: ``contract-missing`` when there is none, ``contract-invalid`` or ``contract-version``.
    """
    found = contract_path(path)
    if _is_absent(found):
        raise InputError.single(
            str(found),
            "there is no feature contract here",
            next_step="write one with `featurecontract init CKPT --target T`, or from the training run",
            slug="contract-missing",
        )
    value = read_json(found, max_bytes=MAX_CONTRACT_BYTES, slug="contract-invalid")
    return contract_from_dict(value, source=str(found))


def _is_absent(path: Path) -> bool:
    """Whether there is nothing at a path; what cannot be told is left to the reader's own message."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return True
    except (OSError, ValueError):
        return False
    return False


def save(contract: Contract, path: str | os.PathLike[str]) -> Path:
    """Write a contract beside its checkpoint, all or nothing, and return its path."""
    # Writing what cannot be read back would turn a mistake of the caller into somebody else's riddle.
    contract_from_dict(contract_to_dict(contract), source="the contract to save")
    found = contract_path(path)
    with atomic_write(found) as stream:
        stream.write(dumps(contract))
    return found


@contextlib.contextmanager
def atomic_write(path: Path, *, exclusive: bool = False) -> Iterator[Any]:
    """Open a stream whose bytes become ``path`` only when all of them are on disk.

    With ``exclusive`` an entry that has the name by then, be it a broken link, raises FileExistsError and stays.
    """
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:200]}.", suffix=".part")
    part = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        part.chmod(0o666 & ~_umask())
        if exclusive:
            _claim(part, path)
        else:
            part.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            part.unlink()
        raise


def _claim(part: Path, path: Path) -> None:
    """Give the file its name if nothing has it; a file system without hard links reserves the name first."""
    try:
        os.link(part, path, follow_symlinks=False)
    except FileExistsError:
        raise
    # NotImplementedError is what os.link raises where the platform cannot leave a link alone.
    except (OSError, NotImplementedError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        try:
            part.replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                path.unlink()
            raise
        return
    part.unlink()


def write_output(path: Path, data: bytes) -> None:
    """Write to where the user said: atomically over a regular file or a link's target, straight into a pipe or device.

    Raises OSError; a directory is refused before anything is created.
    """
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        mode = stat.S_IFREG
    if stat.S_ISREG(mode):
        with atomic_write(Path(os.path.realpath(path))) as stream:
            stream.write(data)
        return
    # Not created: what is there is written into, never replaced.
    descriptor = os.open(path, os.O_WRONLY)
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(data)


def same_file_of(output: str, *inputs: str | None) -> str | None:
    """Return which file of the inputs, or of the checkpoints that they are or lie in, an output would replace."""
    for given in inputs:
        if given is None:
            continue
        place = given if os.path.isdir(given) else os.path.dirname(given)  # noqa: PTH112, PTH120 - they do not raise
        for path in (given, os.path.join(place, CONTRACT_FILE), os.path.join(place, "config.json")):  # noqa: PTH118
            if not os.path.isdir(path) and _is_same(path, output):  # noqa: PTH112
                return path
    return None


def _is_same(first: str, second: str) -> bool:
    try:
        return os.path.realpath(first) == os.path.realpath(second) or os.path.samefile(first, second)  # noqa: PTH121
    except (OSError, ValueError):
        return False


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current
