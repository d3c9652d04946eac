"""Every format gives the same sample back: the projection's slice, the last plane with its state, ids and mask."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from state_files import WRITERS, modelopt, specforge_gz, speculators_list, write_producer_config  # noqa: E402

from featurecontract.errors import InputError, UsageError  # noqa: E402
from featurecontract.states import FORMATS, open_states  # noqa: E402

TOKENS, HIDDEN = 9, 4


def sequence(seed):
    generator = torch.Generator().manual_seed(seed)
    planes = [torch.randn(TOKENS, HIDDEN, generator=generator) for _ in range(4)]
    ids = torch.randint(0, 50, (TOKENS,), generator=generator)
    mask = torch.rand(TOKENS, generator=generator) > 0.5
    return ids, planes[:3], planes[3], mask


def test_every_format_has_a_writer():
    assert {item.name for item in FORMATS} == set(WRITERS)


@pytest.mark.parametrize("name", WRITERS)
def test_round_trip(tmp_path, name):
    write, state, has_last = WRITERS[name]
    written = {}
    for number in range(12):
        ids, planes, last, mask = made = sequence(number)
        written[write(tmp_path, number, ids, planes, last, mask=mask)] = made
    states = open_states(tmp_path)
    assert states.format.name == name
    assert len(states) == 12
    assert open_states(tmp_path, format=name).files == states.files
    if name != "modelopt":  # its names have no order
        assert states.files == tuple(written)
    for file, sample in zip(states.files, states, strict=True):
        ids, planes, last, mask = written[file]
        assert torch.equal(sample.token_ids, ids)
        wanted = torch.cat(planes, dim=1)
        assert torch.equal(sample.features, wanted.to(sample.features.dtype))
        assert sample.last_state == state
        assert (sample.last is not None) == has_last
        assert all(
            torch.equal(got, want.to(got.dtype)) for got, want in zip(sample.planes(HIDDEN), planes, strict=True)
        )
        if has_last:
            assert torch.equal(sample.last, last)
            assert sample.hidden_size == HIDDEN
        if name not in ("speculators", "torchspec"):
            assert torch.equal(sample.loss_mask, mask)
        else:
            assert sample.loss_mask is None
        assert len(sample) == TOKENS


def test_a_gzip_stream_reads_like_the_file_in_it(tmp_path):
    ids, planes, last, _ = sequence(1)
    path = specforge_gz(tmp_path, 0, ids, planes, last)
    assert path.name == "data_0.ckpt.gz"
    sample = open_states(path).read(0)
    assert torch.equal(sample.features, torch.cat(planes, dim=1))
    assert torch.equal(sample.last, last)


@pytest.mark.parametrize(("flag", "state"), [(None, "final_norm"), (False, "final_norm"), (True, "residual")])
def test_modelopt_says_whether_its_last_plane_is_normed(tmp_path, flag, state):
    ids, planes, last, _ = sequence(1)
    modelopt(tmp_path, 0, ids, planes, last, prenorm=flag)
    assert open_states(tmp_path).read(0).last_state == state


def test_torchspec_says_it_by_a_flag_only(tmp_path):
    ids, planes, last, _ = sequence(1)
    content = {"input_ids": ids, "hidden_states": torch.cat(planes, dim=1), "last_hidden_states": last}
    for number, flag in enumerate((torch.tensor(1), torch.tensor(0))):
        torch.save(content | {"last_hidden_states_prenorm": flag.bool()}, tmp_path / f"{number}.pt")
    assert [sample.last_state for sample in open_states(tmp_path)] == ["residual", "final_norm"]


def test_the_producers_ids(tmp_path):
    ids, planes, last, _ = sequence(1)
    speculators_list(tmp_path, 0, ids, planes, last)
    assert open_states(tmp_path).producer_ids is None
    write_producer_config(tmp_path, [5, 2, 7, 4])
    assert open_states(tmp_path).producer_ids == (2, 4, 5, 7)  # captured as the layers run, whatever the list says
    write_producer_config(tmp_path, ["x"])
    with pytest.raises(InputError, match=r"hidden_states\.layer_ids: is no list of layer ids"):
        open_states(tmp_path)


def test_files_of_other_kinds_are_passed_over_and_named(tmp_path):
    ids, planes, last, _ = sequence(1)
    for number in range(3):
        speculators_list(tmp_path, number, ids, planes, last)
    torch.save({"d2t": torch.arange(3), "t2d": torch.ones(3)}, tmp_path / "vocab_mapping.pt")
    (tmp_path / ".hidden.pt").write_bytes(b"not read")
    states = open_states(tmp_path)
    assert len(states) == 3
    assert len(states.notes) == 1
    assert "vocab_mapping.pt: holds no hidden states ('d2t', 't2d'); passed over" in states.notes[0]


def test_mixed_formats_are_refused_with_the_file(tmp_path):
    ids, planes, last, _ = sequence(1)
    speculators_list(tmp_path, 0, ids, planes, last)
    path = modelopt(tmp_path, 1, ids, planes, last)
    states = open_states(tmp_path)
    with pytest.raises(InputError, match="keep datasets of different trainers in different folders"):
        list(states)
    assert path in states.files


def test_an_expected_format(tmp_path):
    ids, planes, last, _ = sequence(1)
    speculators_list(tmp_path, 0, ids, planes, last)
    with pytest.raises(InputError, match="is speculators-list, not modelopt"):
        open_states(tmp_path, format="modelopt")
    with pytest.raises(UsageError, match="no format is called 'x'; there are speculators"):
        open_states(tmp_path, format="x")


def test_planes_need_a_width_that_fits(tmp_path):
    write, _, _ = WRITERS["specforge-dflash"]
    ids, planes, last, _ = sequence(1)
    write(tmp_path, 0, ids, planes, last)
    sample = open_states(tmp_path).read(0)
    assert sample.hidden_size is None
    with pytest.raises(InputError, match="12 columns are no whole number of planes"):
        sample.planes()
    with pytest.raises(InputError, match="12 columns are no whole number of planes of 5"):
        sample.planes(5)
    assert len(sample.planes(6)) == 2


def test_lists_may_hold_planes_of_several_widths(tmp_path):
    ids, planes, last, _ = sequence(1)
    speculators_list(tmp_path, 0, ids, [planes[0], torch.cat(planes[1:], dim=1)], last)
    sample = open_states(tmp_path).read(0)
    assert sample.dims == (4, 8)
    assert torch.equal(sample.planes()[1], torch.cat(planes[1:], dim=1))
