import pytest
from tiny_target import IDS, PATHS, target

from featurecontract import record


@pytest.fixture
def recorded(tmp_path):
    """A checkpoint directory with a contract and its probe: (directory, contract)."""
    place = tmp_path / "drafter"
    place.mkdir()
    return place, record(target(), out=place, wiring="0,2,4", token_ids=IDS, **PATHS)
