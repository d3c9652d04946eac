"""Captures read back: files from somebody else's server, so nothing in them is trusted."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from safetensors.torch import load as from_safetensors

from featurecontract.capture._files import CAPTURE_VERSION, INTEGER_FACTS, MAX_CALLS, STORED_DTYPES, tensor_name
from featurecontract.capture._record import POINTS, Call, Capture
from featurecontract.checkpoint._paths import plain_name_fault, quoted
from featurecontract.checkpoint._safetensors import TensorFacts, read_header
from featurecontract.contract.strict_json import open_regular, read_all, read_json
from featurecontract.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import NoReturn

    from torch import Tensor

__all__ = ["MAX_LOADED_BYTES", "MAX_LOADED_ROWS", "load"]

MAX_LOADED_ROWS = 200_000
MAX_LOADED_BYTES = 2 * 2**30
_SLUG = "nothing-captured"
_PER_ROW = frozenset({"token_ids", "positions", "drafter_token_ids", "accepted", "requests"})
# More processes than any engine shards one projection over.
_MAX_SHARDS = 4096
_TRIES = 3
_VERSION = re.compile(r"[0-9]{1,6}(\.[0-9]{1,6}){0,2}")
_AGAIN = "capture again, or save it again with featurecontract.capture.save"
_T = TypeVar("_T")


def load(
    paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    max_rows: int = MAX_LOADED_ROWS,
    max_bytes: int = MAX_LOADED_BYTES,
) -> tuple[Capture, ...]:
    """Read captures: a JSON file of one, its safetensors file, or a directory that holds any number of them.

    Args:
        paths: One path or several.
        max_rows: Rows of all of them together; more are refused before any is read.
        max_bytes: Bytes of all of them together, counted as float32, likewise.

    Raises:
        InputError: ``nothing-captured``, with the file and the place: there is no capture, none holds a call, it is
            too large, truncated, changed since it was written, or not a capture at all.
    """
    given = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
    for again in range(_TRIES - 1, -1, -1):
        files = [file for path in given for file in _json_files(Path(path))]
        try:
            found = _read(files, max_rows, max_bytes)
            break
        except InputError:
            # A server replaces its file while it serves: what a directory listed a moment ago may be gone.
            replaced = [file for file in files if file not in given and not os.path.exists(file)]  # noqa: PTH110 - above
            if not again or not replaced or not any(os.path.isdir(path) for path in given):  # noqa: PTH112 - above
                raise
    if not any(capture.calls for capture in found):
        failures = [f"{capture.source}: the capture let go: {capture.failure}" for capture in found if capture.failure]
        _refuse(
            str(given[0]) if given else "capture",
            failures[0] if failures else "no call was captured",
            "see docs/capture.md, `When nothing was captured`",
        )
    return found


def _read(files: list[Path], max_rows: int, max_bytes: int) -> tuple[Capture, ...]:
    budget = _Budget(max_rows, max_bytes)
    # All facts before any rows: the bounds are known to hold before memory is taken.
    opened = [_Document(file, budget) for file in dict.fromkeys(files)]
    return tuple(document.capture() for document in opened)


def _json_files(path: Path) -> list[Path]:
    if os.path.isdir(path):  # noqa: PTH112 - Path.is_dir raises for names that are too long
        try:
            found = sorted(path.glob("capture-*.json"))
        except OSError as error:
            _refuse(str(path), f"cannot be read ({error.strerror})", "check the path and its permissions")
        if not found:
            _refuse(str(path), "holds no capture-*.json", "name the directory that the capture was saved into")
        return found
    if path.suffix == ".safetensors":
        facts = path.with_suffix(".json")
        if not os.path.isfile(facts):  # noqa: PTH113 - as above
            _refuse(str(path), f"has no {quoted(facts.name)} beside it, so it is no capture", _AGAIN)
        return [facts]
    return [path]


class _Budget:
    """What may still be loaded."""

    def __init__(self, rows: int, size: int) -> None:
        self.max_rows, self.max_bytes = rows, size
        self.rows = self.bytes = 0

    def take(self, source: str, *, rows: int, width: int) -> None:
        self.rows += rows
        self.bytes += rows * width * 4
        if self.rows > self.max_rows:
            _refuse(
                source,
                f"has {self.rows} rows or more, above the limit of {self.max_rows}",
                "capture with fewer max_rows",
            )
        if self.bytes > self.max_bytes:
            _refuse(
                source, f"needs {self.bytes} bytes or more, above the limit of {self.max_bytes}", "capture fewer rows"
            )


class _Document:
    """The JSON file of a capture, checked; ``capture`` then reads the rows."""

    def __init__(self, path: Path, budget: _Budget) -> None:
        self.path, self.source, self.max_bytes = path, str(path), budget.max_bytes
        value = read_json(path, slug=_SLUG)
        if not isinstance(value, dict) or "capture_version" not in value:
            _refuse(self.source, "is not a capture (it has no capture_version)", _AGAIN)
        version = self.want(value, "capture_version", str, "")
        if not _VERSION.fullmatch(version) or version.split(".")[0] != CAPTURE_VERSION.split(".", maxsplit=1)[0]:
            _refuse(self.source, f"has capture_version {quoted(version)}; known: 1", "upgrade featurecontract")
        self.value = value
        self.calls: list[dict[str, Any]] = self.want(value, "calls", list, "")
        if len(self.calls) > MAX_CALLS:
            _refuse(self.source, f"has {len(self.calls)} calls, above the limit of {MAX_CALLS}", "lower max_rows")
        for number, call in enumerate(self.calls):
            place = f"calls[{number}]"
            if not isinstance(call, dict):
                self.bad(place, "must be an object")
            self._check_call(call, place)
            budget.take(self.source, rows=call["rows"], width=call["width"])
        if self.want(value, "dropped", int, "") < 0:
            self.bad("dropped", "must not be negative")

    def _check_call(self, call: dict[str, Any], place: str) -> None:
        if self.want(call, "point", str, place) not in POINTS:
            self.bad(f"{place}.point", f"is {quoted(call['point'])}, not one of {', '.join(POINTS)}")
        for key, least in (("rows", 0), ("width", 1), ("rank", 0), ("stage", 0)):
            if self.want(call, key, int, place) < least:
                self.bad(f"{place}.{key}", f"must be at least {least}")
        for key in ("phase", "dtype"):
            self.want(call, key, str, place)
        shard = call.get("shard")
        if shard is not None and not (
            isinstance(shard, list) and [type(n) for n in shard] == [int, int] and 0 <= shard[0] < shard[1]
        ):
            self.bad(f"{place}.shard", "must be null or [index, count]")
        if shard is not None and shard[1] > _MAX_SHARDS:
            self.bad(f"{place}.shard", f"says {shard[1]} shards, above the limit of {_MAX_SHARDS}")
        cached = self.want(call, "cached", dict, place)
        if any(type(rows) is not int or rows < 0 for rows in cached.values()):
            self.bad(f"{place}.cached", "must give a whole number for each request")
        labels = call.get("requests")
        if labels is not None and not (isinstance(labels, list) and all(isinstance(label, str) for label in labels)):
            self.bad(f"{place}.requests", "must be null or a list of labels")
        extra = self.want(call, "extra", dict, place)
        if "place" in extra:
            self.want(extra, "place", str, f"{place}.extra")

    def want(self, held: dict[str, Any], key: str, kind: type[_T], place: str) -> _T:
        found = held.get(key)
        # type() and not isinstance: True is an int.
        if type(found) is not kind:
            self.bad(f"{place}.{key}" if place else key, f"must be {_WORDS[kind]}")
        return found

    def bad(self, place: str, message: str) -> NoReturn:
        raise InputError.single(self.source, message, place=place, next_step=_AGAIN, slug=_SLUG)

    def capture(self) -> Capture:
        """Read the rows and return the capture."""
        tensors = self._tensors() if self.calls else {}
        return Capture(
            calls=tuple(self._call(number, call, tensors) for number, call in enumerate(self.calls)),
            runtime=self.want(self.value, "runtime", str, ""),
            contract_sha256=self.want(self.value, "contract_sha256", str, ""),
            failure=self.want(self.value, "failure", str, ""),
            dropped=self.value["dropped"],
            source=self.source,
            extra=self.want(self.value, "extra", dict, ""),
        )

    def _tensors(self) -> dict[str, Tensor]:
        name = self.want(self.value, "tensors", str, "")
        if fault := plain_name_fault(name):
            self.bad("tensors", f"is {quoted(name)}, which {fault}")
        path = self.path.parent / name
        source = str(path)
        with open_regular(path, source=source, slug=_SLUG, follow_link=False) as stream:
            # Twice the rows as float32: the facts of a row are at most 40 bytes, and a width of 1 is allowed.
            data = read_all(stream, source=source, max_bytes=2 * self.max_bytes + 2**20, slug=_SLUG)
            try:
                header = read_header(stream, source=source, file=name)
            except InputError as error:
                raise InputError(source, error.problems, slug=_SLUG) from None
        for number, call in enumerate(self.calls):
            self._check_header(number, call, header)
        if hashlib.sha256(data).hexdigest() != self.want(self.value, "sha256", str, ""):
            _refuse(source, f"is not the file that {quoted(self.path.name)} was written for (sha256 differs)", _AGAIN)
        return from_safetensors(data)

    def _check_header(self, number: int, call: dict[str, Any], header: dict[str, TensorFacts]) -> None:
        rows, width = call["rows"], call["width"]
        dtype, _ = STORED_DTYPES.get(call["dtype"], STORED_DTYPES["float32"])
        expected: dict[str, tuple[str, tuple[int, ...]]] = {"values": (dtype, (rows, width))}
        expected |= dict.fromkeys(_PER_ROW, ("I64", (rows,)))
        expected["accepted"] = ("BOOL", (rows,))
        if call.get("requests") is not None and tensor_name(number, "requests") not in header:
            self.bad(f"calls[{number}].requests", "has labels, but the tensor file does not say whose rows they are")
        for what, (kind, shape) in expected.items():
            facts = header.get(tensor_name(number, what))
            if facts is None:
                if what == "values":
                    self.bad(f"calls[{number}]", "has no rows in the tensor file")
            elif (facts.dtype, facts.shape) != (kind, shape):
                self.bad(
                    f"calls[{number}]",
                    f"{what} must be {kind} {list(shape)}, but is {facts.dtype} {list(facts.shape[:4])}",
                )
        draft = header.get(tensor_name(number, "draft_tokens"))
        if draft is not None and (draft.dtype != "I64" or len(draft.shape) != 1):
            self.bad(f"calls[{number}]", f"draft_tokens must be I64 [n], but is {draft.dtype} {list(draft.shape[:4])}")

    def _call(self, number: int, call: dict[str, Any], tensors: dict[str, Tensor]) -> Call:
        def fact(name: str) -> tuple[Any, ...] | None:
            held = tensors.get(tensor_name(number, name))
            return None if held is None else tuple(held.tolist())

        labels, index = call.get("requests"), fact("requests")
        requests = None
        if labels is not None and index is not None:
            if any(not 0 <= place < len(labels) for place in index):
                self.bad(f"calls[{number}].requests", "a row names a label that is not there")
            requests = tuple(labels[place] for place in index)
        return Call(
            # Popped: float32 rows are twice as large, and both need not be held for all calls.
            values=tensors.pop(tensor_name(number, "values")).to(torch.float32),
            point=call["point"],
            phase=call["phase"],
            requests=requests,
            accepted=fact("accepted"),
            cached=call["cached"],
            rank=call["rank"],
            stage=call["stage"],
            shard=None if call.get("shard") is None else (call["shard"][0], call["shard"][1]),
            dtype=call["dtype"],
            extra=call["extra"],
            **_integers(fact, INTEGER_FACTS),
        )


_WORDS: dict[type, str] = {str: "a text", int: "a whole number", list: "a list", dict: "an object"}


def _integers(fact: Any, names: Iterable[str]) -> dict[str, Any]:
    return {name: fact(name) for name in names}


def _refuse(source: str, message: str, next_step: str) -> NoReturn:
    raise InputError.single(source, message, next_step=next_step, slug=_SLUG)
