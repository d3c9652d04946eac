from __future__ import annotations

import json
import os
import time

import pytest
from checkpoint_files import entry, int64, safetensors_bytes, tensors_bytes, write_checkpoint

from featurecontract.checkpoint import open_checkpoint
from featurecontract.errors import InputError

INDEX = "model.safetensors.index.json"


def write_shards(directory, shards: dict[str, list[str]], weight_map: object = None, *, index: str = INDEX):
    """Write one I64 value per tensor name, and an index (by default the true one)."""
    write_checkpoint(directory)
    for file, names in shards.items():
        (directory / file).write_bytes(tensors_bytes({name: int64([len(name)]) for name in names}))
    true_map = {name: file for file, names in shards.items() for name in names}
    document = {"metadata": {"total_size": 8}, "weight_map": true_map if weight_map is None else weight_map}
    (directory / index).write_text(json.dumps(document))
    return directory


TWO = {"s1.safetensors": ["a", "bb"], "s2.safetensors": ["ccc"]}


@pytest.mark.parametrize("index", [INDEX, "drafter.safetensors.index.json"])
def test_shards_are_read_as_one_checkpoint(tmp_path, index):
    checkpoint = open_checkpoint(write_shards(tmp_path, TWO, index=index))
    assert checkpoint.format == "safetensors-sharded"
    assert {name: facts.file for name, facts in checkpoint.tensors.items()} == {
        "a": "s1.safetensors",
        "bb": "s1.safetensors",
        "ccc": "s2.safetensors",
    }
    assert checkpoint.read_values("ccc") == [3]
    assert checkpoint.notes == ()


def test_tensors_that_the_index_does_not_name_are_reported(tmp_path):
    weight_map = {"a": "s1.safetensors", "ccc": "s2.safetensors"}
    checkpoint = open_checkpoint(write_shards(tmp_path, TWO, weight_map))
    assert checkpoint.notes == (f"1 tensors are in the shards but not in {INDEX}: 'bb'",)
    assert checkpoint.read_values("bb") == [2]


@pytest.mark.parametrize(
    ("weight_map", "message"),
    [
        ([], "weight_map: is missing or not an object; write an object that maps tensor names to file names"),
        ({"a": 1}, "weight_map: must map to file names: 'a'; write the file's name"),
        ({"a": None, "b": ["s1.safetensors"]}, "weight_map: must map to file names: 'a', 'b'"),
        ({"a": "s3.safetensors"}, "weight_map: the file 's3.safetensors' does not exist; fetch the missing file"),
        ({"a": "../s1.safetensors"}, "weight_map: the file '../s1.safetensors' holds a slash; name a file in this"),
        ({"a": "/etc/passwd"}, "weight_map: the file '/etc/passwd' holds a slash"),
        ({"a": ".."}, "weight_map: the file '..' is not a file name"),
        ({"a": ""}, "weight_map: the file '' is not a file name"),
        ({"a": "s1\0"}, "weight_map: the file 's1\\x00' holds a NUL"),
        ({"a": "C:s1"}, "weight_map: the file 'C:s1' holds a colon"),
        ({"ccc": "s1.safetensors"}, "tensors are not in the shard that weight_map names: 'ccc'; write the index again"),
        (
            {"a": "s2.safetensors", "bb": "s1.safetensors", "ccc": "s2.safetensors"},
            "tensors are not in the shard that weight_map names: 'a'; write the index again from the shards",
        ),
        ({"zz": "s1.safetensors", "a": "s1.safetensors"}, "tensors are not in the shard that weight_map names: 'zz'"),
        (
            {f"t{n}": f"f{n}" for n in range(5000)},
            "names 5000 files, more than 4096; save the checkpoint in fewer files",
        ),
        ({f"t{n}": f"f{n}" for n in range(300)}, "weight_map: the file 'f0' does not exist"),
    ],
)
def test_a_wrong_map_is_refused(tmp_path, weight_map, message):
    with pytest.raises(InputError) as caught:
        open_checkpoint(write_shards(tmp_path, TWO, weight_map))
    assert str(caught.value).startswith(f"{tmp_path / INDEX}: {message}")
    assert len(str(caught.value)) < 1500


def test_a_name_in_two_shards_is_refused(tmp_path):
    write_shards(tmp_path, {"s1.safetensors": ["a", "b"], "s2.safetensors": ["b"]})
    with pytest.raises(InputError, match="tensors stand in more than one shard: 'b'; keep one of them"):
        open_checkpoint(tmp_path)


def test_a_name_twice_in_the_map_is_refused(tmp_path):
    write_shards(tmp_path, TWO)
    (tmp_path / INDEX).write_text('{"weight_map": {"a": "s1.safetensors", "a": "s2.safetensors"}}')
    with pytest.raises(InputError, match="the key 'a' stands twice"):
        open_checkpoint(tmp_path)


def test_a_shard_that_is_a_link_out_of_the_directory_is_refused(tmp_path):
    directory = write_shards(tmp_path / "a", TWO)
    (directory / "s2.safetensors").rename(tmp_path / "outside")
    (directory / "s2.safetensors").symlink_to("../outside")
    with pytest.raises(InputError, match=r"s2\.safetensors: is a link that leaves the checkpoint"):
        open_checkpoint(directory)
    assert open_checkpoint(directory, follow_links=True).read_values("ccc") == [3]


def test_a_malformed_shard_is_named(tmp_path):
    write_shards(tmp_path, TWO)
    (tmp_path / "s2.safetensors").write_bytes(b"x")
    with pytest.raises(InputError, match=r"s2\.safetensors: has 1 bytes, too few"):
        open_checkpoint(tmp_path)


def test_an_index_beside_a_whole_file_is_ambiguous(tmp_path):
    write_shards(tmp_path, TWO)
    (tmp_path / "model.safetensors").write_bytes(tensors_bytes({"a": int64([1])}))
    with pytest.raises(InputError, match=r"holds both model\.safetensors and .*, and runtimes differ"):
        open_checkpoint(tmp_path)


def test_sixty_four_sparse_shards_are_cheap(tmp_path):
    write_checkpoint(tmp_path)
    weight_map, each = {}, 4 << 30
    for shard in range(64):
        file = f"model-{shard + 1:05d}-of-00064.safetensors"
        names = [f"model.layers.{shard}.experts.{expert}.weight" for expert in range(512)]
        part = each // 512
        header = {name: entry("F8_E4M3", [part], at * part, (at + 1) * part) for at, name in enumerate(names)}
        content = safetensors_bytes(header)
        (tmp_path / file).write_bytes(content)
        os.truncate(tmp_path / file, len(content) + each)
        weight_map.update(dict.fromkeys(names, file))
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": weight_map}))
    start = time.perf_counter()
    checkpoint = open_checkpoint(tmp_path)
    assert time.perf_counter() - start < 5
    assert len(checkpoint.tensors) == 64 * 512
    assert sum(facts.end - facts.begin for facts in checkpoint.tensors.values()) == 64 * each
