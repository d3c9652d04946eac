"""Captures on disk: exact there and back, all or nothing, and hostile files refused in one line."""

from __future__ import annotations

import errno
import json
import os
import signal
import struct
import subprocess
import sys
from importlib.resources import files

import jsonschema
import pytest
import torch
from safetensors.torch import load_file, save_file

from featurecontract.capture import Call, Capture, load, save
from featurecontract.errors import InputError


def call(count=3, width=4, **facts):
    values = torch.arange(count * width, dtype=torch.float32).reshape(count, width)
    return Call(values=values, **({"dtype": "float32"} | facts))


FULL = Capture(
    calls=(
        call(
            phase="prefill",
            token_ids=(1, 2, 3),
            positions=(0, 1, 2),
            requests=("a", "b", "a"),
            accepted=(True, False, True),
            cached={"a": 2},
            drafter_token_ids=(2, 3, 4),
            draft_tokens=(7, 8, 9, 10),
            rank=1,
            shard=(0, 2),
            stage=1,
            dtype="bfloat16",
            extra={"place": "fc"},
        ),
        call(1, 4, point="recurrent"),
    ),
    runtime="vllm==0.33.0",
    contract_sha256="ab" * 32,
    failure="fc: TypeError: no",
    dropped=3,
    extra={"keep": "first", "rank": 1},
)


def same(one, other):
    for name in ("runtime", "contract_sha256", "failure", "dropped", "extra"):
        assert getattr(one, name) == getattr(other, name), name
    assert len(one.calls) == len(other.calls)
    for mine, theirs in zip(one.calls, other.calls, strict=True):
        assert torch.equal(mine.values.nan_to_num(5), theirs.values.nan_to_num(5))
        for name in Call.__slots__:
            if name != "values":
                assert getattr(mine, name) == getattr(theirs, name), name


def rewrite(path, change):
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))


def refused(path, match, **bounds):
    with pytest.raises(InputError, match=match) as caught:
        load(path, **bounds)
    assert caught.value.slug == "nothing-captured"
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 1000
    return caught.value


def test_there_and_back(tmp_path):
    path = save(FULL, tmp_path / "new" / "folder")
    for given in (path, path.with_suffix(".safetensors"), path.parent, [path, path.parent]):
        (found,) = load(given)
        same(found, FULL)
        assert found.source == str(path)
    assert path.name.startswith(f"capture-{os.getpid()}-r1-")
    assert sorted(item.suffix for item in path.parent.iterdir()) == [".json", ".safetensors"]


def test_each_save_is_a_file_of_its_own(tmp_path):
    assert save(FULL, tmp_path) != save(FULL, tmp_path)
    assert len(load(tmp_path)) == 2


@pytest.mark.parametrize(
    ("dtype", "stored"),
    [
        ("bfloat16", torch.bfloat16),
        ("float16", torch.float16),
        ("float8_e4m3fn", torch.float8_e4m3fn),
        ("float32", torch.float32),
        ("float64", torch.float32),
        ("", torch.float32),
    ],
)
def test_rows_are_stored_in_their_dtype(tmp_path, dtype, stored):
    path = save(Capture(calls=(call(dtype=dtype),)), tmp_path)
    assert load_file(path.with_suffix(".safetensors"))["000000.values"].dtype == stored
    (found,) = load(path)
    assert torch.equal(found.calls[0].values, call().values)
    assert (found.calls[0].values.dtype, found.calls[0].dtype) == (torch.float32, dtype)


def test_nan_infinity_and_zero_rows_are_data(tmp_path):
    odd = Call(values=torch.tensor([[float("nan"), float("inf"), -float("inf"), 0.0]]), dtype="bfloat16")
    capture = Capture(calls=(odd, call(0)))
    same(load(save(capture, tmp_path))[0], capture)


def test_two_calls_may_share_memory(tmp_path):
    one = call()
    capture = Capture(calls=(one, one, Call(values=one.values[1:].T, dtype="float32")))
    same(load(save(capture, tmp_path))[0], capture)


def test_the_json_fits_its_published_schema(tmp_path):
    schema = json.loads(files("featurecontract.capture").joinpath("schema/feature_capture-1.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    for capture in (FULL, Capture(calls=())):
        jsonschema.validate(json.loads(save(capture, tmp_path).read_text()), schema)


# --- nothing was captured -------------------------------------------------------------------------------------------


def test_a_capture_without_calls_is_nothing(tmp_path):
    path = save(Capture(calls=()), tmp_path)
    refused(path, "no call was captured")
    assert [item.suffix for item in tmp_path.iterdir()] == [".json"]


def test_the_failure_of_a_capture_without_calls_is_said(tmp_path):
    refused(save(Capture(calls=(), failure="fc: TypeError: no"), tmp_path), "the capture let go: fc: TypeError: no")


def test_one_rank_without_calls_is_no_fault(tmp_path):
    save(Capture(calls=()), tmp_path)
    save(FULL, tmp_path)
    assert sorted(len(capture.calls) for capture in load(tmp_path)) == [0, 2]


def test_no_capture_at_all(tmp_path):
    refused(tmp_path, r"holds no capture-\*\.json")
    refused(tmp_path / "absent", "cannot be opened")
    refused([], "no call was captured")
    save_file({"weight": torch.zeros(2)}, tmp_path / "model.safetensors")
    refused(tmp_path / "model.safetensors", "has no 'model.json' beside it")
    refused(tmp_path, r"holds no capture-\*\.json")


# --- all or nothing -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("failing", [1, 2])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EACCES])
def test_a_full_disk_leaves_nothing(tmp_path, monkeypatch, failing, code):
    calls, fsync = [], os.fsync

    def full(descriptor):
        calls.append(descriptor)
        if len(calls) == failing:
            raise OSError(code, os.strerror(code))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(InputError, match=os.strerror(code)) as caught:
        save(FULL, tmp_path)
    assert caught.value.slug == "nothing-captured"
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_is_a_file(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written"):
        save(FULL, tmp_path / "file")


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs signals")
@pytest.mark.parametrize("failing", [1, 2])
def test_a_process_killed_while_saving_leaves_nothing_readable(tmp_path, failing):
    script = f"""
import os, signal, torch
from featurecontract.capture import Call, Capture, save
calls = []
def die(descriptor):
    calls.append(1)
    if len(calls) == {failing}:
        os.kill(os.getpid(), signal.SIGKILL)
os.fsync = die
save(Capture(calls=(Call(values=torch.ones(4, 4)),)), {str(tmp_path)!r})
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=False)
    assert done.returncode == -signal.SIGKILL
    assert list(tmp_path.iterdir())
    refused(tmp_path, r"holds no capture-\*\.json")
    save(FULL, tmp_path)
    assert len(load(tmp_path)) == 1


def test_too_many_calls(tmp_path, monkeypatch):
    monkeypatch.setattr("featurecontract.capture._files.MAX_CALLS", 1)
    with pytest.raises(InputError, match="has 2 calls, more than the limit of 1"):
        save(FULL, tmp_path)


# --- hostile files --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cut", [0, 1, 7, 8, 9, 100, -1])
def test_truncated_tensors(tmp_path, cut):
    path = save(FULL, tmp_path)
    tensors = path.with_suffix(".safetensors")
    tensors.write_bytes(tensors.read_bytes()[:cut])
    refused(path, r"capture-.*\.safetensors")


def test_foreign_tensors(tmp_path):
    path = save(FULL, tmp_path)
    save_file({"weight": torch.zeros(2)}, path.with_suffix(".safetensors"))
    refused(path, "does not say whose rows they are")
    path = save(Capture(calls=(call(),)), tmp_path)
    save_file({"weight": torch.zeros(2)}, path.with_suffix(".safetensors"))
    refused(path, "has no rows in the tensor file")


def test_tensors_that_changed(tmp_path):
    path = save(FULL, tmp_path)
    tensors = path.with_suffix(".safetensors")
    data = bytearray(tensors.read_bytes())
    data[-1] ^= 1
    tensors.write_bytes(data)
    refused(path, "sha256 differs")


def test_missing_tensors(tmp_path):
    path = save(FULL, tmp_path)
    path.with_suffix(".safetensors").unlink()
    refused(path, "cannot be opened")


def test_tensors_elsewhere_are_not_read(tmp_path):
    path = save(FULL, tmp_path / "a")
    other = save(FULL, tmp_path / "b").with_suffix(".safetensors")
    rewrite(path, lambda document: document.update(tensors=f"../b/{other.name}"))
    refused(path, "holds a slash")
    path.with_name("link.safetensors").symlink_to(other)
    rewrite(path, lambda document: document.update(tensors="link.safetensors"))
    refused(path, "is a link")


@pytest.mark.parametrize(
    ("name", "tensor", "message"),
    [
        ("000000.values", torch.zeros(3, 4, dtype=torch.int64), r"values must be BF16 \[3, 4\], but is I64 \[3, 4\]"),
        ("000000.values", torch.zeros(3, 5, dtype=torch.bfloat16), r"but is BF16 \[3, 5\]"),
        ("000000.token_ids", torch.zeros(3), r"token_ids must be I64 \[3\], but is F32 \[3\]"),
        ("000000.token_ids", torch.zeros(2, dtype=torch.int64), r"but is I64 \[2\]"),
        ("000000.accepted", torch.zeros(3, dtype=torch.int64), "accepted must be BOOL"),
        ("000000.draft_tokens", torch.zeros(3), "draft_tokens must be I64"),
        ("000000.requests", torch.tensor([0, 1, 2]), "sha256 differs"),
    ],
)
def test_tensors_of_the_wrong_kind(tmp_path, name, tensor, message):
    path = save(FULL, tmp_path)
    tensors = load_file(path.with_suffix(".safetensors")) | {name: tensor}
    save_file(tensors, path.with_suffix(".safetensors"))
    refused(path, message)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.pop("capture_version"), "is not a capture"),
        (lambda d: d.update(capture_version=1), "capture_version: must be a text"),
        (lambda d: d.update(capture_version="2.0"), "has capture_version '2.0'; known: 1"),
        (lambda d: d.update(capture_version="1.garbage"), "has capture_version '1.garbage'; known: 1"),
        (lambda d: d["calls"][0].update(shard=[0, 10**9]), "says 1000000000 shards, above the limit of 4096"),
        (lambda d: d["calls"][0]["extra"].update(place=["fc"]), r"calls\[0\].extra.place: must be a text"),
        (lambda d: d.update(calls={}), "calls: must be a list"),
        (lambda d: d.update(calls=[3]), r"calls\[0\]: must be an object"),
        (lambda d: d.update(dropped=-1), "dropped: must not be negative"),
        (lambda d: d.update(dropped=True), "dropped: must be a whole number"),
        (lambda d: d.update(failure=None), "failure: must be a text"),
        (lambda d: d.update(tensors=4), "tensors: must be a text"),
        (lambda d: d["calls"][0].update(point="fc"), r"calls\[0\]\.point: is 'fc', not one of features"),
        (lambda d: d["calls"][0].update(rows=-1), r"calls\[0\]\.rows: must be at least 0"),
        (lambda d: d["calls"][0].update(rows=1.5), r"calls\[0\]\.rows: must be a whole number"),
        (lambda d: d["calls"][0].update(rows=2), r"must be BF16 \[2, 4\]"),
        (lambda d: d["calls"][0].update(width=0), r"width: must be at least 1"),
        (lambda d: d["calls"][0].update(dtype="float32"), r"must be F32 \[3, 4\]"),
        (lambda d: d["calls"][0].update(shard=[2, 2]), "shard: must be null or"),
        (lambda d: d["calls"][0].update(cached={"a": "b"}), "cached: must give"),
        (lambda d: d["calls"][0].update(requests=[1]), "requests: must be null or a list of labels"),
        (lambda d: d["calls"][0].update(requests=["a"]), "names a label that is not there"),
        (lambda d: d["calls"][1].update(requests=["a"]), "does not say whose rows they are"),
        (lambda d: d.update(sha256="0" * 64), "sha256 differs"),
    ],
)
def test_facts_of_the_wrong_kind(tmp_path, change, message):
    path = save(FULL, tmp_path)
    rewrite(path, change)
    refused(path, message)


@pytest.mark.parametrize("text", ["", "[]", "{", "null", '{"a": NaN}', "[" * 100_000])
def test_json_that_is_none(tmp_path, text):
    path = tmp_path / "capture-1-r0-0.json"
    path.write_text(text)
    refused(path, "capture-1-r0-0.json")


def test_a_million_rows_are_refused_before_they_are_read(tmp_path):
    path = save(Capture(calls=(call(1, 8, dtype="bfloat16"),)), tmp_path)
    rewrite(path, lambda document: document["calls"][0].update(rows=1_000_000))
    header = json.dumps(
        {"000000.values": {"dtype": "BF16", "shape": [1_000_000, 8], "data_offsets": [0, 16_000_000]}}
    ).encode()
    tensors = path.with_suffix(".safetensors")
    tensors.write_bytes(struct.pack("<Q", len(header)) + header)
    os.truncate(tensors, 8 + len(header) + 16_000_000)
    refused(path, "has 1000000 rows or more, above the limit of 200000")
    refused(path, "needs 32000000 bytes or more, above the limit of 1000000", max_rows=2_000_000, max_bytes=1_000_000)


def test_bounds_count_all_captures_together(tmp_path):
    for _ in range(3):
        save(Capture(calls=(call(3),)), tmp_path)
    assert len(load(tmp_path, max_rows=9)) == 3
    refused(tmp_path, "has 9 rows or more, above the limit of 8", max_rows=8)


def test_tensors_far_larger_than_what_is_said(tmp_path):
    path = save(Capture(calls=(call(3),)), tmp_path)
    os.truncate(path.with_suffix(".safetensors"), 2**34)
    refused(path, "more than the limit of", max_bytes=2**20)


@pytest.mark.parametrize("gone", ["json", "both"])
def test_a_pair_that_is_replaced_while_its_directory_is_read(tmp_path, monkeypatch, gone):
    """A server writes the next file and removes the one before, between the listing and the reading."""
    import featurecontract.capture._load as loading

    first = save(FULL, tmp_path)
    original = loading._Document.__init__ if gone == "json" else loading._Document.capture
    turns = []

    def replaced(self, *arguments):
        if not turns:
            turns.append(save(FULL, tmp_path))
            first.unlink()
            first.with_suffix(".safetensors").unlink()
        return original(self, *arguments)

    monkeypatch.setattr(loading._Document, "__init__" if gone == "json" else "capture", replaced)
    (found,) = load(tmp_path)
    assert found.source == str(turns[0])


def test_a_file_that_was_named_and_is_gone_is_refused(tmp_path):
    path = save(FULL, tmp_path)
    path.with_suffix(".safetensors").unlink()
    refused(tmp_path, r"\.safetensors")
