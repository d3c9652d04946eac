"""Which files of a folder may hold states, in natural order."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from featurecontract.checkpoint._paths import shown_path
from featurecontract.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["SUFFIXES", "list_files", "one_of_each_kind"]

SUFFIXES = (".safetensors", ".pt", ".pth", ".ckpt", ".ckpt.gz", ".pt.gz")
_MAX_FILES = 2_000_000
_MAX_DEPTH = 12
# Data folders hold a few kinds of names; where each file has a name of its own kind (conversation ids), enough is seen.
_MAX_KINDS = 16
_NUMBER = re.compile(r"[0-9]+")
_LABEL = re.compile(r"[0-9a-f]{6,}|[0-9]+", re.IGNORECASE)


def list_files(place: Path) -> tuple[Path, ...]:
    """Return a file itself, or the files below a folder that have one of the suffixes, in natural order.

    Hidden files and folders are passed over, and links to folders are not followed.

    Raises:
        InputError: there is no such file or folder, or nothing in it has one of the suffixes.
    """
    source = shown_path(place)
    if not os.path.isdir(place):  # noqa: PTH112 - does not raise
        return (place,)
    found: list[Path] = []
    failed: list[OSError] = []
    root = str(place)
    for folder, inner, names in os.walk(root, onerror=failed.append, followlinks=False):
        depth = folder[len(root) :].count(os.sep)
        inner[:] = [name for name in inner if not name.startswith(".")] if depth < _MAX_DEPTH else []
        found += [Path(folder, name) for name in names if name.endswith(SUFFIXES) and not name.startswith(".")]
        if len(found) > _MAX_FILES:
            raise InputError.single(source, f"holds more than {_MAX_FILES} files", next_step="name a part of it")
    if failed:
        what = f"cannot be listed ({failed[0].strerror})"
        raise InputError.single(shown_path(Path(failed[0].filename or place)), what, next_step="check its permissions")
    if not found:
        raise InputError.single(
            source,
            f"holds no file that ends in {', '.join(SUFFIXES)}",
            next_step="name the folder that the trainer reads hidden states from",
        )
    return tuple(sorted(found, key=_natural))


def one_of_each_kind(files: Sequence[Path]) -> Iterator[tuple[Path, list[Path]]]:
    """Yield the first file of each kind of name with all of them: ``data_0.pt`` and ``data_1.pt`` are of one kind.

    A folder may hold a vocabulary map or an optimizer beside the states: kinds are told apart before anything is read.
    """
    kinds: dict[str, list[Path]] = {}
    for file in files:
        kind = _LABEL.sub("#", file.name)
        if kind not in kinds and len(kinds) >= _MAX_KINDS:
            kind = ""
        kinds.setdefault(kind, []).append(file)
    for kind, group in kinds.items():
        if kind:
            yield group[0], group


def _natural(path: Path) -> tuple[tuple[tuple[int, str], ...], str]:
    text = str(path)
    words = _NUMBER.split(text)
    numbers = [int(number[:30]) for number in _NUMBER.findall(text)]
    # Pairs compare as (number before the word, word); the first word has none.
    return tuple(zip([-1, *numbers], words, strict=True)), text
