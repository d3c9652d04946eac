"""``feature_contract.probe``: the layout of the file, and writing it with its contract.

A safetensors file, by an ending that no runtime takes for weights. Everything stands in tensors: safetensors metadata
holds strings only and is lost when somebody saves the file again.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors.torch import save as serialise

from featurecontract.contract import PROBE_FILE, Contract, Probe, Statement, atomic_write, save
from featurecontract.errors import InputError, Problem
from featurecontract.probe._degenerate import check_probe
from featurecontract.probe._planes import KINDS
from featurecontract.probe._storage import storage_dtype

if TYPE_CHECKING:
    from os import PathLike

    from torch import Tensor

    from featurecontract.probe._data import ProbeData

__all__ = ["FORMAT", "write_probe"]

FORMAT = 1
_MAX_NOTES = 20


def write_probe(
    data: ProbeData, contract: Contract, directory: str | PathLike[str], *, dtype: str = "float32", reason: str = ""
) -> Contract:
    """Write the probe and the contract that names it, and return that contract.

    The probe's file is written first and whole, then the contract: a crash between leaves the contract as it was,
    which then finds another probe than its own and says ``probe-missing``, or none was there before.

    Args:
        data: The probe; ``golden`` is as wide as the contract's features together.
        contract: The contract to bind it to.
        directory: The checkpoint's directory.
        dtype: The dtype in which the target ran.
        reason: How it was recorded, for the contract's provenance.

    Raises:
        InputError: ``probe-degenerate`` for a probe on which nothing can be told apart; the probe does not fit the
            contract; or a file cannot be written.
    """
    check_probe(data)
    _check_fit(data, contract)
    content = serialise(_tensors(data, contract))
    place = Path(directory)
    probe = Probe(
        file=PROBE_FILE,
        sha256=hashlib.sha256(content).hexdigest(),
        rows=len(data.token_ids),
        dtype=dtype,
        token_ids=tuple(data.token_ids.tolist()),
        noise_floor=round(max(data.floor, 0.0), 6),
    )
    kept = tuple(item for item in contract.provenance.statements if item.path != "probe")
    statement = Statement(path="probe", source="recorded", confidence=1.0, reason=reason[:500])
    bound = replace(contract, probe=probe, provenance=replace(contract.provenance, statements=(*kept, statement)))
    try:
        with atomic_write(place / PROBE_FILE) as stream:
            stream.write(content)
        save(bound, place)
    except OSError as error:
        raise InputError.single(
            str(place), f"cannot be written: {error.strerror or error}", next_step="make the checkpoint writable"
        ) from None
    return bound


def _check_fit(data: ProbeData, contract: Contract) -> None:
    wanted = contract.wiring.width
    pairs = (
        ("golden columns", data.golden.shape[1], wanted),
        ("golden rows", data.golden.shape[0], len(data.token_ids)),
        ("fingerprint rows", data.bank.values.shape[1], len(data.token_ids)),
        ("fingerprints", data.bank.values.shape[0], len(data.bank.planes)),
        ("channels", data.bank.values.shape[2], len(data.bank.channels)),
        (
            "boundaries",
            sum(plane.kind == "boundary" for plane in data.bank.planes),
            contract.target.num_hidden_layers + 1,
        ),
    )
    problems = tuple(
        Problem(place="", message=f"{given} {what}, the contract means {expected}", next_step="record it again")
        for what, given, expected in pairs
        if given != expected
    )
    if problems:
        raise InputError("the probe", problems, slug="probe-missing")


def _tensors(data: ProbeData, contract: Contract) -> dict[str, Tensor]:
    recorded = [int(slot not in data.unrecorded) for slot in range(len(contract.features))]
    notes = json.dumps([note[:500] for note in data.notes[:_MAX_NOTES]]).encode()
    out = {
        "format": torch.tensor([FORMAT]),
        "token_ids": data.token_ids.to(torch.int64),
        "golden": data.golden.to(storage_dtype(data.golden)),
        "slot_widths": torch.tensor([feature.dim or 0 for feature in contract.features]),
        "slot_recorded": torch.tensor(recorded),
        "bank.values": data.bank.values.to(storage_dtype(data.bank.values)),
        "bank.kinds": torch.tensor([KINDS.index(plane.kind) for plane in data.bank.planes]),
        "bank.boundaries": torch.tensor([plane.boundary for plane in data.bank.planes]),
        "bank.channels": data.bank.channels.to(torch.int64),
        "noise_floor": torch.tensor([data.floor], dtype=torch.float64),
        "notes": torch.tensor(list(notes), dtype=torch.uint8),
    }
    if data.final_norm is not None:
        out["final_norm.weight"] = data.final_norm.weight.float()
        out["final_norm.eps"] = torch.tensor([data.final_norm.eps], dtype=torch.float64)
    if data.gram is not None:
        out["gram"] = data.gram.float()
    return {name: tensor.contiguous().clone() for name, tensor in out.items()}
