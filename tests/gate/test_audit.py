"""audit-data: datasets of a small target, right, then wrong in every way that a dataset was wrong."""

from __future__ import annotations

import json
from functools import cache

import pytest

torch = pytest.importorskip("torch")

import state_files  # noqa: E402
from tiny_engine import PATHS, Engine  # noqa: E402
from tiny_runs import DEPTH, WIDTH  # noqa: E402

import featurecontract  # noqa: E402
from featurecontract.cli import main  # noqa: E402
from featurecontract.errors import InputError, UsageError  # noqa: E402
from featurecontract.gate import audit_data  # noqa: E402
from featurecontract.gate._audit import spread  # noqa: E402

FED = (0, 3, 6)


def ids_of(number):
    return torch.randperm(300, generator=torch.Generator().manual_seed(number))[:72]


@cache
def engine_of_target():
    return Engine((0,))


@cache
def planes_of(number):
    """Return h[0]..h[L] and norm(h[L]) for the tokens of a sequence."""
    ids, engine, states = ids_of(number), engine_of_target(), []
    hooks = [layer.register_forward_pre_hook(lambda _m, args: states.append(args[0][0])) for layer in engine.layers]
    hooks.append(engine.norm.register_forward_hook(lambda _m, args, out: states.extend((args[0][0], out[0]))))
    with torch.no_grad():
        engine(ids[None])
    for hook in hooks:
        hook.remove()
    return states


@pytest.fixture(scope="module")
def ckpt(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ckpt")
    featurecontract.record(
        engine_of_target(), out=folder, wiring="0,3,6", token_ids=[int(item) for item in ids_of(0)][:64], **PATHS
    )
    return folder


def dataset(folder, *, fed=FED, writer="speculators", last=DEPTH, count=3, change=None):
    write, state, _ = state_files.WRITERS[writer]
    for number in range(count):
        ids = ids_of(number)
        states = planes_of(number)
        planes = [states[b].clone() for b in fed]
        final = (states[-1] if state == "final_norm" and last == DEPTH else states[last]).clone()
        if change is not None:
            ids, planes, final = change(number, ids, planes, final)
        write(folder, number, ids, planes, final)
    return folder


def audited(folder, ckpt, *, target=None, **options):
    return audit_data(folder, ckpt, target=target, **options, **(PATHS if target is not None else {}))


def slugs(report):
    """Return what was found; in how many files planes were identified has a test of its own."""
    return sorted({item.slug for item in report.findings if item.severity != "note"} - {"planes-sampled"})


CASES = [(writer, "probe") for writer in sorted(state_files.WRITERS)]
CASES += [("speculators", "target"), ("modelopt", "target"), ("specforge-dflash", "target"), ("torchspec", "target")]


@pytest.mark.parametrize(("writer", "by"), CASES)
def test_a_right_dataset_holds_in_every_format(tmp_path, ckpt, writer, by):
    target = engine_of_target() if by == "target" else None
    report = audited(dataset(tmp_path, writer=writer, count=2), ckpt, target=target)
    assert slugs(report) == []
    assert report.exit_status == 0
    # By the probe only the sequence that begins with its tokens is known.
    assert len(report.observed) == (1 if by == "probe" else 2)
    for item in report.observed:
        assert item.wiring.boundaries[:3] == FED
        if len(item.slots) == 4:
            assert item.wiring.boundaries[3] == DEPTH


@pytest.mark.parametrize("by", ["probe", "target"])
@pytest.mark.parametrize(
    "case",
    [
        ((0, 4, 7), DEPTH, "layer-shift", (1, 2), {"shift": 1}),
        ((0, 2, 5), DEPTH, "layer-shift", (1, 2), {"shift": -1}),
        ((3, 6, 9), DEPTH, "embedding-missing", None, None),
        ((0, 6, 3), DEPTH, "order", (1, 2), None),
        ((0, 3, 6), DEPTH - 1, "layer-shift", (3,), {"shift": -1}),
    ],
)
def test_other_planes_are_named(tmp_path, ckpt, case, by):
    fed, last, slug, slots, details = case
    target = engine_of_target() if by == "target" else None
    report = audited(dataset(tmp_path, fed=fed, last=last, count=2), ckpt, target=target)
    assert report.exit_status == 1
    found = [item for item in report.findings if item.slug == slug]
    assert len(found) == 1, report.findings
    if slots is not None:
        assert found[0].slots == slots
    if details:
        assert dict(found[0].details) == details
    assert ("slot 3 is the last plane" in found[0].message) == (slots == (3,))
    assert found[0].message.endswith("identified files)")


@pytest.mark.parametrize(("count", "severity"), [(1, "note"), (2, "note"), (3, "warning")])
def test_in_how_many_files_planes_were_identified(tmp_path, ckpt, count, severity):
    """Only the first sequence begins with the probe's tokens; the others may hold any planes."""
    folder = dataset(tmp_path, count=count)
    report = audited(folder, ckpt)
    (found,) = [item for item in report.findings if item.slug == "planes-sampled"]
    assert found.severity == severity
    assert found.message.startswith(f"planes identified in 1 of {count} files")
    assert dict(found.details) == {"files": 1, "of": count}
    assert report.exit_status == 0
    (all_of_them,) = audited(folder, ckpt, target=engine_of_target()).findings
    assert (all_of_them.severity, all_of_them.message) == ("note", f"planes identified in {count} of {count} files")


def test_a_last_plane_without_its_norm_is_found(tmp_path, ckpt):
    def raw(number, ids, planes, _final):
        return ids, planes, planes_of(number)[DEPTH]

    report = audited(dataset(tmp_path, writer="specforge-eagle3", change=raw, count=1), ckpt, target=engine_of_target())
    assert slugs(report) == ["final-norm"]
    assert report.exit_status == 1


def test_rows_that_belong_to_the_next_token(tmp_path, ckpt):
    def rolled(_number, ids, planes, final):
        return ids, [item.roll(-1, 0) for item in planes], final.roll(-1, 0)

    report = audited(dataset(tmp_path, change=rolled, count=1), ckpt, target=engine_of_target())
    assert "rows-shifted" in slugs(report)
    assert report.exit_status == 1


def _set(slot, value):
    def change(number, ids, planes, final):
        if number == 1:
            planes[slot] = value(planes)
        return ids, planes, final

    return change


def _nan(planes):
    out = planes[2].clone()
    out[5:9, 0] = torch.nan
    return out


@pytest.mark.parametrize(
    ("change", "slug", "slots"),
    [
        (_set(1, lambda planes: torch.zeros_like(planes[1])), "zero", (1,)),
        (_set(1, lambda planes: planes[1][:1].expand_as(planes[1]).clone()), "constant", (1,)),
        (_set(2, _nan), "non-finite", (2,)),
        (_set(2, lambda planes: planes[1].clone()), "slot-duplicate", (1, 2)),
    ],
)
def test_planes_without_meaning(tmp_path, ckpt, change, slug, slots):
    report = audited(dataset(tmp_path, change=change), ckpt)
    assert slugs(report) == [slug]
    found = next(item for item in report.findings if item.slug == slug)
    assert found.slots == slots
    assert dict(found.details) == {"files": 1, "of": 3}
    assert "in 1 of 3 files: " in found.message
    assert "hs_1.safetensors" in found.message
    if slug == "non-finite":
        assert found.rows == ((5, 9),)
    assert report.exit_status == 1


def test_a_plane_left_over_from_another_sequence(tmp_path, ckpt):
    kept = {}

    def change(number, ids, planes, final):
        kept.setdefault("plane", planes[2])
        return ids, [planes[0], planes[1], kept["plane"] if number == 2 else planes[2]], final

    report = audited(dataset(tmp_path, change=change), ckpt)
    assert slugs(report) == ["stale"]
    assert report.findings[-1].slots == (2,) or any(item.slots == (2,) for item in report.findings)


def test_equal_planes_that_the_contract_wants_equal_are_right(tmp_path):
    (tmp_path / "ckpt").mkdir()
    (tmp_path / "data").mkdir()
    fed = (0, 3, DEPTH)
    featurecontract.record(
        engine_of_target(), out=tmp_path / "ckpt", wiring=f"0,3,{DEPTH}", token_ids=ids_of(0).tolist()[:64], **PATHS
    )
    report = audited(dataset(tmp_path / "data", fed=fed), tmp_path / "ckpt")
    assert slugs(report) == []
    assert report.exit_status == 0


def test_another_number_of_planes(tmp_path, ckpt):
    report = audited(dataset(tmp_path, fed=(0, 3)), ckpt)
    assert {"width", "slot-missing"} <= set(slugs(report))
    assert f"{2 * WIDTH} columns go to the projection, the contract's features have {3 * WIDTH}" in str(report.findings)
    assert report.exit_status == 1


def test_token_ids_of_another_tokenizer(tmp_path, ckpt):
    def change(_number, ids, planes, final):
        return torch.cat([ids[:-1], torch.tensor([300])]), planes, final

    report = audited(dataset(tmp_path, change=change), ckpt)
    assert slugs(report) == ["target-mismatch"]
    assert "token 300 is not in the target's vocabulary of 300" in report.findings[0].message


def test_unknown_planes_are_could_not_check(tmp_path, ckpt):
    def change(number, _ids, planes, final):
        return ids_of(number + 50), planes, final

    report = audited(dataset(tmp_path, change=change), ckpt)
    assert slugs(report) == ["nothing-compared"]
    assert report.exit_status == 2
    assert "--target DIR" in report.findings[0].next_step


def test_what_the_producer_wrote_answers_where_nothing_else_does(tmp_path, ckpt):
    def change(number, _ids, planes, final):
        return ids_of(number + 50), planes, final

    dataset(tmp_path, writer="speculators-list", change=change)
    # speculators 0.3: id k is h[k + 1], so these are h[3], h[6], h[9] and the last plane h[10].
    state_files.write_producer_config(tmp_path, [2, 5, 8, 9])
    report = audited(tmp_path, ckpt)
    assert "embedding-missing" in slugs(report)
    assert report.exit_status == 1
    assert "by the ids [2, 5, 8, 9] in data_config.json" in str(report.findings)


def test_a_broken_file_is_a_finding_and_the_others_are_read(tmp_path, ckpt):
    dataset(tmp_path, count=4)
    (tmp_path / "hidden_states" / "hs_2.safetensors").write_bytes(b"\x08\0\0\0\0\0\0\0{}")
    report = audited(tmp_path, ckpt)
    assert slugs(report) == ["checkpoint-unreadable"]
    assert report.exit_status == 2
    assert "in 1 of 4 files" in report.findings[0].message


def test_workers_and_limits_read_the_same(tmp_path, ckpt):
    dataset(tmp_path, count=6, change=_set(1, lambda planes: torch.zeros_like(planes[1])))
    seen = []
    reports = [
        audited(tmp_path, ckpt, workers=n, progress=lambda done, total: seen.append((done, total))) for n in (1, 3)
    ]
    assert reports[0].findings == reports[1].findings
    assert seen == [(n, 6) for n in range(1, 7)] * 2
    assert audited(tmp_path, ckpt, limit=2).exit_status == 0  # the first and the last
    assert spread(10, 4) == [0, 3, 6, 9]
    assert spread(3, 1) == [0]
    with pytest.raises(UsageError, match="must be at least 1"):
        audited(tmp_path, ckpt, workers=0)


def test_a_target_of_another_depth_is_refused(tmp_path, ckpt):
    dataset(tmp_path)
    small = Engine((0,))
    small.layers = small.layers[:6]
    with pytest.raises(InputError, match="the target has 6 layers") as caught:
        audited(tmp_path, ckpt, target=small)
    assert caught.value.slug == "target-mismatch"


def test_short_sequences_cannot_be_identified(tmp_path, ckpt):
    def change(_number, ids, planes, final):
        return ids[:20], [item[:20] for item in planes], final[:20]

    report = audited(dataset(tmp_path, change=change), ckpt, target=engine_of_target())
    assert report.exit_status == 2
    assert "has 20 tokens, 48 are needed" in report.findings[0].message


@pytest.mark.parametrize("fmt", ["text", "json", "junit", "sarif", "github", "markdown"])
def test_the_command(tmp_path, ckpt, capsys, fmt):
    dataset(tmp_path, fed=(0, 4, 7))
    with pytest.raises(SystemExit) as stop:
        main(["audit-data", str(tmp_path), str(ckpt), "--workers", "2", "-o", fmt])
    assert stop.value.code == 1
    captured = capsys.readouterr()
    assert "layer-shift" in captured.out
    assert "read 3 of 3 files" in captured.err
    if fmt == "json":
        document = json.loads(captured.out)
        assert document["exit_status"] == 1
        assert [item["boundary"] for item in document["declared"]["features"]] == [0, 3, 6, DEPTH]
        assert document["observed"][0]["runtime"] == "speculators"


def test_the_command_refuses_in_one_line(tmp_path, ckpt, capsys):
    (tmp_path / "empty").mkdir()
    with pytest.raises(SystemExit) as stop:
        main(["audit-data", str(tmp_path / "empty"), str(ckpt)])
    assert stop.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1
    with pytest.raises(SystemExit) as stop:
        main(["audit-data", str(tmp_path / "empty"), str(ckpt), "-o", "json"])
    assert stop.value.code == 2
    assert json.loads(capsys.readouterr().out)["verdict"] == "could-not-check"


def test_a_few_files_from_all_over_a_dataset_are_a_note(tmp_path, ckpt):
    report = audited(dataset(tmp_path, count=6), ckpt, target=engine_of_target(), identify=2)
    assert [(item.slug, item.severity) for item in report.findings] == [("planes-sampled", "note")]
    assert report.findings[0].message.startswith("planes identified in 2 of 6 files")
