"""Strict JSON for files from outside: one reading per file, bounded time and memory, errors with a place.

Python's ``json`` accepts duplicate keys (the last one wins), ``NaN``, lone surrogates and numbers of any length; other
readers of the same file do not, or choose differently. Here such a file is an ``InputError``.
"""

from __future__ import annotations

import json
import math
import os
import re
import stat
from itertools import accumulate
from typing import TYPE_CHECKING, BinaryIO, NoReturn

from featurecontract.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["MAX_BYTES", "MAX_DEPTH", "MAX_VALUES", "open_regular", "parse_json", "read_all", "read_json"]

MAX_BYTES = 32 * 1024 * 1024
MAX_DEPTH = 64
#: Values and containers in one document: an empty list is 3 bytes on disk and about 90 in memory.
MAX_VALUES = 1_000_000

_SLUG = "checkpoint-unreadable"
_INT_RANGE = (-(2**63), 2**64 - 1)
_SAFE_INT_DIGITS = 18
_MAX_NUMBER_CHARS = 400
_BOMS = (
    (b"\xef\xbb\xbf", "a UTF-8 byte order mark"),
    (b"\xff\xfe\x00\x00", "a UTF-32 byte order mark"),
    (b"\x00\x00\xfe\xff", "a UTF-32 byte order mark"),
    (b"\xff\xfe", "a UTF-16 byte order mark"),
    (b"\xfe\xff", "a UTF-16 byte order mark"),
)
_NOT_STRUCTURE = bytes(set(range(256)) - set(b'[]{},"'))
_STEP = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}
# Not one regular expression for a whole string: this one cannot backtrack.
_TOKEN = re.compile(r'[ \t\n\r]*(?:(?P<mark>[{}\[\],:])|(?P<quote>")|(?P<word>[^\s{}\[\],:"]+))')
# What the scanner takes for one, whatever follows it.
_CONSTANT = re.compile(r"NaN|-?Infinity")
_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?([eE][-+]?[0-9]+)?")
_JUST_THE_BYTES = "save the file as UTF-8 without a byte order mark"


class _RefusedError(ValueError):
    """Raised from inside the JSON scanner, which does not know the place; ``_locate`` finds it afterwards."""


def read_json(path: Path, *, source: str | None = None, max_bytes: int = MAX_BYTES, slug: str = _SLUG) -> object:
    """Read and parse the regular file ``path``.

    Args:
        path: the file; a link is followed, a FIFO, device, socket or directory is refused without opening it.
        source: what errors call the file, its path by default.
        max_bytes: larger files are refused before they are read.
        slug: the finding that stands for a failure.

    Raises:
        InputError: the file cannot be read or is not strict JSON.
    """
    shown = str(path) if source is None else source
    with open_regular(path, source=shown, slug=slug) as stream:
        data = read_all(stream, source=shown, max_bytes=max_bytes, slug=slug)
    return parse_json(data, source=shown, slug=slug)


def open_regular(path: Path, *, source: str, slug: str = _SLUG, follow_link: bool = True) -> BinaryIO:
    """Open a regular file for reading, unbuffered; never blocks on a FIFO and never touches a device.

    With ``follow_link=False`` a link in the last component of ``path`` is refused.

    Raises:
        InputError: there is no such file, it is not a regular one, or it may not be read.
    """
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
    if not follow_link:
        flags |= getattr(os, "O_NOFOLLOW", 0)
    descriptor = -1
    try:
        # Asked before opening too: opening a device can act on it.
        _require_regular(path.stat(follow_symlinks=follow_link).st_mode, source, slug)
        descriptor = os.open(path, flags)
        _require_regular(os.fstat(descriptor).st_mode, source, slug)
        stream = open(descriptor, "rb", buffering=0)  # noqa: PTH123, SIM115 - a descriptor; the caller closes it
        descriptor = -1
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        step = "check the path" if isinstance(error, FileNotFoundError) else "make it a readable file, or name another"
        raise InputError.single(source, f"cannot be opened ({reason})", next_step=step, slug=slug) from None
    finally:
        if descriptor >= 0:
            os.close(descriptor)
    return stream


def _require_regular(mode: int, source: str, slug: str) -> None:
    if stat.S_ISREG(mode):
        return
    kinds = ((stat.S_ISDIR, "a directory"), (stat.S_ISFIFO, "a FIFO"), (stat.S_ISLNK, "a link"))
    kind = next((text for test, text in kinds if test(mode)), "a device or socket")
    raise InputError.single(source, f"is {kind}, not a regular file", next_step="name a regular file", slug=slug)


def read_all(stream: BinaryIO, *, source: str, max_bytes: int = MAX_BYTES, slug: str = _SLUG) -> bytes:
    """Return the content of an open regular file, refusing more than ``max_bytes`` before reading.

    Raises:
        InputError: the file is too large, cannot be read, or grew while it was read.
    """
    size, data = os.fstat(stream.fileno()).st_size, bytearray()
    try:
        while size <= max_bytes and (chunk := stream.read(max_bytes + 1 - len(data))):
            data += chunk
            size = max(size, len(data))
    except OSError as error:
        message = f"cannot be read ({error.strerror})"
        raise InputError.single(source, message, next_step="check the disk and the permissions", slug=slug) from None
    if size > max_bytes:
        message = f"has {size} bytes, more than the limit of {max_bytes}"
        raise InputError.single(source, message, next_step="name the right file, or make it smaller", slug=slug)
    return bytes(data)


def parse_json(
    data: bytes, *, source: str, max_depth: int = MAX_DEPTH, max_values: int = MAX_VALUES, slug: str = _SLUG
) -> object:
    """Parse one UTF-8 JSON document.

    Refused beside malformed JSON: other encodings and byte order marks, duplicate keys, ``NaN`` and ``Infinity``,
    integers outside 64 bits, floats that overflow, lone surrogates, nesting deeper than ``max_depth``, more than
    ``max_values`` values, and anything after the document.

    Raises:
        InputError: with the place as ``line L column C`` (columns count characters) or ``byte B``.
    """
    try:
        return _parse(data, max_depth, max_values)
    except _PlacedError as error:
        raise InputError.single(source, error.message, place=error.place, next_step=error.step, slug=slug) from None


class _PlacedError(ValueError):
    def __init__(self, message: str, *, place: str = "", step: str) -> None:
        self.message, self.place, self.step = message, place, step
        super().__init__(message)


def _parse(data: bytes, max_depth: int, max_values: int) -> object:
    text = _decode(data)
    _check_structure(data, text, max_depth, max_values)
    try:
        document: object = _DECODER.decode(text)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno} column {error.colno}"
        ended = not text[error.pos :].strip(" \t\n\r")
        what = "data after the JSON document" if error.msg == "Extra data" else f"is not valid JSON ({error.msg})"
        step = "the file is cut off; copy it again" if ended else "correct the file at this place"
        raise _PlacedError(what, place=place, step=step) from None
    except _RefusedError:
        _locate(text)
        raise _PlacedError("holds a value that is refused", step="correct the file") from None
    if b"\\ud" in data or b"\\uD" in data:
        _locate(text)
    return document


def _decode(data: bytes) -> str:
    for mark, name in _BOMS:
        if data.startswith(mark):
            raise _PlacedError(f"begins with {name}", place="byte 0", step=_JUST_THE_BYTES)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _PlacedError(
            f"is not UTF-8 ({error.reason})", place=f"byte {error.start}", step=_JUST_THE_BYTES
        ) from None
    if not text.strip(" \t\n\r"):
        raise _PlacedError("is empty", step="copy the file again; it should hold one JSON value")
    return text


def _check_structure(data: bytes, text: str, max_depth: int, max_values: int) -> None:
    """Refuse what is too deep or too much before the scanner, which recurses, sees it.

    Exact up to the first malformed byte; behind that one the scanner does not read.
    """
    if data.count(b"[") + data.count(b"{") <= max_depth and len(data) <= max_values:
        return
    unescaped = data.replace(b"\\\\", b"").replace(b'\\"', b"") if b"\\" in data else data
    marks = b"".join(unescaped.translate(None, _NOT_STRUCTURE).split(b'"')[0::2])
    brackets = marks.translate(None, b",")
    values = len(marks) - len(brackets) + brackets.count(b"[") + brackets.count(b"{")
    if values > max_values:
        raise _PlacedError(f"holds more than {max_values} values", step="name the right file, or make it smaller")
    peeled = brackets
    for _ in range(min(4, max_depth)):
        peeled = peeled.replace(b"[]", b"").replace(b"{}", b"")
    # What is empty after four rounds is four deep at most: the usual case, at the speed of bytes.replace.
    if peeled and any(depth > max_depth for depth in accumulate(map(_STEP.__getitem__, brackets))):
        place = _deep_place(text, max_depth)
        raise _PlacedError(f"is nested deeper than {max_depth}", place=place, step="name the right file")


def _deep_place(text: str, max_depth: int) -> str:
    depth, position = 0, 0
    while match := _TOKEN.match(text, position):
        position = match.end()
        if match["quote"]:
            try:
                position = _string_at(text, position - 1)[1]
            except json.JSONDecodeError:
                break
        depth += _STEP.get(ord(match["mark"]), 0) if match["mark"] else 0
        if depth > max_depth:
            return _line_column(text, position - 1)
    return ""


def _string_at(text: str, start: int) -> tuple[str, int]:
    """Return the string whose opening quote stands at ``start``, and where it ends."""
    value: object
    value, end = _DECODER.raw_decode(text, start)
    return str(value), end


def _line_column(text: str, position: int) -> str:
    return f"line {text.count(chr(10), 0, position) + 1} column {position - text.rfind(chr(10), 0, position)}"


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    built = dict(pairs)
    if len(built) != len(pairs):
        raise _RefusedError
    return built


def _integer(text: str) -> int:
    if len(text) > _SAFE_INT_DIGITS:
        if len(text) > _SAFE_INT_DIGITS + 3:
            raise _RefusedError
        if not _INT_RANGE[0] <= int(text) <= _INT_RANGE[1]:
            raise _RefusedError
    return int(text)


def _real(text: str) -> float:
    if len(text) > _MAX_NUMBER_CHARS or math.isinf(value := float(text)):
        raise _RefusedError
    return value


def _constant(_text: str) -> NoReturn:
    raise _RefusedError


_DECODER = json.JSONDecoder(
    object_pairs_hook=_object, parse_int=_integer, parse_float=_real, parse_constant=_constant, strict=True
)


def _locate(text: str) -> None:
    """Walk a document that the scanner has read or refused, and raise at the first thing that is refused."""
    keys: list[set[str] | None] = []  # one entry per open container; None for a list
    position = 0
    expect_key = False
    while match := _TOKEN.match(text, position):
        start, position = match.start(match.lastgroup or 0), match.end()
        if match["quote"]:
            value, position = _string_at(text, start)
            _check_string(text, start, value, keys[-1] if expect_key else None)
            expect_key = False
        elif match["word"]:
            _check_word(text, start, match["word"])
        elif match["mark"] in "{[":
            keys.append(set() if match["mark"] == "{" else None)
            expect_key = match["mark"] == "{"
        elif match["mark"] in "}]":
            keys.pop()
        elif match["mark"] == ",":
            expect_key = keys[-1] is not None


def _check_string(text: str, start: int, value: str, seen: set[str] | None) -> None:
    place = _Place(text, start)
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        step = "write the character itself, or both halves of the pair"
        raise _PlacedError("a string holds half of a surrogate pair", place=str(place), step=step) from None
    if seen is not None:
        if value in seen:
            shown = repr(value if len(value) <= 60 else value[:57] + "...")  # noqa: PLR2004 - keeps the line short
            raise _PlacedError(f"the key {shown} stands twice in one object", place=str(place), step="remove one")
        seen.add(value)


class _Place:
    """A place that is worked out only when it is shown."""

    def __init__(self, text: str, start: int) -> None:
        self.text, self.start = text, start

    def __str__(self) -> str:
        return _line_column(self.text, self.start)


def _check_word(text: str, start: int, word: str) -> None:
    if match := _CONSTANT.match(word):
        message, step = f"{match[0]} is not JSON", "write a finite number or null"
    elif (match := _NUMBER.match(word)) is None:
        return
    else:
        number = match[0]
        try:
            if match[1] is None and match[2] is None:
                _integer(number)
            else:
                _real(number)
        except _RefusedError:
            shown = number if len(number) <= 24 else number[:21] + "..."  # noqa: PLR2004 - keeps the line short
            message, step = f"the number {shown} does not fit in 64 bits", "write a smaller number"
        else:
            return
    raise _PlacedError(message, place=_line_column(text, start), step=step)
