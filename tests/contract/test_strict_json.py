from __future__ import annotations

import json
import os
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from featurecontract.contract.strict_json import MAX_BYTES, open_regular, parse_json, read_all, read_json
from featurecontract.errors import InputError

ACCEPTED = [
    (b"{}", {}),
    (b' {"a": [1, -0, 2.5, "x", true, null]}\n', {"a": [1, 0, 2.5, "x", True, None]}),
    (b"18446744073709551615", 2**64 - 1),
    (b"-9223372036854775808", -(2**63)),
    (b'"\\ud83d\\ude00"', "\U0001f600"),
    (b'"\\\\ud800 is text"', "\\ud800 is text"),
    ('{"ключ": "é"}'.encode(), {"ключ": "é"}),
    (b"[" * 64 + b"]" * 64, None),
    (b'{"a": "' + b"[" * 200 + b'"}', {"a": "[" * 200}),
    (b'{"a": "\\"' + b"[" * 200 + b'\\\\"}', {"a": '"' + "[" * 200 + "\\"}),
    (b"[" + b"[]," * 100 + b"1]", [[]] * 100 + [1]),
    (b'[{"a":1},{"a":1}]', [{"a": 1}, {"a": 1}]),
]

REFUSED = [
    (b"", "is empty; copy the file again; it should hold one JSON value"),
    (b" \n\t", "is empty; copy the file again; it should hold one JSON value"),
    (b"\xef\xbb\xbf{}", "byte 0: begins with a UTF-8 byte order mark; save the file as UTF-8"),
    (b"\xff\xfe{\x00}\x00", "byte 0: begins with a UTF-16 byte order mark"),
    (b"\xfe\xff\x00{\x00}", "byte 0: begins with a UTF-16 byte order mark"),
    (b"\xff\xfe\x00\x00{\x00\x00\x00", "byte 0: begins with a UTF-32 byte order mark"),
    (b'{"a": "\xff"}', "byte 7: is not UTF-8 (invalid start byte)"),
    (b'{"a": "\xed\xa0\x80"}', "byte 7: is not UTF-8 (invalid continuation byte)"),
    (b'{"a": 1, "a": 1}', "line 1 column 10: the key 'a' stands twice in one object; remove one"),
    (b'{"b": {"a": 1,\n "c": [{"a": 0}], "a": 2}}', "line 2 column 19: the key 'a' stands twice in one object"),
    (b'{"a": 1, "\\u0061": 1}', "line 1 column 10: the key 'a' stands twice in one object"),
    (b'{"a": 1, "a": 1', "line 1 column 16: is not valid JSON (Expecting ',' delimiter); the file is cut off"),
    (b"[NaN]", "line 1 column 2: NaN is not JSON; write a finite number or null"),
    (b"[1,\n  Infinity]", "line 2 column 3: Infinity is not JSON"),
    (b"-Infinity", "line 1 column 1: -Infinity is not JSON"),
    (b"[Infinityx]", "line 1 column 2: Infinity is not JSON"),
    (b"18446744073709551616", "line 1 column 1: the number 18446744073709551616 does not fit in 64 bits"),
    (b"[-9223372036854775809]", "line 1 column 2: the number -9223372036854775809 does not fit in 64 bits"),
    (b"[99999999999999999999z]", "line 1 column 2: the number 99999999999999999999 does not fit in 64 bits"),
    (b"[1e999]", "line 1 column 2: the number 1e999 does not fit in 64 bits"),
    (b"[-1.5e400]", "line 1 column 2: the number -1.5e400 does not fit in 64 bits"),
    (b'["\\ud800"]', "line 1 column 2: a string holds half of a surrogate pair"),
    (b'{"\\uDC00x": 1}', "line 1 column 2: a string holds half of a surrogate pair"),
    (b"[" * 65 + b"]" * 65, "line 1 column 65: is nested deeper than 64; name the right file"),
    (b'{"a":' * 65 + b"1" + b"}" * 65, "line 1 column 321: is nested deeper than 64"),
    (b'["]"' + b',["]"' * 70, "line 1 column 321: is nested deeper than 64"),
    (b'["\\\\",' + b"[" * 70 + b"]" * 71, "line 1 column 70: is nested deeper than 64"),
    (b"{} {}", "line 1 column 4: data after the JSON document; correct the file at this place"),
    (b'{"a": 1,}', "line 1 column"),
    (b'{"a": tru}', "line 1 column 7: is not valid JSON (Expecting value)"),
    (b'["a\nb"]', "line 1 column 4: is not valid JSON (Invalid control character at)"),
    (b'{"a": [1', "line 1 column 9: is not valid JSON (Expecting ',' delimiter); the file is cut off; copy it again"),
    (b"\x00", "line 1 column 1: is not valid JSON (Expecting value)"),
    (b"[01]", "line 1 column 3: is not valid JSON"),
]


@pytest.mark.parametrize(("data", "expected"), ACCEPTED)
def test_accepts_what_json_says(data, expected):
    assert parse_json(data, source="f") == (json.loads(data) if expected is None else expected)


@pytest.mark.parametrize(("data", "message"), REFUSED)
def test_refuses_with_a_place_and_a_next_step(data, message):
    with pytest.raises(InputError) as caught:
        parse_json(data, source="config.json", slug="contract-unreadable")
    assert str(caught.value).startswith("config.json: " + message)
    assert "\n" not in str(caught.value)
    assert caught.value.slug == "contract-unreadable"
    assert caught.value.problems[0].next_step


@pytest.mark.parametrize(
    "data",
    [
        b"[" * 10_000_000,
        b'{"a":' * 1_000_000,
        b"[" + b"9" * 10_000_000 + b"]",
        b"[1." + b"1" * 10_000_000 + b"]",
        b"[" + b"[]," * 3_000_000 + b"1]",
        b'"' + b"\\" * 9_999_998 + b"\\ud800",
        b"[" + b'"\\ud83d\\ude00",' * 100_000 + b'"\\ud800"]',
        b" " * 10_000_000 + b"x",
        b"[" + b"[][" * 1_000_000,
    ],
    ids=["lists", "objects", "integer", "float", "values", "escapes", "surrogates", "spaces", "zigzag"],
)
def test_large_hostile_documents_are_refused_soon(data):
    start = time.perf_counter()
    with pytest.raises(InputError):
        parse_json(data, source="f")
    assert time.perf_counter() - start < 10  # seconds; about 1 at most, a quadratic reading takes minutes


def test_a_deep_document_is_refused_however_deep_the_caller_stands():
    def descend(left: int) -> None:
        if left:
            descend(left - 1)
        else:
            parse_json(b"[" * 500 + b"]" * 500, source="f")

    with pytest.raises(InputError, match="nested deeper"):
        descend(600)


def test_limits_can_be_set():
    assert parse_json(b"[[[1,2]]]", source="f", max_depth=3) == [[[1, 2]]]
    with pytest.raises(InputError, match="nested deeper than 2"):
        parse_json(b"[[[1,2]]]", source="f", max_depth=2)
    with pytest.raises(InputError, match="more than 4 values"):
        parse_json(b"[1,2,3,4,5,6]", source="f", max_values=4)


# --- files --------------------------------------------------------------------------------------------------------


def test_reads_a_file_and_names_it_in_errors(tmp_path):
    path = tmp_path / "a.json"
    path.write_text('{"a": 1}')
    assert read_json(path) == {"a": 1}
    path.write_text("{")
    with pytest.raises(InputError, match=r"a\.json: line 1 column 2"):
        read_json(path)
    with pytest.raises(InputError, match=r"^the config: line 1"):
        read_json(path, source="the config")


def test_a_gigabyte_is_refused_before_it_is_read(tmp_path):
    path = tmp_path / "big.json"
    path.touch()
    os.truncate(path, 1 << 30)
    start = time.perf_counter()
    with pytest.raises(InputError, match=f"has 1073741824 bytes, more than the limit of {MAX_BYTES}"):
        read_json(path)
    assert time.perf_counter() - start < 0.5


def test_nothing_is_read_of_a_file_that_is_too_large(tmp_path):
    class Unreadable:
        def __init__(self, stream) -> None:
            self.fileno = stream.fileno

    (tmp_path / "a.json").write_bytes(b"[1,2]")
    with (tmp_path / "a.json").open("rb") as stream, pytest.raises(InputError, match="has 5 bytes"):
        read_all(Unreadable(stream), source="f", max_bytes=4)


def test_a_fifo_put_in_place_of_a_file_does_not_block(tmp_path, monkeypatch):
    real, seen = os.open, []
    monkeypatch.setattr(os, "open", lambda path, flags: seen.append(flags) or real(path, flags))
    (tmp_path / "a.json").write_bytes(b"[1,2]")
    assert read_json(tmp_path / "a.json") == [1, 2]
    assert [flags & os.O_NONBLOCK for flags in seen] == [os.O_NONBLOCK]


def test_exactly_the_limit_is_read(tmp_path):
    path = tmp_path / "a.json"
    path.write_bytes(b"[1,2]")
    assert read_json(path, max_bytes=5) == [1, 2]
    with pytest.raises(InputError, match="has 5 bytes, more than the limit of 4"):
        read_json(path, max_bytes=4)


def test_what_is_no_regular_file_is_refused_without_blocking(tmp_path):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    (tmp_path / "loop").symlink_to("loop")
    for path, message in (
        (fifo, "is a FIFO, not a regular file"),
        (tmp_path, "is a directory, not a regular file"),
        ("/dev/zero", "is a device or socket, not a regular file"),
        (tmp_path / "absent", r"cannot be opened \(No such file or directory\); check the path"),
        (tmp_path / "loop", "cannot be opened"),
        (tmp_path / ("n" * 300), "cannot be opened"),
        (f"{tmp_path}/a\0b", "cannot be opened"),
    ):
        with pytest.raises(InputError, match=message):
            read_json(type(tmp_path)(path))


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission_is_refused(tmp_path):
    path = tmp_path / "a.json"
    path.write_text("{}")
    path.chmod(0)
    with pytest.raises(InputError, match="Permission denied"):
        read_json(path)


def test_a_link_is_followed_only_when_asked(tmp_path):
    (tmp_path / "a.json").write_text("[]")
    (tmp_path / "link").symlink_to("a.json")
    assert read_json(tmp_path / "link") == []
    with pytest.raises(InputError, match="is a link, not a regular file"):
        open_regular(tmp_path / "link", source="f", follow_link=False)


# --- properties ---------------------------------------------------------------------------------------------------

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(value=values, ascii_only=st.booleans(), indent=st.sampled_from([None, 1]))
def test_every_document_that_json_writes_is_read_as_json_reads_it(value, ascii_only, indent):
    data = json.dumps(value, ensure_ascii=ascii_only, indent=indent).encode()
    assert parse_json(data, source="f") == json.loads(data)


@given(
    data=st.lists(
        st.sampled_from(
            [
                b"{",
                b"}",
                b"[",
                b"]",
                b":",
                b",",
                b'"a"',
                b'"\\ud800"',
                b'"',
                b"\\",
                b"1",
                b"1e999",
                b"9" * 20,
                b"NaN",
                b"-Infinity",
                b"tru",
                b"true",
                b" ",
                b"\n",
                b"\xff",
                b"\xc3\xa9",
                b'"\\u',
            ]
        ),
        max_size=12,
    ).map(b"".join)
)
def test_nothing_but_an_input_error_escapes_and_nothing_is_accepted_that_json_refuses(data):
    message = ""
    try:
        value = parse_json(data, source="f")
    except InputError as error:
        message = str(error)
    else:
        assert json.loads(data) == value
    assert "\n" not in message
    assert "holds a value that is refused" not in message, "the place was not found"
