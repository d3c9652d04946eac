from __future__ import annotations

import os
import time

import pytest
from checkpoint_files import int64, tensors_bytes, write_checkpoint

from featurecontract.checkpoint import open_checkpoint, read_target
from featurecontract.checkpoint._paths import plain_name_fault, quoted, shown_path
from featurecontract.errors import InputError

TENSORS = tensors_bytes({"d2t": int64([0, 0, 3])})


@pytest.fixture
def cache(tmp_path):
    """Return a snapshot directory of a Hugging Face cache, with its blobs."""
    snapshot = tmp_path / "models--org--drafter" / "snapshots" / "0123abc"
    blobs = snapshot.parent.parent / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    for name, blob, content in (("config.json", "aa11", b'{"a": 1}'), ("model.safetensors", "bb22", TENSORS)):
        (blobs / blob).write_bytes(content)
        (snapshot / name).symlink_to(f"../../blobs/{blob}")
    return snapshot


def test_a_hugging_face_cache_is_read(cache):
    checkpoint = open_checkpoint(cache)
    assert checkpoint.config == {"a": 1}
    assert checkpoint.read_values("d2t") == [0, 0, 3]


def test_a_cache_is_read_through_a_link_that_the_user_chose(cache, tmp_path):
    (tmp_path / "mine").symlink_to(cache)
    assert open_checkpoint(tmp_path / "mine").read_values("d2t") == [0, 0, 3]
    assert open_checkpoint(cache / "config.json").config == {"a": 1}
    assert open_checkpoint(cache / "model.safetensors").tensors.keys() == {"d2t"}


def test_a_folder_of_a_snapshot_is_read(cache):
    sub = cache / "drafter"
    sub.mkdir()
    (sub / "config.json").symlink_to("../../../blobs/aa11")
    assert open_checkpoint(sub).config == {"a": 1}


def test_links_inside_the_directory_are_read(tmp_path):
    directory = write_checkpoint(tmp_path / "a")
    (directory / "weights").mkdir()
    (directory / "weights" / "w").write_bytes(TENSORS)
    (directory / "model.safetensors").symlink_to("weights/w")
    assert open_checkpoint(directory).read_values("d2t") == [0, 0, 3]


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
@pytest.mark.parametrize("absolute", [True, False])
def test_a_link_that_leaves_the_directory_needs_the_option(tmp_path, name, absolute):
    directory = write_checkpoint(tmp_path / "a")
    other = write_checkpoint(tmp_path / "other", {"d2t": int64([0, 0, 3])}, {"a": 2})
    (directory / name).unlink(missing_ok=True)
    (directory / name).symlink_to(other / name if absolute else f"../other/{name}")
    with pytest.raises(InputError) as caught:
        open_checkpoint(directory)
    assert str(caught.value) == (
        f"{directory / name}: is a link that leaves the checkpoint (to {other / name}); "
        "pass --follow-links if you trust it, or copy the file into the directory"
    )
    assert open_checkpoint(directory, follow_links=True).directory == directory


def test_a_link_out_of_the_cache_is_refused(cache, tmp_path):
    secret = tmp_path / "secret.json"
    secret.write_text("{}")
    (cache / "config.json").unlink()
    (cache / "config.json").symlink_to(secret)
    with pytest.raises(InputError, match="is a link that leaves the checkpoint"):
        open_checkpoint(cache)


def test_a_blob_that_is_itself_a_link_is_refused(cache, tmp_path):
    secret = tmp_path / "secret.json"
    secret.write_text("{}")
    blob = cache.parent.parent / "blobs" / "aa11"
    blob.unlink()
    blob.symlink_to(secret)
    with pytest.raises(InputError, match="is a link that leaves the checkpoint"):
        open_checkpoint(cache)


def test_a_blobs_folder_that_is_itself_a_link_is_refused(cache, tmp_path):
    blobs = cache.parent.parent / "blobs"
    blobs.rename(tmp_path / "elsewhere")
    blobs.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InputError, match="is a link that leaves the checkpoint"):
        open_checkpoint(cache)


def test_a_blobs_folder_without_a_snapshot_is_refused(tmp_path):
    directory = write_checkpoint(tmp_path / "x" / "not-snapshots" / "rev")
    (tmp_path / "x" / "blobs").mkdir()
    (tmp_path / "x" / "blobs" / "aa").write_text("{}")
    (directory / "config.json").unlink()
    (directory / "config.json").symlink_to("../../blobs/aa")
    with pytest.raises(InputError, match="is a link that leaves the checkpoint"):
        open_checkpoint(directory)


def test_a_sibling_with_the_same_beginning_is_outside(tmp_path):
    directory = write_checkpoint(tmp_path / "a")
    write_checkpoint(tmp_path / "a-secret")
    (directory / "config.json").unlink()
    (directory / "config.json").symlink_to("../a-secret/config.json")
    with pytest.raises(InputError, match="leaves the checkpoint"):
        open_checkpoint(directory)


@pytest.mark.parametrize(
    ("target", "message"),
    [("absent", r"cannot be found \(No such file or directory\)"), ("config.json", r"cannot be found \(.*\)")],
    ids=["broken", "circle"],
)
def test_a_link_to_nothing_is_refused(tmp_path, target, message):
    (tmp_path / "config.json").symlink_to(target)
    with pytest.raises(InputError, match=message):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
@pytest.mark.parametrize("kind", ["fifo", "directory", "link to a fifo", "link to a device"])
@pytest.mark.parametrize("follow_links", [False, True])
def test_what_is_no_regular_file_is_refused_without_blocking(tmp_path, name, kind, follow_links):
    write_checkpoint(tmp_path)
    entry = tmp_path / name
    entry.unlink(missing_ok=True)
    if kind == "directory":
        entry.mkdir()
    elif kind == "link to a device":
        entry.symlink_to("/dev/zero")
    else:
        fifo = entry if kind == "fifo" else tmp_path / "fifo"
        os.mkfifo(fifo)
        if fifo != entry:
            entry.symlink_to("fifo")
    start = time.perf_counter()
    with pytest.raises(InputError, match=r"regular file|leaves the checkpoint"):
        open_checkpoint(tmp_path, follow_links=follow_links)
    assert time.perf_counter() - start < 1


def test_the_target_is_read_by_the_same_rule(tmp_path):
    directory = write_checkpoint(tmp_path / "a")
    other = write_checkpoint(tmp_path / "other", config={"num_hidden_layers": 2, "hidden_size": 8})
    (directory / "config.json").unlink()
    (directory / "config.json").symlink_to(other / "config.json")
    for text in (str(directory), str(directory / "config.json")):
        with pytest.raises(InputError, match="--follow-links"):
            read_target(text)
        assert read_target(text, follow_links=True).hidden_size == 8


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("model-00001-of-00002.safetensors", ""),
        ("модель.safetensors", ""),
        (".hidden", ""),
        ("", "is not a file name"),
        (".", "is not a file name"),
        ("..", "is not a file name"),
        ("../x", "holds a slash"),
        ("/etc/passwd", "holds a slash"),
        ("a/b", "holds a slash"),
        ("..\\x", "holds a backslash"),
        ("C:x", "holds a colon"),
        ("x.safetensors:stream", "holds a colon"),
        ("a\0b", "holds a NUL"),
        ("a\nb", "holds a character that cannot be printed"),
        ("\x1b[2J", "holds a character that cannot be printed"),
        ("a\u202eb", "holds a character that cannot be printed"),
        ("é" * 128, "is longer than 255 bytes"),
        ("NUL", "is not a file name on every system"),
        ("com1.safetensors", "is not a file name on every system"),
        (" x", "is not a file name on every system"),
        ("x.", "is not a file name on every system"),
    ],
)
def test_plain_names(name, fault):
    assert plain_name_fault(name) == fault


def test_values_and_paths_are_shown_on_one_short_line(tmp_path):
    assert quoted("a\nb\x1b") == "'a\\nb\\x1b'"
    assert len(quoted("x" * 10**6)) == 80
    assert quoted([1, 2]) == "[1, 2]"
    assert shown_path(tmp_path / "a\nb").endswith("/a\\nb'")
