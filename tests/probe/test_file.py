"""The probe's file: round trip, size, crashes, and files that somebody else made."""

from __future__ import annotations

import hashlib
import json
import os
import struct
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save
from tiny_target import HIDDEN, IDS, LAYERS, PATHS, target

from featurecontract import Wiring, record
from featurecontract.contract import PROBE_FILE, Contract, Drafter, Target, load
from featurecontract.errors import InputError
from featurecontract.probe import Bank, FinalNorm, ProbeData, all_planes, read_probe, write_probe


def simulated(depth, hidden, boundaries, *, rows=64):
    """Return a contract and a probe of a target that is too large to run: its tensors are random."""
    generator = torch.Generator().manual_seed(0)
    contract = Contract(
        name="simulated",
        method="eagle3",
        target=Target(num_hidden_layers=depth, hidden_size=hidden),
        drafter=Drafter(hidden_size=hidden),
        features=Wiring.from_boundaries(boundaries, dim=hidden).features,
    )
    planes = all_planes(depth)
    channels = min(128, hidden)
    data = ProbeData(
        token_ids=torch.arange(rows),
        golden=torch.randn(rows, len(boundaries) * hidden, generator=generator).half().float(),
        bank=Bank(
            planes=planes,
            values=torch.randn(len(planes), rows, channels, generator=generator).half().float(),
            channels=torch.arange(channels) * (hidden // channels),
        ),
        final_norm=FinalNorm(torch.ones(hidden), 1e-6),
        gram=torch.randn(len(boundaries), rows, rows, generator=generator),
        floor=0.97,
        notes=("one note",),
    )
    return contract, data


def test_what_is_written_is_read_back(tmp_path):
    contract, data = simulated(6, 32, (0, 2, 6))
    bound = write_probe(data, contract, tmp_path, dtype="bfloat16", reason="a test")
    assert load(tmp_path) == bound
    assert (bound.probe.file, bound.probe.rows, bound.probe.dtype) == (PROBE_FILE, 64, "bfloat16")
    again = read_probe(bound, tmp_path)
    assert torch.equal(again.token_ids, data.token_ids)
    assert torch.equal(again.golden, data.golden)
    assert again.bank.planes == data.bank.planes
    assert torch.equal(again.bank.values, data.bank.values)
    assert torch.equal(again.bank.channels, data.bank.channels)
    assert torch.equal(again.final_norm.weight, data.final_norm.weight)
    assert torch.equal(again.gram, data.gram)
    assert (again.final_norm.eps, again.floor, again.notes, again.unrecorded) == (1e-6, 0.97, ("one note",), ())
    assert write_probe(data, contract, tmp_path, dtype="bfloat16", reason="a test") == bound


def test_the_kimi_case_takes_at_most_8_mib(tmp_path):
    contract, data = simulated(61, 7168, (0, 3, 31))
    bound = write_probe(data, contract, tmp_path)
    size = (tmp_path / PROBE_FILE).stat().st_size
    assert size <= 8 * 2**20
    assert size > 5 * 2**20  # all of it is there
    assert len(read_probe(bound, tmp_path).bank.planes) == 62 + 61 + 61


def test_large_values_are_kept_in_bfloat16_and_massive_channels_in_float16(tmp_path):
    contract, data = simulated(6, 32, (0,))
    data.golden[:, 3] *= 1e6
    data.bank.values[:, :, 5] = 3000 + torch.arange(64.0) % 10  # in bfloat16, steps of 16
    read = read_probe(write_probe(data, contract, tmp_path), tmp_path)
    assert load_file(tmp_path / PROBE_FILE)["golden"].dtype == torch.bfloat16
    assert float(read.golden[:, 3].abs().max()) > 1e6
    assert load_file(tmp_path / PROBE_FILE)["bank.values"].dtype == torch.float16
    assert float(read.bank.values[0, :, 5].std()) > 2


def test_a_degenerate_probe_is_not_written(tmp_path):
    contract, data = simulated(6, 32, (0, 2))
    data.bank.values[3] = data.bank.values[2]
    with pytest.raises(InputError, match=r"h\[3\]: is bit for bit h\[2\]") as caught:
        write_probe(data, contract, tmp_path)
    assert caught.value.slug == "probe-degenerate"
    with pytest.raises(InputError, match="1 different tokens"):
        write_probe(replace(data, token_ids=torch.zeros(64, dtype=torch.int64)), contract, tmp_path)
    contract, data = simulated(6, 32, (0, 2))
    with pytest.raises(InputError, match="32 golden columns, the contract means 64"):
        write_probe(replace(data, golden=data.golden[:, :32]), contract, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_crash_between_the_two_files_leaves_the_old_contract(recorded, monkeypatch):
    place, contract = recorded
    before = (place / "feature_contract.json").read_bytes()

    def killed(*_args):
        raise KeyboardInterrupt

    monkeypatch.setattr("featurecontract.probe._file.save", killed)
    with pytest.raises(KeyboardInterrupt):
        record(target(), out=place, token_ids=IDS[::-1], **PATHS)
    assert (place / "feature_contract.json").read_bytes() == before
    assert sorted(path.name for path in place.iterdir()) == ["feature_contract.json", PROBE_FILE]
    with pytest.raises(InputError, match="its sha256 differs") as caught:
        read_probe(load(place), place)
    assert caught.value.slug == "probe-missing"
    assert load(place) == contract


def test_a_crash_while_the_probe_is_written_leaves_both(recorded, monkeypatch):
    place, contract = recorded

    def full(*_args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(InputError, match="cannot be written: No space left on device"):
        record(target(), out=place, token_ids=IDS[::-1], **PATHS)
    assert read_probe(load(place), place).token_ids.tolist() == list(IDS)
    assert load(place) == contract


# --- files that somebody else made --------------------------------------------------------------------------------


def refused(contract, place):
    with pytest.raises(InputError) as caught:
        read_probe(contract, place)
    assert caught.value.slug == "probe-missing"
    text = str(caught.value)
    assert "\n" not in text
    assert len(text) < 1000
    return text


def bound_to(contract, place, content):
    """Write bytes as the probe and bind the contract to them: the digest alone proves nothing about who wrote it."""
    (place / PROBE_FILE).write_bytes(content)
    return replace(contract, probe=replace(contract.probe, sha256=hashlib.sha256(content).hexdigest()))


def test_no_probe(recorded):
    place, contract = recorded
    assert "the contract has no probe" in refused(replace(contract, probe=None), place)
    (place / PROBE_FILE).unlink()
    assert PROBE_FILE in refused(contract, place)


def test_another_file(recorded):
    place, contract = recorded
    with (place / PROBE_FILE).open("r+b") as stream:
        stream.seek(-1, os.SEEK_END)
        stream.write(b"\x55")
    assert "its sha256 differs" in refused(contract, place)


@pytest.mark.parametrize("name", ["../x.safetensors", "a/b", "..", "", "C:x", "a\\b"])
def test_names_that_leave_the_directory(recorded, name):
    place, contract = recorded
    assert "plain file name" in refused(replace(contract, probe=replace(contract.probe, file=name)), place)


def test_links_and_devices(recorded, tmp_path):
    place, contract = recorded
    elsewhere = tmp_path / "elsewhere.safetensors"
    (place / PROBE_FILE).rename(elsewhere)
    (place / PROBE_FILE).symlink_to(elsewhere)
    assert "--follow-links" in refused(contract, place)
    assert read_probe(contract, place, follow_links=True).token_ids.tolist() == list(IDS)
    (place / PROBE_FILE).unlink()
    os.mkfifo(place / PROBE_FILE)
    assert "FIFO" in refused(contract, place)


def test_a_huge_file_is_not_read(recorded):
    place, contract = recorded
    with (place / PROBE_FILE).open("r+b") as stream:
        stream.truncate(2**40)
    assert "more than the limit" in refused(contract, place)


def header(**tensors):
    text = json.dumps(tensors).encode()
    return struct.pack("<Q", len(text)) + text


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x00" * 7,
        b"\xff" * 64,
        struct.pack("<Q", 2**62) + b"{}",
        struct.pack("<Q", 2) + b"[]",
        header(format={"dtype": "I64", "shape": [2**40, 2**40], "data_offsets": [0, 8]}) + b"\0" * 8,
        header(format={"dtype": "F4", "shape": [2], "data_offsets": [0, 1]}) + b"\0",
        header(format={"dtype": "NEW", "shape": [1], "data_offsets": [0, 8]}) + b"\0" * 8,
        b"PK\x03\x04" + b"\0" * 100,
        b"\x80\x04\x95" + b"." * 100,
    ],
)
def test_what_is_no_safetensors_file(recorded, content):
    place, contract = recorded
    refused(bound_to(contract, place, content), place)


def _set(name, value):
    def change(tensors):
        tensors[name] = value(tensors[name]) if callable(value) else value

    return change


def _filled(tensor, value):
    tensor = tensor.clone()
    tensor.view(-1)[0] = value
    return tensor


WRONG = {
    "format": (_set("format", torch.tensor([2])), "is of format 2"),
    "format-list": (_set("format", torch.tensor([1, 1])), "format: has shape [2]"),
    "golden-dtype": (_set("golden", lambda t: t.float()), "golden: is torch.float32"),
    "golden-shape": (_set("golden", lambda t: t[:, :-1].contiguous()), "golden: has shape [64, 71]"),
    "golden-nan": (_set("golden", lambda t: _filled(t, float("nan"))), "golden: has NaN"),
    "bank-inf": (_set("bank.values", lambda t: _filled(t, float("inf"))), "bank.values: has NaN or infinite"),
    "bank-empty": (_set("bank.values", torch.zeros(0, 64, 24).half()), "bank.values: has shape [0, 64, 24]"),
    "bank-rows": (_set("bank.values", lambda t: t[:, :-1].contiguous()), "bank.values: has shape [16, 63, 24]"),
    "kind": (_set("bank.kinds", lambda t: _filled(t, 3)), "no such plane: kind 3"),
    "boundary": (_set("bank.boundaries", lambda t: _filled(t, LAYERS + 1)), "no such plane: kind 0, boundary 6"),
    "negative": (_set("bank.boundaries", lambda t: _filled(t, -1)), "no such plane: kind 0, boundary -1"),
    "twice": (_set("bank.boundaries", lambda t: _filled(t, 1)), "does not hold every boundary 0..5 once"),
    "channels-order": (_set("bank.channels", lambda t: t.flip(0)), "are not ascending channels of 0..71"),
    "channels-range": (_set("bank.channels", lambda t: t + HIDDEN * 3), "are not ascending channels"),
    "channels-dtype": (_set("bank.channels", lambda t: t.int()), "bank.channels: is torch.int32"),
    "tokens": (_set("token_ids", lambda t: t + 1), "the tokens are not the contract's"),
    "widths": (_set("slot_widths", lambda t: t + 1), "other widths than the contract's"),
    "floor": (_set("noise_floor", lambda t: t * 0 + 7), "noise_floor: is 7.0, not a similarity"),
    "floor-nan": (_set("noise_floor", lambda t: t * float("nan")), "noise_floor: has NaN"),
    "gram": (_set("gram", lambda t: t[:1].contiguous()), "gram: has shape [1, 64, 64]"),
    "norm": (_set("final_norm.weight", lambda t: t[:-1].contiguous()), "final_norm.weight: has shape [23]"),
    "eps": (_set("final_norm.eps", lambda t: t * 0 - 1), "final_norm.eps: is -1.0"),
    "notes": (_set("notes", torch.tensor([255, 254], dtype=torch.uint8)), "is not a JSON list of strings"),
    "notes-long": (_set("notes", torch.zeros(2**20, dtype=torch.uint8)), "notes: has 1048576 bytes"),
    "no-golden": (lambda tensors: tensors.pop("golden"), "golden: is missing"),
    "no-channels": (lambda tensors: tensors.pop("bank.channels"), "bank.channels: is missing"),
    "nothing": (lambda tensors: tensors.clear(), "format: is missing"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_file_with_something_wrong(recorded, name):
    place, contract = recorded
    change, said = WRONG[name]
    tensors = load_file(place / PROBE_FILE)
    change(tensors)
    text = refused(bound_to(contract, place, save(tensors)), place)
    assert said.replace("0..71", "0..23") in text


def test_tensors_of_a_later_release_are_passed_over(recorded):
    place, contract = recorded
    tensors = load_file(place / PROBE_FILE) | {"later": torch.zeros(3)}
    assert read_probe(bound_to(contract, place, save(tensors)), place).notes


def test_a_probe_without_norm_gram_and_notes(recorded):
    place, contract = recorded
    tensors = load_file(place / PROBE_FILE)
    kept = {name: value for name, value in tensors.items() if name.split(".")[0] not in ("final_norm", "gram", "notes")}
    data = read_probe(bound_to(contract, place, save(kept)), place)
    assert (data.final_norm, data.gram, data.notes) == (None, None, ())
