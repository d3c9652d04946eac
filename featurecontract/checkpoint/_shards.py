"""A checkpoint in several safetensors files and the ``*.safetensors.index.json`` that maps tensors to them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from featurecontract.checkpoint._paths import has_entry, open_entry, plain_name_fault, quoted, shown_path
from featurecontract.checkpoint._safetensors import TensorFacts, read_header
from featurecontract.contract.strict_json import parse_json, read_all
from featurecontract.errors import InputError, Problem

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["MAX_INDEX_BYTES", "capped", "read_file", "read_sharded", "read_weight_map"]

#: Admits about 500 000 tensor names; the index of a 1T-parameter mixture of experts has about 20 MiB.
MAX_INDEX_BYTES = 64 * 1024 * 1024
_MAX_SHARDS = 4096
_MAX_PROBLEMS = 100
_MAX_NAMED = 5


def capped(names: list[str]) -> str:
    """Return at most five names, and how many more there are."""
    more = len(names) - _MAX_NAMED
    return ", ".join(map(quoted, names[:_MAX_NAMED])) + (f" and {more} more" if more > 0 else "")


def read_file(directory: Path, file: str, *, follow_links: bool) -> dict[str, TensorFacts]:
    """Read the header of one safetensors file of the directory.

    Raises:
        InputError: the file cannot be opened, or its header is wrong.
    """
    source = shown_path(directory / file)
    try:
        with open_entry(directory, file, follow_links=follow_links) as stream:
            return read_header(stream, source=source, file=file)
    except OSError as error:
        step = "check the disk and the permissions"
        raise InputError.single(source, f"cannot be read ({error.strerror})", next_step=step) from None


def read_weight_map(directory: Path, index: str, *, follow_links: bool) -> dict[str, str]:
    """Read the ``weight_map`` of an index file: tensor name to the name of an existing file.

    Raises:
        InputError: the index is malformed, or names a file that is missing or not a plain relative name.
    """
    source = shown_path(directory / index)
    with open_entry(directory, index, follow_links=follow_links) as stream:
        data = read_all(stream, source=source, max_bytes=MAX_INDEX_BYTES)
    document = parse_json(data, source=source)
    weight_map = document.get("weight_map") if isinstance(document, dict) else None
    if not isinstance(weight_map, dict):
        step = "write an object that maps tensor names to file names"
        raise InputError.single(source, "is missing or not an object", place="weight_map", next_step=step)
    problems: list[Problem] = []
    wrong = [name for name, file in weight_map.items() if not isinstance(file, str)]
    if wrong:
        message = f"must map to file names: {capped(wrong)}"
        problems.append(Problem(place="weight_map", message=message, next_step="write the file's name"))
    files = sorted({file for file in weight_map.values() if isinstance(file, str)})
    if len(files) > _MAX_SHARDS:
        step = "save the checkpoint in fewer files"
        raise InputError.single(source, f"names {len(files)} files, more than {_MAX_SHARDS}", next_step=step)
    for file in files:
        if fault := plain_name_fault(file):
            step = "name a file in this directory"
        elif not has_entry(directory, file):
            fault, step = "does not exist", "fetch the missing file, or write the index again"
        else:
            continue
        problems.append(Problem(place="weight_map", message=f"the file {quoted(file)} {fault}", next_step=step))
    if problems:
        raise InputError(source, tuple(problems[:_MAX_PROBLEMS]))
    return weight_map


def read_sharded(directory: Path, index: str, *, follow_links: bool) -> tuple[dict[str, TensorFacts], tuple[str, ...]]:
    """Read every shard's header and compare it with the index.

    Returns:
        The tensors of all shards, and notes; a note names tensors that the index does not map. Runtimes that load
        whole shards read these, those that go by the index do not.

    Raises:
        InputError: a mapped tensor is not in its shard, or two shards hold the same name.
    """
    weight_map = read_weight_map(directory, index, follow_links=follow_links)
    tensors: dict[str, TensorFacts] = {}
    twice: list[str] = []
    for file in sorted(set(weight_map.values())):
        found = read_file(directory, file, follow_links=follow_links)
        twice.extend(found.keys() & tensors.keys())
        tensors.update(found)
    misplaced = [name for name, file in weight_map.items() if name not in tensors or tensors[name].file != file]
    problems = [
        Problem(place="", message=f"{what}: {capped(sorted(names))}", next_step=step)
        for names, what, step in (
            (twice, "tensors stand in more than one shard", "keep one of them and write the shards again"),
            (misplaced if not twice else [], "tensors are not in the shard that weight_map names", _WRITE_INDEX),
        )
        if names
    ]
    if problems:
        raise InputError(shown_path(directory / index), tuple(problems))
    unmapped = sorted(tensors.keys() - weight_map.keys())
    note = f"{len(unmapped)} tensors are in the shards but not in {index}: {capped(unmapped)}"
    return tensors, (note,) if unmapped else ()


_WRITE_INDEX = "write the index again from the shards"
