"""``transformers`` as a runtime: the target's own forward pass, and what the contract says is fed, taken by hooks.

It is the reference that the others are held against: where it fails, contract and probe do not fit the target.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from featurecontract.capture import capturing, tag
from featurecontract.contract import digest

if TYPE_CHECKING:
    import os
    from collections.abc import Callable
    from pathlib import Path

    from featurecontract.contract import Contract
    from featurecontract.probe._data import ProbeData

__all__ = ["capture_reference"]


def capture_reference(
    contract: Contract,
    probe: ProbeData,
    target: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    progress: Callable[[str], None] | None = None,
) -> Path:
    """Run the target on the probe's tokens in transformers and capture the declared features of it.

    Args:
        contract: Whose wiring is fed.
        probe: Whose tokens are run.
        target: The target's directory.
        out: Where the capture goes.
        progress: Called with one line per step.

    Raises:
        InputError: the target cannot be loaded, or has no such planes.
    """
    import torch
    import transformers
    from torch import nn

    from featurecontract import probe as recording

    say = progress or (lambda _line: None)
    say(f"loading {target}")
    loaded = recording.load_target(str(target), dtype="auto")
    layout = recording.find_layout(loaded.model)
    ids = [int(item) for item in probe.token_ids.tolist()]
    say(f"running the target on {len(ids)} tokens")
    found = recording.record_probe(loaded.model, layout, contract.wiring, ids, second_dtype=None)
    rows: Any = found.data.golden.float()
    # What stands for the projection: features enter it as they would enter fc.
    projection = nn.Identity()
    with torch.no_grad(), capturing(projection, runtime=f"transformers=={transformers.__version__}") as kept:
        kept.contract_sha256 = digest(contract)
        with tag(token_ids=ids, positions=list(range(len(ids))), phase="prefill"):
            projection(rows)
    return kept.save(out)
