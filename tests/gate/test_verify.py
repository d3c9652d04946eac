"""The whole way on a hand-made engine: record a probe, capture what enters fc, verify; right, then wrong."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from tiny_engine import Engine, capture_tiny, record_tiny  # noqa: E402
from tiny_runs import DEPTH, WIDTH, rms, tokens, weights  # noqa: E402

import featurecontract  # noqa: E402
from featurecontract.capture import capturing  # noqa: E402
from featurecontract.cli import main  # noqa: E402
from featurecontract.errors import InputError  # noqa: E402


@pytest.fixture
def recorded(tmp_path):
    (tmp_path / "ckpt").mkdir()
    record_tiny(tmp_path / "ckpt")
    return tmp_path


def captured(folder, fed):
    capture_tiny(folder / "ckpt", folder / "captured", fed)
    return str(folder / "captured")


@pytest.mark.parametrize(
    ("fed", "status", "slugs"),
    [
        ((0, 3, 6), 0, []),
        ((3, 6, 9), 1, ["embedding-missing"]),
        ((0, 4, 7), 1, ["layer-shift"]),
        ((0, 6, 3), 1, ["order"]),
        ((0, 3), 1, ["slot-missing"]),
    ],
)
def test_record_capture_verify(recorded, fed, status, slugs, capsys):
    capture = captured(recorded, fed)
    report = featurecontract.verify(recorded / "ckpt", [capture])
    assert [item.slug for item in report.findings if item.severity != "note"] == slugs
    assert report.exit_status == status
    assert report.observed[0].wiring.boundaries == fed
    with pytest.raises(SystemExit) as stop:
        main(["verify", str(recorded / "ckpt"), capture])
    assert stop.value.code == status
    out = capsys.readouterr().out
    assert "observed" in out
    assert all(slug in out for slug in slugs)


def test_another_contracts_capture_is_refused(recorded, tmp_path):
    (tmp_path / "other").mkdir()
    featurecontract.record(
        Engine((1, 2, 3)),
        out=tmp_path / "other",
        wiring="1,2,3",
        token_ids=list(range(64)),
        layers="layers",
        norm="norm",
        embedding="embedding",
        head="lm_head",
    )
    engine = Engine((0, 3, 6))
    other = featurecontract.load(tmp_path / "other")
    with torch.no_grad(), capturing(engine.fc, contract=other) as recording:
        engine(torch.arange(64)[None])
    recording.save(recorded / "foreign")
    with pytest.raises(InputError, match="was made for the contract"):
        featurecontract.verify(recorded / "ckpt", [str(recorded / "foreign")])


def test_the_tiny_engine_is_the_tiny_target():
    ids = tokens()
    hidden = weights().embedding[ids]
    assert torch.allclose(rms(hidden), torch.nn.functional.rms_norm(hidden, (WIDTH,), eps=1e-6), atol=1e-5)
    assert len(Engine((0,)).layers) == DEPTH
