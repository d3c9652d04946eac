from __future__ import annotations

from dataclasses import replace

import pytest

from featurecontract.contract import Wiring
from featurecontract.findings import Predicted, Report, diff

KEY = "eagle_config.eagle_aux_hidden_state_layer_ids"
RUNTIME = "sglang==0.5.12"


@pytest.fixture(scope="session")
def story() -> Report:
    """A Kimi drafter, trained on the embedding, h[3] and h[31], in an engine that reads ids as layer outputs."""
    declared = Wiring.from_boundaries((0, 3, 31), dim=7168)
    fed = Wiring.from_boundaries((3, 31, 59), dim=7168)
    (found,) = diff(declared, fed)
    return Report(
        checkpoint="kimi-drafter",
        contract_path="kimi-drafter/feature_contract.json",
        contract_sha256="0123456789abcdef" * 4,
        target="kimi-k2.5",
        declared=declared,
        num_hidden_layers=61,
        predicted=(Predicted(runtime=RUNTIME, wiring=fed, key=KEY, ids=(2, 30, 58), shift=1),),
        findings=(
            replace(
                found,
                runtime=RUNTIME,
                message="slot 0 was trained on the embedding, h[0]",
                cause="the list holds no id for the embedding",
                next_step="write the ids:\n  [-1, 2, 30]",
            ),
        ),
        compared=3,
    )
