"""Write the hostile safetensors files of ``checkpoint_headers/``: ``python tests/hostile/make_checkpoint_headers.py``.

One small file per fault, with the message that it must get. ``test_checkpoint_headers.py`` checks that the files are
these.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path

FOLDER = Path(__file__).parent / "checkpoint_headers"


def entry(dtype: object, shape: object, *offsets: object) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": list(offsets)}


def build(header: object, data: bytes = b"", *, length: int | None = None) -> bytes:
    raw = header if isinstance(header, bytes) else json.dumps(header, separators=(",", ":")).encode()
    return struct.pack("<Q", len(raw) if length is None else length) + raw + data


GOOD = {"a": entry("U8", [2], 0, 2)}
_ONE = json.dumps(GOOD, separators=(",", ":")).encode()

#: File name without its suffix: the content and the text that the error must hold.
CASES: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "has 0 bytes, too few for a safetensors file"),
    "seven-bytes": (b"\0" * 7, "has 7 bytes, too few for a safetensors file"),
    "length-beyond-file": (build(_ONE, b"xx", length=1000), "says that its header has 1000 bytes, but 55 follow"),
    "length-huge": (build(_ONE, length=2**63), "says that its header has 9223372036854775808 bytes"),
    "length-minus-one": (build(_ONE, length=2**64 - 1), "says that its header has 18446744073709551615 bytes"),
    "length-zero": (build(b"", b"xx"), "has a header that begins with b'', not with '{'"),
    "length-short": (build(_ONE, b"xx", length=10), "(header): line 1 column"),
    "not-an-object": (build([]), "has a header that begins with b'[]', not with '{'"),
    "leading-space": (build(b" " + _ONE, b"xx"), "has a header that begins with b' {\"a', not with '{'"),
    "byte-order-mark": (build(b"\xef\xbb\xbf" + _ONE, b"xx"), "not with '{'"),
    "not-utf8": (build(b'{"\xff":1}'), "(header): byte 2: is not UTF-8"),
    "nul-padding": (build(_ONE + b"\0\0", b"xx"), "(header): line 1 column 54: data after the JSON document"),
    "deep": (
        build(b'{"a":' + b"[" * 1000 + b"]" * 1000 + b"}"),
        "(header): line 1 column 69: is nested deeper than 64",
    ),
    "duplicate-name": (
        build(b'{"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},' + _ONE[1:], b"xx"),
        "(header): line 1 column 54: the key 'a' stands twice in one object",
    ),
    "huge-number": (
        build(b'{"a":{"dtype":"U8","shape":[' + b"9" * 40 + b'],"data_offsets":[0,1]}}', b"x"),
        "(header): line 1 column 29: the number 999999999999999999999... does not fit in 64 bits",
    ),
    "entry-null": (build({"a": None}), "'a': must be an object with dtype, shape and data_offsets"),
    "dtype-unknown": (build({"a": entry("Q4", [2], 0, 1)}, b"x"), "'a': has the unknown dtype 'Q4' (known: BOOL, F4,"),
    "dtype-number": (build({"a": entry(8, [1], 0, 1)}, b"x"), "'a': has the unknown dtype 8"),
    "dtype-list": (build({"a": entry(["U8"], [1], 0, 1)}, b"x"), "'a': has the unknown dtype ['U8']"),
    "dtype-missing": (build({"a": {"shape": [1], "data_offsets": [0, 1]}}, b"x"), "'a': has the unknown dtype None"),
    "shape-missing": (build({"a": {"dtype": "U8", "data_offsets": [0, 1]}}, b"x"), "'a': has the shape None"),
    "shape-negative": (build({"a": entry("U8", [-1], 0, 1)}, b"x"), "'a': has the shape [-1]"),
    "shape-negative-pair": (build({"a": entry("U8", [-1, -1], 0, 1)}, b"x"), "'a': has the shape [-1, -1]"),
    "shape-bool": (build({"a": entry("U8", [True], 0, 1)}, b"x"), "'a': has the shape [True]"),
    "shape-float": (build({"a": entry("U8", [1.0], 0, 1)}, b"x"), "'a': has the shape [1.0]"),
    "shape-text": (build({"a": entry("U8", "1", 0, 1)}, b"x"), "'a': has the shape '1'"),
    "shape-overflow": (build({"a": entry("U8", [2**32, 2**32], 0, 0)}), "[4294967296, 4294967296], too large"),
    "shape-overflow-zero": (build({"a": entry("U8", [2**40, 2**40, 0], 0, 0)}), "too large for any file"),
    "shape-does-not-fit": (
        build({"a": entry("F32", [2], 0, 4)}, b"xxxx"),
        "needs 8 bytes for F32 [2], but its range has 4",
    ),
    "shape-half-byte": (
        build({"a": entry("F4", [3], 0, 1)}, b"x"),
        "has the shape [3], which in F4 does not end at a byte",
    ),
    "offsets-missing": (build({"a": {"dtype": "U8", "shape": [1]}}, b"x"), "'a': has the data_offsets None"),
    "offsets-one": (build({"a": entry("U8", [1], 0)}, b"x"), "'a': has the data_offsets [0]"),
    "offsets-three": (build({"a": entry("U8", [1], 0, 1, 2)}, b"x"), "'a': has the data_offsets [0, 1, 2]"),
    "offsets-negative": (build({"a": entry("U8", [1], -1, 0)}, b"x"), "'a': has the data_offsets [-1, 0]"),
    "offsets-bool": (
        build({"a": {"dtype": "U8", "shape": [1], "data_offsets": [False, True]}}, b"x"),
        "'a': has the data_offsets [False, True]",
    ),
    "offsets-reversed": (build({"a": entry("U8", [1], 1, 0)}, b"x"), "'a': begins at 1, behind its end at 0"),
    "offsets-beyond-file": (
        build({"a": entry("U8", [4], 0, 4)}, b"xx"),
        "'a': ends at 4, but the file has 2 bytes of data",
    ),
    "overlap": (
        build({"a": entry("U8", [2], 0, 2), "b": entry("U8", [2], 1, 3)}, b"xxx"),
        "'b': begins at 1 and overlaps the tensor before it, which ends at 2",
    ),
    "same-range": (
        build({"a": entry("U8", [1], 0, 1), "b": entry("I8", [1], 0, 1)}, b"x"),
        "'b': begins at 0 and overlaps the tensor before it, which ends at 1",
    ),
    "empty-inside": (
        build({"a": entry("U8", [2], 0, 2), "b": entry("U8", [0], 1, 1)}, b"xx"),
        "'b': begins at 1 and overlaps the tensor before it, which ends at 2",
    ),
    "hole": (
        build({"a": entry("U8", [1], 0, 1), "b": entry("U8", [1], 2, 3)}, b"xxx"),
        "'b': begins at 2 and leaves a hole before it, which ends at 1",
    ),
    "hole-at-start": (build({"a": entry("U8", [1], 1, 2)}, b"xx"), "'a': begins at 1 and leaves a hole before it"),
    "trailing-bytes": (build(GOOD, b"xxxx"), "has 2 bytes behind the last tensor"),
    "trailing-bytes-no-tensor": (build({}, b"x"), "has 1 bytes behind the last tensor"),
    "metadata-number": (build({"__metadata__": {"a": 1}}), "__metadata__['a']: must be a string"),
    "metadata-list": (build({"__metadata__": []}), "__metadata__: must be an object of strings"),
    "metadata-null": (build({"__metadata__": None}), "__metadata__: must be an object of strings"),
    "control-characters": (build({"\x1b[2J\n\ud83d\ude00": 1}), "'\\x1b[2J\\n\\U0001f600': must be an object"),
    "long-name": (build({"n" * 4000: 1}), f"'{'n' * 76}...: must be an object"),
    "many-faults": (build({f"t{number}": 1 for number in range(300)}), "and 95 more"),
}


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name, (content, _) in CASES.items():
        (FOLDER / f"{name}.safetensors").write_bytes(content)


if __name__ == "__main__":
    main()
