"""``--runtime transformers``: the reference runtime, on the same targets."""

from __future__ import annotations

import pytest

import featurecontract
from featurecontract.cli import main


@pytest.mark.parametrize(("kind", "wiring"), [("llama", "0,3,8"), ("deepseek", "1,3,5")])
def test_the_reference_feeds_what_the_contract_declares(recorded, tmp_path, capsys, kind, wiring):
    case = recorded(kind, [1, 3, 5], wiring)
    main(
        ["capture", str(case.place), "--runtime", "transformers", "--target", str(case.target), "--out", str(tmp_path)]
    )
    (written,) = tmp_path.glob("capture-*.json")
    assert capsys.readouterr().out.strip() == str(written)
    report = featurecontract.verify(case.place, [tmp_path])
    assert (report.verdict, report.findings) == ("pass", ())
    (observed,) = report.observed
    assert observed.runtime.startswith("transformers==")
    assert [feature.boundary for feature in observed.wiring.features] == [int(item) for item in wiring.split(",")]
