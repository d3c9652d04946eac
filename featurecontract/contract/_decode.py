"""JSON object -> `Contract`, and back; every problem at once, each with its path."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from featurecontract.contract import _checks as c
from featurecontract.contract import _contract as m
from featurecontract.contract._consistency import consistency_problems
from featurecontract.contract._conventions import CONVENTIONS
from featurecontract.contract._wiring import DECLARED_STATES, RECURRENT, REDUCTIONS, SOURCES, Feature
from featurecontract.errors import InputError, Problem

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["contract_from_dict", "contract_to_dict", "newer_minor"]

_VERSION = re.compile(r"(?:0|[1-9][0-9]{0,5})\.(?:0|[1-9][0-9]{0,5})")
PRE_NORMS = ("none", "joint", "per_feature", "unknown")


@dataclass(frozen=True, slots=True)
class _Shape:
    """The keys of one JSON object and the data class it becomes."""

    cls: Any
    keys: Mapping[str, tuple[c.Check, bool]]  # check, required


class _Problems(list[Problem]):
    """The problems of one contract, and whether a key that nobody knows is one: not in a newer minor version."""

    def __init__(self, *, refuse_unknown: bool = True) -> None:
        super().__init__()
        self.refuse_unknown = refuse_unknown


def _nested(cls: Any) -> c.Check:
    def check(value: object, path: str, problems: list[Problem]) -> Any:
        return _decode_object(value, path, problems, _shapes()[cls])

    return check


def _req(check: c.Check) -> tuple[c.Check, bool]:
    return check, True


def _opt(check: c.Check) -> tuple[c.Check, bool]:
    return check, False


@lru_cache(maxsize=1)
def _shapes() -> dict[Any, _Shape]:
    width, depth = c.integer(1, 2**31), c.integer(1, 100_000)
    table: dict[Any, dict[str, tuple[c.Check, bool]]] = {
        Feature: {
            "slot": _req(c.integer(0, 10_000)),
            "source": _opt(c.choice(SOURCES)),
            "boundary": _opt(c.integer(0, 100_000)),
            "state": _opt(c.choice(DECLARED_STATES)),
            "dim": _req(width),
            "row_offset": _opt(c.integer(-1000, 1000)),
            "scale": _opt(c.number()),
            "reduction": _opt(c.choice(REDUCTIONS)),
            "streams": _opt(c.integer(1, 1000)),
        },
        m.Target: {
            "num_hidden_layers": _req(depth),
            "hidden_size": _req(width),
            "name": _opt(c.text()),
            "revision": _opt(c.text()),
            "architecture": _opt(c.text()),
            "vocab_size": _opt(width),
            "dtype": _opt(c.text()),
            "quantization": _opt(c.text()),
            "basis": _opt(c.choice(("standard", "rotated"))),
            "tokenizer_sha256": _opt(c.sha256()),
        },
        m.TensorRecord: {
            "name": _req(c.text()),
            "dtype": _req(c.text()),
            "shape": _req(c.list_of(c.integer(0))),
            "sha256": _opt(c.sha256()),
        },
        m.Block: {
            "size": _req(c.integer(1, 100_000)),
            "mask_token_id": _opt(c.integer(0)),
            "anchor": _opt(c.text()),
        },
        m.Drafter: {
            "hidden_size": _req(width),
            "architecture": _opt(c.text()),
            "dtype": _opt(c.text()),
            "embedding": _opt(c.choice(m.OWNERS)),
            "head": _opt(c.choice(m.OWNERS)),
            "block": _opt(_nested(m.Block)),
            "tensors": _opt(c.list_of(_nested(m.TensorRecord))),
        },
        m.Projection: {
            "tensor": _req(c.text()),
            "role": _req(c.text()),
            "slots": _req(c.list_of(c.integer(0, 10_000), at_least=1)),
            "in_features": _req(width),
            "out_features": _req(width),
            "bias": _opt(c.boolean()),
            "pre_norm": _opt(c.choice(PRE_NORMS)),
            "post_norm": _opt(c.boolean()),
            "inject_into": _opt(c.text()),
        },
        m.Alignment: {
            "token_shift": _opt(c.integer(-1000, 1000)),
            "position_offset": _opt(c.integer(-1000, 1000)),
        },
        m.Vocab: {
            "draft_vocab_size": _opt(width),
            "d2t": _opt(c.choice(m.MAP_KINDS)),
            "d2t_sha256": _opt(c.sha256()),
            "t2d_sha256": _opt(c.sha256()),
        },
        m.Rope: {
            "theta": _opt(c.number(0.0)),
            "scaling": _opt(c.json_object()),
            "type": _opt(c.text()),
            "style": _opt(c.text()),
            "max_position_embeddings": _opt(c.integer(1)),
        },
        m.Probe: {
            "file": _req(c.text()),
            "sha256": _req(c.sha256()),
            "rows": _req(c.integer(1)),
            "dtype": _req(c.text()),
            "token_ids": _req(c.list_of(c.integer(0), at_least=1)),
            "noise_floor": _opt(c.number(0.0)),
        },
        m.Quality: {
            "step_accuracies": _opt(c.list_of(c.number(0.0, 1.0))),
            "acceptance_length": _opt(c.number(0.0)),
            "samples": _opt(c.integer(1)),
        },
        m.Serving: {
            "runtimes": _opt(c.list_of(c.text())),
            "num_steps": _opt(c.integer(0, 100_000)),
            "top_k": _opt(c.integer(1, 100_000)),
            "num_draft_tokens": _opt(c.integer(1, 100_000)),
        },
        m.Statement: {
            "path": _req(c.text()),
            "source": _req(c.choice(m.STATEMENT_SOURCES)),
            "confidence": _req(c.number(0.0, 1.0)),
            "reason": _opt(c.text(nonempty=False)),
        },
        m.Provenance: {
            "tool": _opt(c.text()),
            "tool_version": _opt(c.text()),
            "trainer": _opt(c.text()),
            "trainer_version": _opt(c.text()),
            "date": _opt(c.text()),
            "dialect": _opt(c.text()),
            # A raw id of somebody's config may be negative; its convention stands beside it.
            "ids": _opt(c.list_of(c.integer(-(2**31)))),
            "ids_key": _opt(c.text()),
            "convention": _opt(c.choice(CONVENTIONS)),
            "statements": _opt(c.list_of(_nested(m.Statement))),
        },
        m.Contract: {
            "contract_version": _req(c.text()),
            "name": _req(c.text()),
            "method": _req(c.choice(m.METHODS)),
            "target": _req(_nested(m.Target)),
            "drafter": _req(_nested(m.Drafter)),
            "features": _req(c.list_of(_nested(Feature), at_least=1)),
            "projections": _opt(c.list_of(_nested(m.Projection))),
            "alignment": _opt(_nested(m.Alignment)),
            "recurrent_state": _opt(c.choice(RECURRENT)),
            "norm_before_residual": _opt(c.boolean()),
            "vocab": _opt(_nested(m.Vocab)),
            "rope": _opt(_nested(m.Rope)),
            "probe": _opt(_nested(m.Probe)),
            "quality": _opt(_nested(m.Quality)),
            "serving": _opt(_nested(m.Serving)),
            "provenance": _opt(_nested(m.Provenance)),
        },
    }
    return {cls: _Shape(cls, keys) for cls, keys in table.items()}


def newer_minor(version: str) -> bool:
    """Whether a contract of this version may hold keys that this package does not know."""
    major, minor = (int(part) for part in version.split("."))
    known_major, known_minor = (int(part) for part in m.CONTRACT_VERSION.split("."))
    return major == known_major and minor > known_minor


def _decode_object(value: object, path: str, problems: list[Problem], shape: _Shape) -> Any:
    if not isinstance(value, dict):
        problems.append(Problem(place=path, message=f"expected an object, found {c.describe(value)}"))
        return c.INVALID
    prefix = f"{path}." if path else ""
    known: dict[str, Any] = {}
    extra: dict[str, Any] = {}
    bad = False
    for key, entry in value.items():
        if key not in shape.keys:
            extra[key] = entry
            continue
        check, required = shape.keys[key]
        # null stands for "not stated" wherever a key may be left out.
        if entry is None and not required:
            continue
        decoded = check(entry, f"{prefix}{key}", problems)
        bad = bad or decoded is c.INVALID
        known[key] = decoded
    for key, (_, required) in shape.keys.items():
        if required and key not in value:
            problems.append(Problem(place=f"{prefix}{key}", message="is missing", next_step="add it"))
            bad = True
    if extra and isinstance(problems, _Problems) and problems.refuse_unknown:
        _refuse_extra(extra, prefix, shape, problems)
    if bad:
        return c.INVALID
    return shape.cls(**known, extra=extra)


def _refuse_extra(extra: Mapping[str, Any], prefix: str, shape: _Shape, problems: list[Problem]) -> None:
    for key in list(extra)[:20]:
        close = difflib.get_close_matches(key, shape.keys, n=1)
        hint = f"did you mean {close[0]}?" if close else "remove it"
        problems.append(Problem(place=f"{prefix}{c.describe(key)[1:-1]}", message="unknown key", next_step=hint))


def shape_problems(value: object) -> tuple[Problem, ...]:
    """Return what the JSON Schema also refuses: types, ranges, missing and unknown keys; for 1.0 contracts."""
    problems: list[Problem] = _Problems()
    version = value.get("contract_version") if isinstance(value, dict) else None
    if isinstance(version, str) and version != m.CONTRACT_VERSION:
        problems.append(Problem(place="contract_version", message=f"is not {m.CONTRACT_VERSION}"))
    _decode_object(value, "", problems, _shapes()[m.Contract])
    return tuple(problems)


def contract_from_dict(value: object, *, source: str) -> m.Contract:
    """Decode a contract; raises InputError with every problem, or with ``contract-version`` for another major."""
    version = value.get("contract_version") if isinstance(value, dict) else None
    if isinstance(version, str) and not _VERSION.fullmatch(version):
        raise InputError.single(
            source,
            f"{c.describe(version)} is not a version such as 1.0",
            place="contract_version",
            next_step=f"write {m.CONTRACT_VERSION!r}",
            slug="contract-version",
        )
    if isinstance(version, str) and version.split(".")[0] != m.CONTRACT_VERSION.split(".", maxsplit=1)[0]:
        raise InputError.single(
            source,
            f"contract version {version} is not known; this package reads {m.CONTRACT_VERSION.split('.')[0]}.x",
            place="contract_version",
            next_step="install the featurecontract release that wrote it, or write the contract again with `init`",
            slug="contract-version",
        )
    problems: list[Problem] = _Problems(refuse_unknown=not (isinstance(version, str) and newer_minor(version)))
    contract = _decode_object(value, "", problems, _shapes()[m.Contract])
    if contract is not c.INVALID:
        problems += consistency_problems(contract)
    if problems:
        raise InputError(source, tuple(problems), slug="contract-invalid")
    decoded: m.Contract = contract
    return decoded


def contract_to_dict(instance: Any) -> dict[str, Any]:
    """Return a contract, or a part of it, as JSON values: defaults written out, "not stated" left out."""
    out: dict[str, Any] = dict(getattr(instance, "extra", {}))
    for item in fields(instance):
        if item.name == "extra":
            continue
        value = getattr(instance, item.name)
        if value is not None:
            out[item.name] = _plain(value)
    return out


def _plain(value: Any) -> Any:
    if type(value) in _shapes():
        return contract_to_dict(value)
    if isinstance(value, tuple):
        return [_plain(entry) for entry in value]
    return value
