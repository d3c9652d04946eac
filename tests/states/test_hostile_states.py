"""Hostile and broken files: one line that names the file, no code run, no memory filled."""

from __future__ import annotations

import gzip
import io
import os
import pickle
import zipfile

import pytest

torch = pytest.importorskip("torch")

from state_files import specforge, specforge_gz, speculators, speculators_list  # noqa: E402

from featurecontract.errors import InputError  # noqa: E402
from featurecontract.states import open_states  # noqa: E402

IDS = torch.arange(6)
PLANES = [torch.randn(6, 4) for _ in range(3)]
LAST = torch.randn(6, 4)


class Evil:
    """Unpickling it would leave a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (self.path, "w"))


def read(path):
    for sample in open_states(path):
        sample.features.sum()


def refused(path, match):
    with pytest.raises(InputError, match=match) as caught:
        read(path)
    text = str(caught.value)
    assert "\n" not in text
    assert path.name in text
    return caught.value


@pytest.mark.parametrize("gz", [False, True])
def test_a_pickle_that_runs_code_is_refused_before_it_runs(tmp_path, gz):
    mark = tmp_path / "ran"
    stream = io.BytesIO()
    torch.save({"input_ids": IDS, "hidden_states": Evil(str(mark))}, stream)
    path = tmp_path / ("data_0.ckpt.gz" if gz else "data_0.ckpt")
    path.write_bytes(gzip.compress(stream.getvalue()) if gz else stream.getvalue())
    refused(path, "cannot be loaded weights-only")
    bare = tmp_path / "data_1.pt"
    bare.write_bytes(pickle.dumps({"hidden_states": Evil(str(mark))}))
    refused(bare, "is not a zip archive")
    assert not mark.exists()


@pytest.mark.parametrize("write", [speculators, speculators_list, specforge, specforge_gz])
@pytest.mark.parametrize("part", [0, 1, 7, 60, 0.5, 0.99])
def test_a_file_that_was_cut_off(tmp_path, write, part):
    path = write(tmp_path, 0, IDS, PLANES, LAST)
    data = path.read_bytes()
    path.write_bytes(data[: part if part > 1 else int(len(data) * part) if part != 1 else 1])
    refused(path, ".")


def test_flipped_bytes_never_end_in_a_traceback(tmp_path):
    for write in (speculators, speculators_list, specforge_gz):
        path = write(tmp_path, 0, IDS, PLANES, LAST)
        data = bytearray(path.read_bytes())
        generator = torch.Generator().manual_seed(5)
        for _ in range(60):
            broken = bytearray(data)
            for at in torch.randint(0, len(data), (3,), generator=generator).tolist():
                broken[at] ^= 0xFF
            path.write_bytes(broken)
            try:
                for sample in open_states(path):
                    assert len(sample) > 0
            except InputError as error:
                assert "\n" not in str(error)  # noqa: PT017 - either outcome is right
        path.unlink()


def test_a_compressed_archive_is_refused(tmp_path):
    path = speculators_list(tmp_path, 0, IDS, PLANES, LAST)
    squeezed = tmp_path / "data_1.pt"
    with zipfile.ZipFile(path) as source, zipfile.ZipFile(squeezed, "w", zipfile.ZIP_DEFLATED) as out:
        for entry in source.namelist():
            out.writestr(entry, source.read(entry))
    refused(squeezed, "is compressed")


def test_a_gzip_bomb_is_refused(tmp_path, monkeypatch):
    from featurecontract.states import _container

    monkeypatch.setattr(_container, "_FREE_BYTES", 1000)
    path = tmp_path / "data_0.ckpt.gz"
    path.write_bytes(gzip.compress(bytes(50 * 2**20)))
    refused(path, "inflates to more than")


def test_an_expanded_tensor_is_refused(tmp_path):
    path = tmp_path / "data_0.pt"
    torch.save({"input_ids": IDS, "loss_mask": IDS, "hidden_states": [torch.zeros(1, 1).expand(6, 10**9)] * 2}, path)
    refused(path, r"hidden_states\[0\].* claims more elements than the file holds")


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"input_ids": IDS.float()}, "input_ids: is .*no tensor of whole numbers"),
        ({"input_ids": torch.zeros(2, 3, dtype=torch.int64)}, r"input_ids: has shape \[2, 3\]"),
        ({"input_ids": IDS[:4]}, "there are 4 token ids, the projection's input has 6 rows"),
        ({"loss_mask": IDS[:5]}, "there are 6 token ids, loss_mask has 5 rows"),
        ({"hidden_states": [PLANES[0]]}, "holds 1 planes"),
        ({"hidden_states": [PLANES[0], PLANES[1][:3]]}, r"hidden_states\[1\]: has 3 rows, the first plane 6"),
        ({"hidden_states": [PLANES[0], PLANES[1].long()]}, r"hidden_states\[1\]: is .*no floating-point tensor"),
        ({"hidden_states": [PLANES[0], "x"]}, r"hidden_states\[1\]: is 'str', no floating-point tensor"),
        ({"hidden_states": [PLANES[0], torch.zeros(2, 6, 4)]}, r"hidden_states\[1\]: has shape \[2, 6, 4\]"),
        ({"hidden_states": {}}, r"hidden_states.*"),
    ],
)
def test_wrong_forms(tmp_path, change, match):
    path = tmp_path / "data_0.pt"
    torch.save({"input_ids": IDS, "loss_mask": torch.ones(6), "hidden_states": [*PLANES, LAST]} | change, path)
    if "loss_mask" not in change:
        content = torch.load(path) | {"loss_mask": torch.ones(6, dtype=torch.int64)}
        torch.save(content, path)
    refused(path, match)


def test_a_batch_is_refused(tmp_path):
    path = tmp_path / "data_0.ckpt"
    torch.save(
        {"input_ids": IDS.repeat(2, 1), "hidden_states": torch.randn(2, 6, 8), "target_hiddens": torch.randn(2, 6, 4)},
        path,
    )
    refused(path, r"hidden_states: has shape \[2, 6, 8\], not \[tokens, columns\] of one sequence")


@pytest.mark.parametrize("content", [[1, 2], torch.zeros(3), {1: torch.zeros(3)}])
def test_no_dictionary(tmp_path, content):
    path = tmp_path / "data_0.pt"
    torch.save(content, path)
    refused(path, "holds no dictionary of named tensors")


def test_unknown_keys_are_shown(tmp_path):
    path = tmp_path / "data_0.pt"
    torch.save({"hidden\nstates": torch.zeros(3, 3)}, path)
    refused(path, r"holds 'hidden\\nstates', which is no format")


def test_nothing_there(tmp_path):
    refused(tmp_path / "none", "cannot be opened")
    (tmp_path / "empty").mkdir()
    refused(tmp_path / "empty", "holds no file that ends in")
    torch.save({"weight": torch.zeros(3)}, tmp_path / "model.pt")
    with pytest.raises(InputError, match="holds 'weight', which is no format"):
        open_states(tmp_path / "model.pt")


def test_special_files_and_links_that_leave_are_not_opened(tmp_path):
    os.mkfifo(tmp_path / "data_0.pt")
    refused(tmp_path / "data_0.pt", "not a regular file|regular")
    folder = tmp_path / "set"
    folder.mkdir()
    outside = speculators_list(tmp_path, 1, IDS, PLANES, LAST)
    (folder / "data_1.pt").symlink_to(outside)
    refused(folder, "is a link that leaves")
    assert len(open_states(folder, follow_links=True).read(0)) == 6
