from __future__ import annotations

import hashlib
import io
import json
import pickle
import sys
import time
import zipfile

import pytest
from checkpoint_files import write_checkpoint

from featurecontract.checkpoint import open_checkpoint
from featurecontract.errors import InputError


class Malicious:
    """Writes a file when it is unpickled."""

    def __init__(self, path) -> None:
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


@pytest.fixture
def directory(tmp_path):
    return write_checkpoint(tmp_path / "ckpt")


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


def test_without_torch_the_tensors_are_unknown(directory, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    (directory / "pytorch_model.bin").write_bytes(b"whatever")
    checkpoint = open_checkpoint(directory)
    assert (checkpoint.format, checkpoint.tensors) == ("pytorch", None)
    assert checkpoint.tensors_reason == ("pytorch_model.bin needs torch to be read; install featurecontract[torch]")


def test_names_dtypes_shapes_values_and_digests(directory, torch):
    weight = torch.arange(12, dtype=torch.float32).reshape(3, 4).to(torch.bfloat16)
    state = {"fc.weight": weight.t(), "d2t": torch.tensor([0, 0, 5]), "t2d": torch.tensor([True, False]), "step": 3}
    torch.save(state, directory / "pytorch_model.bin")
    checkpoint = open_checkpoint(directory)
    assert checkpoint.format == "pytorch"
    assert {name: (facts.dtype, facts.shape) for name, facts in checkpoint.tensors.items()} == {
        "fc.weight": ("BF16", (4, 3)),
        "d2t": ("I64", (3,)),
        "t2d": ("BOOL", (2,)),
    }
    assert checkpoint.read_values("d2t") == [0, 0, 5]
    assert checkpoint.read_values("t2d") == [True, False]
    row_major = weight.t().contiguous().view(torch.uint8).flatten().tolist()
    assert checkpoint.sha256("fc.weight") == hashlib.sha256(bytes(row_major)).hexdigest()


def test_safetensors_come_first(directory, torch):
    torch.save({"a": torch.zeros(1)}, directory / "pytorch_model.bin")
    write_checkpoint(directory, {"b": ("U8", [1], b"x")})
    assert open_checkpoint(directory).tensors.keys() == {"b"}


def test_shards_by_their_index(directory, torch):
    torch.save({"a": torch.zeros(1)}, directory / "p1.bin")
    torch.save({"b": torch.zeros(2)}, directory / "p2.bin")
    index = directory / "pytorch_model.bin.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "p1.bin", "b": "p2.bin"}}))
    assert {name: facts.file for name, facts in open_checkpoint(directory).tensors.items()} == {
        "a": "p1.bin",
        "b": "p2.bin",
    }
    torch.save({"a": torch.zeros(2)}, directory / "p2.bin")
    with pytest.raises(InputError, match="more than one shard: 'a'"):
        open_checkpoint(directory)
    index.write_text(json.dumps({"weight_map": {"a": "../p1.bin"}}))
    with pytest.raises(InputError, match="holds a slash"):
        open_checkpoint(directory)


def test_a_malicious_pickle_is_one_line_and_runs_nothing(directory, torch, tmp_path):
    mark = tmp_path / "mark"
    for state in ({"a": Malicious(mark)}, Malicious(mark)):
        torch.save(state, directory / "pytorch_model.bin")
        with pytest.raises(InputError) as caught:
            open_checkpoint(directory)
        message = str(caught.value)
        assert message.startswith(f"{directory / 'pytorch_model.bin'}: cannot be loaded weights-only (UnpicklingError")
        assert "open" in message
        assert "save it again as safetensors" in message
        assert message.isprintable()
        assert not mark.exists()


def test_an_expanded_tensor_is_not_written_out(directory, torch):
    torch.save({"a": torch.zeros(1).expand(1 << 30, 1 << 20)}, directory / "pytorch_model.bin")
    checkpoint = open_checkpoint(directory)
    assert checkpoint.tensors["a"].shape == (1 << 30, 1 << 20)
    with pytest.raises(InputError, match="'a': has more elements than the file holds"):
        checkpoint.sha256("a")


def test_a_sparse_tensor_has_no_bytes(directory, torch):
    torch.save({"a": torch.eye(2).to_sparse()}, directory / "pytorch_model.bin")
    with pytest.raises(InputError, match=r"'a': has no such dense tensor|cannot be loaded"):
        open_checkpoint(directory).sha256("a")


def saved(torch, state: object, **options) -> bytes:
    buffer = io.BytesIO()
    torch.save(state, buffer, **options)
    return buffer.getvalue()


def zipped(entries: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as archive:
        for name, content in entries.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def test_what_is_no_archive_of_torch(directory, torch, tmp_path):
    legacy = saved(torch, {"a": torch.zeros(1)}, _use_new_zipfile_serialization=False)
    for content, message in (
        (b"", "is not a zip archive as torch.save writes it since 1.6"),
        (b"hello", "is not a zip archive"),
        (pickle.dumps(Malicious(tmp_path / "mark")), "is not a zip archive"),
        (legacy, "is not a zip archive"),
        (zipped({}), "cannot be loaded weights-only"),
        (zipped({"a/data.pkl": b"\x80"}), "cannot be loaded weights-only"),
        (saved(torch, [1]), "does not hold a state dict"),
        (saved(torch, {"a": 1, 2: torch.zeros(1)}), "holds no named tensors"),
        (zipped({"a/data.pkl": b"\0" * 10**6}, zipfile.ZIP_DEFLATED), "is compressed ('a/data.pkl'), which torch"),
    ):
        (directory / "pytorch_model.bin").write_bytes(content)
        with pytest.raises(InputError) as caught:
            open_checkpoint(directory)
        assert message in str(caught.value)
    assert not (tmp_path / "mark").exists()


@pytest.mark.usefixtures("torch")
def test_a_huge_pickle_is_refused_before_torch_sees_it(directory):
    (directory / "pytorch_model.bin").write_bytes(zipped({"a/data.pkl": bytes(33 << 20)}))
    with pytest.raises(InputError, match=r"holds 'a/data\.pkl' of 34603008 bytes, more than 33554432"):
        open_checkpoint(directory)


@pytest.mark.usefixtures("torch")
def test_a_directory_of_entries_that_claims_gigabytes_is_refused(directory):
    path = directory / "pytorch_model.bin"
    claim = 3 << 30
    end = b"PK\5\6" + bytes(4) + b"\1\0\1\0" + claim.to_bytes(4, "little") + bytes(4) + b"\0\0"
    with path.open("wb") as stream:
        stream.truncate(claim)
        stream.seek(claim)
        stream.write(end)
    start = time.perf_counter()
    with pytest.raises(InputError, match="is not a zip archive"):
        open_checkpoint(directory)
    assert time.perf_counter() - start < 2


def test_damaged_archives_give_only_input_errors(directory, torch):
    content = saved(torch, {"a": torch.arange(3), "b": torch.zeros(2, 2)})
    messages = []
    for at in range(0, len(content), 7):
        damaged = bytearray(content)
        damaged[at] ^= 0xFF
        for each in (bytes(damaged), content[:at]):
            (directory / "pytorch_model.bin").write_bytes(each)
            try:
                open_checkpoint(directory)
            except InputError as error:
                messages.append(str(error))
    assert len(messages) > 100
    assert all(message.isprintable() for message in messages)
