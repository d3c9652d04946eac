"""Reading a probe that somebody else may have written: digest, size, names, shapes, dtypes and values are checked."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import torch
from safetensors import SafetensorError
from safetensors.torch import load as deserialise

from featurecontract.checkpoint._paths import open_entry, shown_path
from featurecontract.contract._consistency import is_plain_name
from featurecontract.contract.strict_json import parse_json, read_all
from featurecontract.errors import InputError
from featurecontract.probe._data import Bank, FinalNorm, ProbeData
from featurecontract.probe._file import FORMAT
from featurecontract.probe._planes import KINDS, Plane

if TYPE_CHECKING:
    from os import PathLike

    from torch import Tensor

    from featurecontract.contract import Contract, Probe

__all__ = ["MAX_BYTES", "read_probe"]

#: A probe of 64 rows of a 61-layer, 7168-wide target has 6 MiB; 256 rows of the largest have about 100.
MAX_BYTES = 256 * 2**20

_HALF = (torch.float16, torch.bfloat16)
_MAX_NOTES_BYTES = 64 * 2**10
_AGAIN = "copy the file that belongs to this contract, or record again with `featurecontract record`"


def read_probe(contract: Contract, directory: str | PathLike[str], *, follow_links: bool = False) -> ProbeData:
    """Return the probe that a contract names, checked.

    Args:
        contract: The contract; ``contract.probe`` names the file, its digest, rows and tokens.
        directory: The checkpoint's directory; the file is read from nowhere else, see ``follow_links``.
        follow_links: Also read through a link that leaves the directory.

    Raises:
        InputError: ``probe-missing``: there is none, or it is not the one that the contract names, or is malformed.
    """
    place = Path(directory)
    if contract.probe is None:
        raise InputError.single(
            shown_path(place),
            "the contract has no probe",
            next_step="record one with `featurecontract record MODEL --out CKPT`",
            slug="probe-missing",
        )
    name = contract.probe.file
    source = shown_path(place / name)
    if not is_plain_name(name):
        _refuse(source, "the contract's probe.file is not a plain file name")
    data = _content(place, name, source, follow_links=follow_links)
    if hashlib.sha256(data).hexdigest() != contract.probe.sha256:
        _refuse(source, "is not the probe that the contract was written with: its sha256 differs")
    try:
        tensors = deserialise(data)
    except (SafetensorError, ValueError, KeyError, RuntimeError, OverflowError) as error:
        _refuse(source, f"is no safetensors file that can be read ({str(error)[:100]!a})")
    return _Reader(tensors, contract, contract.probe, source).data()


def _content(place: Path, name: str, source: str, *, follow_links: bool) -> bytes:
    try:
        with open_entry(place, name, follow_links=follow_links) as stream:
            return read_all(stream, source=source, max_bytes=MAX_BYTES)
    except InputError as error:
        raise InputError(error.source, error.problems, slug="probe-missing") from None


def _refuse(source: str, message: str, place: str = "") -> NoReturn:
    raise InputError.single(source, message, place=place, next_step=_AGAIN, slug="probe-missing")


class _Reader:
    """The tensors of one file; every getter checks dtype and shape before a value is used."""

    def __init__(self, tensors: dict[str, Tensor], contract: Contract, probe: Probe, source: str) -> None:
        self.tensors, self.contract, self.probe, self.source = tensors, contract, probe, source
        self.rows = probe.rows

    def tensor(self, name: str, dtypes: tuple[torch.dtype, ...], shape: tuple[int | None, ...]) -> Tensor:
        """Return a finite tensor of this form; None stands for any length from 1."""
        found = self.tensors.get(name)
        if found is None:
            _refuse(self.source, "is missing", name)
        if found.dtype not in dtypes:
            _refuse(self.source, f"is {found.dtype}, not {' or '.join(map(str, dtypes))}", name)
        fits = len(found.shape) == len(shape) and all(
            have == want if want is not None else have >= 1 for have, want in zip(found.shape, shape, strict=True)
        )
        if not fits:
            wanted = [size if size is not None else "any" for size in shape]
            _refuse(self.source, f"has shape {list(found.shape)[:6]}, not {wanted}", name)
        if found.is_floating_point() and not bool(torch.isfinite(found).all()):
            _refuse(self.source, "has NaN or infinite values", name)
        return found

    def integers(self, name: str, count: int | None = None) -> list[int]:
        values: list[int] = self.tensor(name, (torch.int64,), (count,)).tolist()
        return values

    def data(self) -> ProbeData:
        version = self.integers("format", 1)[0]
        if version != FORMAT:
            _refuse(self.source, f"is of format {version}; this release reads {FORMAT}", "format")
        features = self.contract.features
        widths = self.integers("slot_widths", len(features))
        if widths != [feature.dim for feature in features]:
            _refuse(self.source, "the slots have other widths than the contract's", "slot_widths")
        if tuple(self.integers("token_ids", self.rows)) != self.probe.token_ids:
            _refuse(self.source, "the tokens are not the contract's", "token_ids")
        recorded = self.integers("slot_recorded", len(features))
        floor = float(self.tensor("noise_floor", (torch.float64,), (1,))[0])
        if not -1.0 <= floor <= 1.0 + 1e-6:
            _refuse(self.source, f"is {floor}, not a similarity", "noise_floor")
        gram = (
            self.tensor("gram", (torch.float32,), (len(features), self.rows, self.rows))
            if "gram" in self.tensors
            else None
        )
        return ProbeData(
            token_ids=torch.tensor(self.probe.token_ids),
            golden=self.tensor("golden", _HALF, (self.rows, sum(widths))).float(),
            bank=self.bank(),
            final_norm=self.final_norm(),
            gram=gram,
            floor=floor,
            notes=self.notes(),
            unrecorded=tuple(slot for slot, flag in enumerate(recorded) if not flag),
        )

    def bank(self) -> Bank:
        values = self.tensor("bank.values", _HALF, (None, self.rows, None))
        planes = self.planes(values.shape[0])
        channels = self.integers("bank.channels", values.shape[2])
        # A row of a multi-stream target holds its streams side by side.
        width = max([self.contract.target.hidden_size, *(feature.dim or 0 for feature in self.contract.features)])
        if sorted(set(channels)) != channels or not 0 <= channels[0] <= channels[-1] < width:
            _refuse(self.source, f"are not ascending channels of 0..{width - 1}", "bank.channels")
        return Bank(planes=planes, values=values.float(), channels=torch.tensor(channels))

    def planes(self, count: int) -> tuple[Plane, ...]:
        depth = self.contract.target.num_hidden_layers
        kinds, boundaries = self.integers("bank.kinds", count), self.integers("bank.boundaries", count)
        for kind, boundary in zip(kinds, boundaries, strict=True):
            if not 0 <= kind < len(KINDS) or not 0 <= boundary <= depth:
                _refuse(self.source, f"has no such plane: kind {kind}, boundary {boundary} of {depth}", "bank.kinds")
        planes = tuple(Plane(KINDS[kind], boundary) for kind, boundary in zip(kinds, boundaries, strict=True))
        held = {plane.boundary for plane in planes if plane.kind == "boundary"}
        if len(set(planes)) != count or len(held) != depth + 1:
            _refuse(self.source, f"does not hold every boundary 0..{depth} once", "bank.boundaries")
        return planes

    def final_norm(self) -> FinalNorm | None:
        if "final_norm.weight" not in self.tensors:
            return None
        eps = float(self.tensor("final_norm.eps", (torch.float64,), (1,))[0])
        if not 0.0 <= eps <= 1.0:
            _refuse(self.source, f"is {eps}, not a small number from 0", "final_norm.eps")
        weight = self.tensor("final_norm.weight", (torch.float32,), (self.contract.target.hidden_size,))
        return FinalNorm(weight=weight, eps=eps)

    def notes(self) -> tuple[str, ...]:
        if "notes" not in self.tensors:
            return ()
        raw = self.tensor("notes", (torch.uint8,), (None,))
        if len(raw) > _MAX_NOTES_BYTES:
            _refuse(self.source, f"has {len(raw)} bytes, more than {_MAX_NOTES_BYTES}", "notes")
        try:
            found = parse_json(bytes(raw.tolist()), source=self.source, slug="probe-missing")
        except InputError:
            found = None
        if not isinstance(found, list) or not all(isinstance(item, str) for item in found):
            _refuse(self.source, "is not a JSON list of strings", "notes")
        return tuple(json.dumps(item)[1:-1] if not item.isprintable() else item for item in found)
