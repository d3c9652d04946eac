"""Which files of a checkpoint directory may be opened: nothing outside it is read by surprise.

A checkpoint comes from somebody else, so its directory entries and the names in its files are not trusted.
An entry may be a link to a file inside the directory or into the blobs of a Hugging Face cache
(``snapshots/REV/x -> ../../blobs/HASH``); any other link needs the user's ``--follow-links``.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, BinaryIO

from featurecontract.contract.strict_json import open_regular
from featurecontract.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["entry_path", "has_entry", "open_entry", "plain_name_fault", "quoted", "shown_path"]

_MAX_NAME_BYTES = 255
_MAX_SHOWN = 80
_WINDOWS_DEVICE = re.compile(r"(con|prn|aux|nul|com[0-9]|lpt[0-9])(\..*)?", re.IGNORECASE)


def quoted(text: object) -> str:
    """Return a value from a file in at most about 80 printable characters, on one line."""
    shown = ascii(text[: _MAX_SHOWN + 1]) if isinstance(text, str) else ascii(text)
    return shown if len(shown) <= _MAX_SHOWN else shown[: _MAX_SHOWN - 3] + "..."


def shown_path(path: Path) -> str:
    """Return a path for messages; control characters and undecodable bytes are escaped."""
    text = str(path)
    return text if text.isprintable() else ascii(text)


def plain_name_fault(name: str) -> str:
    """Say why a name that a file names is not a plain relative file name; empty when it is one."""
    if not name or name in (".", ".."):
        return "is not a file name"
    for char, what in (("/", "a slash"), ("\\", "a backslash"), (":", "a colon"), ("\0", "a NUL")):
        if char in name:
            return f"holds {what}"
    if not name.isprintable():
        return "holds a character that cannot be printed"
    if len(name.encode()) > _MAX_NAME_BYTES:
        return f"is longer than {_MAX_NAME_BYTES} bytes"
    if _WINDOWS_DEVICE.fullmatch(name) or name != name.strip() or name.endswith("."):
        return "is not a file name on every system"
    return ""


def has_entry(directory: Path, name: str) -> bool:
    """Tell whether the directory has an entry of this name, were it a broken link."""
    try:
        (directory / name).lstat()
    except FileNotFoundError:
        return False
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        step = "check the path and its permissions"
        raise InputError.single(shown_path(directory), f"cannot be read ({reason})", next_step=step) from None
    return True


def entry_path(directory: Path, name: str, *, follow_links: bool) -> Path:
    """Return the real path of an entry of ``directory``, which itself may be a link that the user chose.

    Raises:
        InputError: the entry is missing, its link is broken, or its link leaves the checkpoint.
    """
    entry = directory / name
    source = shown_path(entry)
    try:
        root = directory.resolve(strict=True)
        if not (root / name).is_symlink():
            return root / name
        real = (root / name).resolve(strict=True)
    except (OSError, RuntimeError, ValueError) as error:  # 3.10 to 3.12 raise RuntimeError for a loop of links
        reason = getattr(error, "strerror", None) or "links in a circle"
        step = "check the path; a link must lead to a file"
        raise InputError.single(source, f"cannot be found ({reason})", next_step=step) from None
    if follow_links or root in real.parents or _in_cache_blobs(root, real):
        return real
    raise InputError.single(
        source,
        f"is a link that leaves the checkpoint (to {shown_path(real)})",
        next_step="pass --follow-links if you trust it, or copy the file into the directory",
    )


def _in_cache_blobs(root: Path, real: Path) -> bool:
    # ``blobs`` is not resolved: a link in its place would lead anywhere, and then ``real`` is not below it.
    return any(
        revision.parent.name == "snapshots" and real.parent == revision.parent.parent / "blobs"
        for revision in (root, *root.parents)
    )


def open_entry(directory: Path, name: str, *, follow_links: bool) -> BinaryIO:
    """Open an entry of ``directory`` for reading, unbuffered.

    Raises:
        InputError: see ``entry_path``; or it is no regular file, or may not be read.
    """
    real = entry_path(directory, name, follow_links=follow_links)
    return open_regular(real, source=shown_path(directory / name), follow_link=False)
