"""A checkpoint of the tiny target of tests/identify, with its contract and probe."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

pytest.importorskip("torch")


@pytest.fixture(scope="session")
def tiny_case(tmp_path_factory):
    from tiny_engine import record_tiny

    import featurecontract
    from featurecontract.probe import read_probe

    place = tmp_path_factory.mktemp("live") / "ckpt"
    place.mkdir()
    record_tiny(place)
    contract = featurecontract.load(place)
    return SimpleNamespace(place=place, contract=contract, probe=read_probe(contract, place), target=place)
