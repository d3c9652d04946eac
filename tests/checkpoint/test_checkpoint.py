from __future__ import annotations

import hashlib
import json
import os
import struct
import time
from pathlib import Path

import pytest
from checkpoint_files import int32, int64, mask, tensors_bytes, write_checkpoint

from featurecontract.checkpoint import open_checkpoint
from featurecontract.errors import InputError

FC = ("BF16", [2, 6], bytes(range(24)))


def test_a_directory_its_config_and_its_file_give_the_same(tmp_path):
    write_checkpoint(tmp_path, {"fc.weight": FC}, {"draft_vocab_size": 3})
    for path in (tmp_path, str(tmp_path), tmp_path / "config.json", tmp_path / "model.safetensors"):
        checkpoint = open_checkpoint(path)
        assert str(checkpoint.path) == str(path)
        assert checkpoint.directory == tmp_path
        assert checkpoint.config == {"draft_vocab_size": 3}
        assert checkpoint.format == "safetensors"
        assert checkpoint.tensors["fc.weight"].shape == (2, 6)
        assert checkpoint.tensors_reason == ""


def test_a_single_file_of_another_name_is_found(tmp_path):
    write_checkpoint(tmp_path)
    (tmp_path / "eagle.safetensors").write_bytes(tensors_bytes({"fc.weight": FC}))
    assert open_checkpoint(tmp_path).tensors["fc.weight"].file == "eagle.safetensors"


def test_one_of_several_files_is_chosen_by_its_path(tmp_path):
    write_checkpoint(tmp_path)
    for name in ("a.safetensors", "b.safetensors"):
        (tmp_path / name).write_bytes(tensors_bytes({name[0]: FC}))
    checkpoint = open_checkpoint(tmp_path)
    assert (checkpoint.tensors, checkpoint.format) == (None, "none")
    assert checkpoint.tensors_reason == (
        "several files could hold the tensors: 'a.safetensors', 'b.safetensors'; "
        "pass the path of one, or add model.safetensors.index.json"
    )
    assert open_checkpoint(tmp_path / "b.safetensors").tensors.keys() == {"b"}
    (tmp_path / "model.safetensors").write_bytes(tensors_bytes({"m": FC}))
    assert open_checkpoint(tmp_path).tensors.keys() == {"m"}


def test_no_tensor_file_is_said(tmp_path):
    checkpoint = open_checkpoint(write_checkpoint(tmp_path))
    assert (checkpoint.tensors, checkpoint.format) == (None, "none")
    assert checkpoint.tensors_reason == f"no tensor file in {tmp_path}"
    with pytest.raises(InputError, match=f"no tensor file in {tmp_path}"):
        checkpoint.read_values("d2t")


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("absent", "does not exist; name a checkpoint directory, its config.json, or a .safetensors file beside one"),
        ("notes.txt", "is not a checkpoint; name a checkpoint directory"),
        ("a\0b", "does not exist"),
        ("n" * 5000, "does not exist"),
        ("n" * 5000 + ".safetensors", "does not exist"),
        ("empty/absent.safetensors", "has no config.json"),
        ("list.safetensors/x", "does not exist"),
        ("empty", "has no config.json; name the directory that was saved with save_pretrained"),
        ("empty/config.json", "has no config.json"),
        ("empty/model.safetensors", "has no config.json"),
        ("list", "must be an object, not list; name the config.json of a model"),
    ],
)
def test_a_path_that_is_no_checkpoint(tmp_path, path, message):
    (tmp_path / "notes.txt").touch()
    (tmp_path / "empty").mkdir()
    (tmp_path / "list").mkdir()
    (tmp_path / "list" / "config.json").write_text("[]")
    with pytest.raises(InputError) as caught:
        open_checkpoint(tmp_path / path)
    assert message in str(caught.value)
    assert str(caught.value).isprintable()


def test_a_config_of_a_gigabyte_is_refused_at_once(tmp_path):
    write_checkpoint(tmp_path)
    os.truncate(tmp_path / "config.json", 1 << 30)
    start = time.perf_counter()
    with pytest.raises(InputError, match="has 1073741824 bytes"):
        open_checkpoint(tmp_path)
    assert time.perf_counter() - start < 0.5


def test_sections_of_the_config(tmp_path):
    config = {"eagle_config": {"ids": [1], "deep": {"x": 1}}, "list": [1], "text": "x"}
    checkpoint = open_checkpoint(write_checkpoint(tmp_path, config=config))
    assert checkpoint.section("eagle_config") == {"ids": [1], "deep": {"x": 1}}
    assert checkpoint.section("eagle_config.deep") == {"x": 1}
    assert [checkpoint.section(name) for name in ("list", "text", "absent", "eagle_config.ids.x", "")] == [None] * 5


@pytest.mark.parametrize(
    ("dtype", "code", "values"),
    [
        ("I64", "q", [-(2**63), 0, 2**63 - 1]),
        ("U64", "Q", [0, 2**64 - 1]),
        ("I32", "i", [-(2**31), 5]),
        ("U32", "I", [2**32 - 1]),
        ("I16", "h", [-(2**15), 7]),
        ("U16", "H", [2**16 - 1]),
        ("I8", "b", [-128, 127]),
        ("U8", "B", [0, 255]),
        ("BOOL", "?", [True, False, True]),
        ("I64", "q", []),
    ],
)
def test_values_are_little_endian(tmp_path, dtype, code, values):
    raw = struct.pack(f"<{len(values)}{code}", *values)
    tensors = {"before": FC, "d2t": (dtype, [len(values)], raw), "after": FC}
    checkpoint = open_checkpoint(write_checkpoint(tmp_path, tensors))
    read = checkpoint.read_values("d2t")
    assert read == values
    assert {type(value) for value in read} <= {bool if dtype == "BOOL" else int}
    assert checkpoint.sha256("d2t") == hashlib.sha256(raw).hexdigest()


def test_values_that_cannot_be_read(tmp_path):
    tensors = {"fc": FC, "two": ("I64", [1, 1], bytes(8)), "flags": ("BOOL", [2], b"\1\2"), "d2t": int32([1, 2])}
    checkpoint = open_checkpoint(write_checkpoint(tmp_path, tensors))
    file = tmp_path / "model.safetensors"
    for name, message in (
        ("fc", f"{file}: 'fc': is BF16 [2, 6], not one row of integers or bools; save it as a 1-D I64"),
        ("two", f"{file}: 'two': is I64 [1, 1], not one row of integers or bools"),
        ("flags", f"{file}: 'flags': is BOOL but holds bytes other than 0 and 1"),
        ("t2d", f"{tmp_path}: has no tensor 't2d'; it has 'd2t', 'fc', 'flags', 'two'"),
    ):
        with pytest.raises(InputError) as caught:
            checkpoint.read_values(name)
        assert str(caught.value).startswith(message)
    with pytest.raises(InputError, match="has 8 bytes, more than the limit of 7"):
        checkpoint.read_values("d2t", max_bytes=7)
    assert checkpoint.read_values("d2t", max_bytes=8) == [1, 2]


def test_a_file_that_became_shorter_is_refused(tmp_path):
    checkpoint = open_checkpoint(write_checkpoint(tmp_path, {"d2t": int64([1, 2])}))
    os.truncate(tmp_path / "model.safetensors", checkpoint.tensors["d2t"].end - 1)
    with pytest.raises(InputError, match="became shorter since its header was read; run again"):
        checkpoint.read_values("d2t")
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(InputError, match="No such file"):
        checkpoint.sha256("d2t")


def test_a_digest_is_read_in_pieces(tmp_path):
    raw = bytes(range(256)) * 10_000
    checkpoint = open_checkpoint(write_checkpoint(tmp_path, {"x": FC, "w": ("U8", [len(raw)], raw)}))
    assert checkpoint.sha256("w") == hashlib.sha256(raw).hexdigest()


def test_a_checkpoint_cannot_be_changed(tmp_path):
    checkpoint = open_checkpoint(write_checkpoint(tmp_path, {"t2d": mask(4, [1])}))
    with pytest.raises(AttributeError):
        checkpoint.format = "none"
    with pytest.raises(TypeError):
        checkpoint.tensors["x"] = None


def test_a_hostile_file_name_is_escaped(tmp_path):
    write_checkpoint(tmp_path)
    (tmp_path / "a\x1b[2J\n.safetensors").write_bytes(b"x")
    with pytest.raises(InputError) as caught:
        open_checkpoint(tmp_path)
    assert str(caught.value).isprintable()


def test_the_config_is_read_strictly(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"a": float("nan")}))
    with pytest.raises(InputError, match=r"config\.json: line 1 column 7: NaN is not JSON"):
        open_checkpoint(tmp_path)


def test_a_path_that_may_not_be_looked_at_says_so(tmp_path, monkeypatch):
    def refuse(*_args, **_kwargs):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "is_dir", refuse)
    with pytest.raises(InputError, match=r"config\.json: cannot be read \(Permission denied\)"):
        open_checkpoint(tmp_path / "config.json")
