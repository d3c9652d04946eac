"""Captures on disk: a safetensors file of rows and a JSON file that names it, checks it and makes it count.

The JSON file is written last and holds the sha256 of the other one: a capture exists when its JSON file does, so a
process that dies in between leaves nothing that can be read by mistake.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import save as to_safetensors

from featurecontract.contract import atomic_write, canonical_json
from featurecontract.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from featurecontract.capture._record import Call, Capture

__all__ = ["CAPTURE_VERSION", "INTEGER_FACTS", "MAX_CALLS", "STORED_DTYPES", "save", "tensor_name"]

CAPTURE_VERSION = "1.0"
#: Calls in one capture: far more than the bounds of a recording keep, and few enough for one strict JSON document.
MAX_CALLS = 50_000
#: Dtypes that float32 holds exactly and safetensors stores; rows of any other are stored as float32.
STORED_DTYPES: Mapping[str, tuple[str, torch.dtype]] = {
    "float32": ("F32", torch.float32),
    "bfloat16": ("BF16", torch.bfloat16),
    "float16": ("F16", torch.float16),
    "float8_e4m3fn": ("F8_E4M3", torch.float8_e4m3fn),
    "float8_e5m2": ("F8_E5M2", torch.float8_e5m2),
}
#: Facts stored as int64 tensors beside the rows; ``requests`` as an index into the JSON file's labels.
INTEGER_FACTS = ("token_ids", "positions", "drafter_token_ids", "draft_tokens")


def tensor_name(number: int, what: str) -> str:
    """Return the name of a tensor of call ``number``: ``000003.values``, ``000003.token_ids``."""
    return f"{number:06}.{what}"


def save(capture: Capture, directory: str | os.PathLike[str]) -> Path:
    """Write a capture and return the path of its JSON file, ``capture-PID-rRANK-NONCE.json``.

    The directory is made where it is missing; several processes may write into one. A capture without calls is
    written too, for its failure.

    Raises:
        InputError: the disk is full, or the directory cannot be written; nothing readable is left then.
    """
    folder = Path(directory)
    if len(capture.calls) > MAX_CALLS:
        raise InputError.single(
            str(folder),
            f"the capture has {len(capture.calls)} calls, more than the limit of {MAX_CALLS}",
            next_step="lower max_rows",
            slug="nothing-captured",
        )
    # The pid of another machine, or of a container, may be the same: the rank does not always tell them apart.
    stem = f"capture-{os.getpid()}-r{_rank(capture)}-{secrets.token_hex(4)}"
    rows, facts = folder / f"{stem}.safetensors", folder / f"{stem}.json"
    document: dict[str, Any] = {
        "capture_version": CAPTURE_VERSION,
        "runtime": capture.runtime,
        "contract_sha256": capture.contract_sha256,
        "failure": capture.failure,
        "dropped": capture.dropped,
        "extra": _plain(capture.extra),
        "calls": [_call_to_dict(call) for call in capture.calls],
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if capture.calls:
            data = to_safetensors(_tensors(capture.calls))
            document |= {"tensors": rows.name, "sha256": hashlib.sha256(data).hexdigest()}
            with atomic_write(rows) as stream:
                stream.write(data)
            del data
        with atomic_write(facts) as stream:
            stream.write(canonical_json(document))
    except OSError as error:
        with contextlib.suppress(OSError):
            rows.unlink()
        raise InputError.single(
            str(folder),
            f"the capture cannot be written ({error.strerror or error})",
            next_step="free some space or name another directory, and save again",
            slug="nothing-captured",
        ) from None
    return facts


def _rank(capture: Capture) -> int:
    said = capture.extra.get("rank")
    return said if isinstance(said, int) else next((call.rank for call in capture.calls), 0)


def _call_to_dict(call: Call) -> dict[str, Any]:
    labels = None if call.requests is None else list(dict.fromkeys(call.requests))
    return {
        "point": call.point,
        "phase": call.phase,
        "rows": call.values.shape[0],
        "width": call.values.shape[1],
        "dtype": call.dtype,
        "rank": call.rank,
        "stage": call.stage,
        "shard": None if call.shard is None else list(call.shard),
        "cached": dict(call.cached),
        "requests": labels,
        "extra": _plain(call.extra),
    }


def _tensors(calls: tuple[Call, ...]) -> dict[str, Tensor]:
    held: dict[str, Tensor] = {}
    for number, call in enumerate(calls):
        _, dtype = STORED_DTYPES.get(call.dtype, STORED_DTYPES["float32"])
        # Two calls may share memory, which safetensors refuses; a cast that changes nothing would keep it shared.
        held[tensor_name(number, "values")] = call.values.to(dtype, copy=True).contiguous()
        for name in INTEGER_FACTS:
            fact = getattr(call, name)
            if fact is not None:
                held[tensor_name(number, name)] = torch.tensor(fact, dtype=torch.int64)
        if call.accepted is not None:
            held[tensor_name(number, "accepted")] = torch.tensor(call.accepted, dtype=torch.bool)
        if call.requests is not None:
            index = {label: place for place, label in enumerate(dict.fromkeys(call.requests))}
            held[tensor_name(number, "requests")] = torch.tensor([index[label] for label in call.requests])
    return held


def _plain(extra: Mapping[str, Any]) -> Any:
    """Return free-form notes as JSON has them; what it has not is kept as text."""
    return json.loads(json.dumps(dict(extra), default=str), parse_constant=str)
