"""Names inside node ids: only ``[A-Za-z0-9_.+-]`` in a part, and no two of them the same."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from featurecontract.contract import CONTRACT_FILE

if TYPE_CHECKING:
    from collections.abc import Container
    from pathlib import Path

__all__ = ["file_id", "part", "unique"]


def part(text: str) -> str:
    """Return text as one part of a node id; what is not allowed there becomes ``-``."""
    return re.sub(r"[^A-Za-z0-9_.+-]", "-", text) or "-"


def unique(name: str, taken: Container[str]) -> str:
    """Return the name, with a number behind it where it is taken."""
    found, number = name, 1
    while found in taken:
        number += 1
        found = f"{name}-{number}"
    return found


def file_id(directory: Path, rootdir: Path) -> str:
    """Return the first part of the node ids of a checkpoint: its contract's path, from the rootdir where possible."""
    for inner, outer in ((directory, rootdir), (directory.resolve(), rootdir.resolve())):
        if inner == outer or outer in inner.parents:
            return "/".join([*(part(name) for name in inner.relative_to(outer).parts), CONTRACT_FILE])
    anchor, *names = directory.parts
    return "/".join(["" if anchor == "/" else part(anchor), *(part(name) for name in names), CONTRACT_FILE])
