"""Captures as a bad night leaves them: a finding or could-not-check, bounded memory, never a traceback."""

from __future__ import annotations

import json
import resource
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from safetensors.torch import save_file  # noqa: E402
from tiny_runs import WIDTH, probe_of, run, tokens, weights  # noqa: E402

from featurecontract.capture import Call, Capture, save  # noqa: E402
from featurecontract.cli import main  # noqa: E402
from featurecontract.contract import Wiring, digest  # noqa: E402
from featurecontract.gate import verify_captures  # noqa: E402
from featurecontract.identify.mutators import capture_of, with_dtype  # noqa: E402
from featurecontract.probe import write_probe  # noqa: E402

WIRING = (2, 5, 7)
MILLION = 1_000_000
torch.set_num_threads(1)


@pytest.fixture(scope="module")
def made():
    """Return (probe, contract, slots of a healthy run, token ids)."""
    model, ids = weights(), tokens()
    planes = run(model, ids)
    probe, contract = probe_of(planes, WIRING, ids, model.norm)
    return probe, contract, [planes.boundary[b] for b in WIRING], tuple(ids.tolist())


@pytest.fixture
def checkpoint(made, tmp_path):
    """Return a directory with the contract, its probe and one saved capture, and that capture's JSON file."""
    probe, contract, slots, ids = made
    folder = tmp_path / "ckpt"
    folder.mkdir()
    written = write_probe(probe, contract, folder)
    capture = replace(capture_of(slots, token_ids=ids), contract_sha256=digest(written))
    return folder, save(capture, tmp_path / "captured")


def verified(made, *calls):
    probe, contract, _, _ = made
    return verify_captures(contract, probe, [Capture(calls=calls)], path="x")


def named(report):
    return {item.slug for item in report.findings if item.severity != "note"}


def command(folder, capture, capsys):
    """Run ``verify`` as a user does; returns its exit status and all that it says. A traceback would come through."""
    with pytest.raises(SystemExit) as stop:
        main(["verify", str(folder), str(capture)])
    said = capsys.readouterr()
    return stop.value.code, said.out + said.err


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("rows", [slice(30, 31), slice(0, 64)], ids=["one row", "every row"])
def test_rows_that_are_not_finite(made, value, rows):
    _, _, slots, ids = made
    spoiled = slots[1].clone()
    spoiled[rows, 3] = value
    report = verified(made, *capture_of([slots[0], spoiled, slots[2]], token_ids=ids).calls)
    assert named(report) == {"non-finite"}
    assert report.findings[0].slots == (1,)
    assert [item.feature.boundary for item in report.observed[0].slots][::2] == [2, 7]


def test_a_cast_that_overflows(made):
    _, _, slots, ids = made
    capture = with_dtype(capture_of([item * 1e5 for item in slots], token_ids=ids), torch.float16)
    assert "non-finite" in named(verified(made, *capture.calls))


@pytest.mark.parametrize("zeroed", [slice(5, 7), slice(32, 64), slice(0, 64)])
def test_zero_rows(made, zeroed):
    _, _, slots, ids = made
    empty = [item.clone() for item in slots]
    for item in empty:
        item[zeroed] = 0
    report = verified(made, *capture_of(empty, token_ids=ids).calls)
    assert report.exit_status == 1
    assert named(report) <= {"rows-corrupt", "zero"}


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_rows_of_another_dtype_are_read(made, dtype):
    _, _, slots, ids = made
    (call,) = capture_of(slots, token_ids=ids).calls
    assert verified(made, replace(call, values=call.values.to(dtype), dtype=str(dtype))).exit_status == 0


@pytest.mark.parametrize("dtype", [torch.int8, torch.int32, torch.bool])
def test_whole_numbers_are_no_features(made, dtype):
    """Quantised codes or ids, captured by mistake."""
    _, _, slots, ids = made
    (call,) = capture_of(slots, token_ids=ids).calls
    report = verified(made, replace(call, values=call.values.sign().to(dtype)))
    assert report.exit_status in (1, 2)
    assert report.findings


def test_huge_values_are_no_overflow_of_ours(made):
    """Sizes of rows square the values; 1e15 is finite, and so must its square be."""
    _, _, slots, ids = made
    report = verified(made, *capture_of([item * 1e15 for item in slots], token_ids=ids).calls)
    assert named(report) == {"scale"}


def test_no_rows_and_one_row(made):
    _, _, slots, ids = made
    values = torch.cat(slots, dim=1)
    assert verified(made, Call(values=values[:0])).exit_status == 2
    assert verified(made, Call(values=values[:1], token_ids=ids[:1])).exit_status == 2


def test_the_files_as_they_are_pass(checkpoint, capsys):
    status, said = command(*checkpoint, capsys)
    assert status == 0, said


@pytest.mark.parametrize("damage", ["truncated", "foreign", "no tensors", "half a json", "another contract"])
def test_damaged_files_could_not_be_checked(checkpoint, damage, capsys):
    folder, path = checkpoint
    tensors = path.with_suffix(".safetensors")
    if damage == "truncated":
        tensors.write_bytes(tensors.read_bytes()[:-100])
    elif damage == "foreign":
        save_file({"weight": torch.ones(3)}, tensors)
    elif damage == "no tensors":
        tensors.unlink()
    elif damage == "half a json":
        path.write_bytes(path.read_bytes()[:200])
    else:
        document = json.loads(path.read_text("utf-8"))
        document["contract_sha256"] = "0" * 64
        path.write_text(json.dumps(document), "utf-8")
    status, said = command(folder, path.parent, capsys)
    assert status == 2
    assert path.name.split(".")[0] in said or damage == "another contract"
    assert "Traceback" not in said


def test_a_million_rows_on_disk_are_refused(checkpoint, capsys):
    folder, path = checkpoint
    document = json.loads(path.read_text("utf-8"))
    document["calls"][0]["rows"] = MILLION
    path.write_text(json.dumps(document), "utf-8")
    status, said = command(folder, path, capsys)
    assert status == 2
    assert "1000000 rows or more" in said


@pytest.mark.parametrize("requests", [None, pytest.param("each its own", marks=pytest.mark.slow)])
def test_a_million_rows_in_memory_take_bounded_memory(made, requests):
    """15,625 passes over the probe, the last one with two rows exchanged."""
    probe, contract, slots, ids = made
    alone = replace(contract, features=Wiring.from_boundaries((2,), dim=WIDTH).features)
    passes = MILLION // len(ids)
    values = slots[0].repeat(passes, 1)
    call = Call(
        values=values,
        phase="prefill",
        token_ids=ids * passes,
        positions=tuple(range(len(ids))) * passes,
        requests=tuple(str(n) for n in range(passes) for _ in ids) if requests else None,
    )
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    report = verify_captures(alone, probe, [Capture(calls=(call,))], path="x")
    taken = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    assert report.findings == ()
    assert report.exit_status == 0
    assert report.observed[0].rows == MILLION
    assert taken < 3 * values.numel() * 4
    if not requests:
        return
    values[-3] = values[-9]
    values[-5] = values[-12]
    report = verify_captures(alone, probe, [Capture(calls=(call,))], path="x")
    assert named(report) == {"rows-corrupt"}


def test_a_million_foreign_rows_are_nothing_to_compare(made):
    probe, contract, _, _ = made
    values = torch.zeros(1, 3 * WIDTH).expand(MILLION, -1)
    report = verify_captures(
        contract, probe, [Capture(calls=(Call(values=values, token_ids=(7,) * MILLION),))], path="x"
    )
    assert report.exit_status == 2
    assert {item.slug for item in report.findings} == {"nothing-compared"}
