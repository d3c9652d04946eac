"""The environment in which SGLang runs on this CPU."""

from __future__ import annotations

import os
from pathlib import Path

HERE = Path(__file__).parent
CPU = HERE / "cpu"
ROOT = HERE.parents[2]


def environment(**more):
    """Return the variables of a process with SGLang: the stand-ins of ``cpu/`` on its path, nothing of ours set."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("FEATURECONTRACT_")}
    return kept | {
        "PYTHONPATH": f"{ROOT}{os.pathsep}{CPU}",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "2"),
        **more,
    }
