"""Rotary embedding of the drafter: the config's in any spelling, or the library's default, against the contract's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from featurecontract.findings import Finding, finding

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from featurecontract.contract import Contract
    from featurecontract.dialects import DraftConfig
    from featurecontract.gate._inputs import Inputs

__all__ = ["rope_findings", "rope_of"]

# What transformers takes where a config states no rope_theta, and the model types whose default that is.
DEFAULT_THETA = 10000.0
_DEFAULT_TYPES = (
    *("llama", "mistral", "minicpm", "minicpm3", "phi3", "gemma", "gemma2", "olmo2"),
    *("qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "deepseek_v2", "deepseek_v3", "kimi_k2"),
)
# Keys of a scaling that say what it is, not how much: compared by themselves or not at all.
_NOT_PARAMETERS = ("type", "rope_type", "rope_theta", "partial_rotary_factor")
_PARAMETER_DEFAULTS = {"beta_fast": 32, "beta_slow": 1}


def rope_of(inputs: Inputs) -> dict[str, Any]:
    """Return theta, scaling and type as the config states them, in any of the three spellings."""
    config = inputs.recognition.config
    scaling, place = config.body("rope_scaling"), _place(config)
    theta = config.body("rope_theta") or place.get("rope_theta")
    kind = place.get("rope_type") or place.get("type")
    out: dict[str, Any] = {}
    if isinstance(theta, (int, float)) and not isinstance(theta, bool):
        out["theta"] = float(theta)
    if isinstance(kind, str):
        out["type"] = kind
    if isinstance(scaling, dict):
        out["scaling"] = scaling
    elif _normal(place)[0] != "default":
        out["scaling"] = {key: value for key, value in place.items() if key != "rope_theta"}
    return out


def rope_findings(inputs: Inputs, contract: Contract) -> Iterator[Finding]:
    """Yield what the drafter would be served with and was not trained with."""
    rope = contract.rope
    if rope is None:
        return
    config = inputs.recognition.config
    actual = rope_of(inputs)
    if rope.theta is not None:
        yield from _theta(config, rope.theta, actual.get("theta"))
    stated = actual.get("scaling") or _place(config)
    given = _normal(stated)
    longest = config.body("max_position_embeddings")
    lengths = [item for item in (longest, rope.max_position_embeddings) if isinstance(item, int)]
    if rope.scaling is not None and not _same(_normal(rope.scaling), given, lengths):
        yield _difference("scaling", dict(rope.scaling), dict(stated) or None)
    elif rope.type is not None and _kind(rope.type) != given[0]:
        yield _difference("type", rope.type, actual.get("type"))
    if rope.max_position_embeddings is not None and type(longest) is int and longest != rope.max_position_embeddings:
        shorter = longest < rope.max_position_embeddings
        yield _difference(
            "max_position_embeddings", rope.max_position_embeddings, longest, severity="note" if shorter else "error"
        )


def _place(config: DraftConfig) -> Mapping[str, Any]:
    """Return where the config describes its rope: ``rope_parameters``, possibly by attention type, or the scaling."""
    for key in ("rope_parameters", "rope_scaling"):
        found = config.body(key)
        if isinstance(found, dict):
            inner = found.get("full_attention")
            return inner if isinstance(inner, dict) else found
    return {}


def _theta(config: DraftConfig, wanted: float, given: float | None) -> Iterator[Finding]:
    if given is not None:
        if given != wanted:
            yield _difference("theta", wanted, given)
        return
    if wanted == DEFAULT_THETA:
        return
    model_type = config.body("model_type")
    known = not isinstance(model_type, str) or model_type in _DEFAULT_TYPES
    stands_in = f"{DEFAULT_THETA:g} stands in" if known else f"the default of {model_type[:60]} stands in"
    yield finding(
        "rope",
        f"the config states no rope_theta, so {stands_in}; the drafter was trained with {wanted:g}",
        severity="error" if known else "warning",
        expected={"theta": wanted},
        actual={"theta": DEFAULT_THETA if known else None},
        details={"key": "theta"},
        next_step=f'write "rope_theta": {wanted} in config.json, or correct the contract',
    )


def _kind(text: object) -> str:
    return text if isinstance(text, str) and text != "mrope" else "default"


def _normal(scaling: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the kind and the parameters of a scaling, however they are spelled; absent is ``default``."""
    kind = _kind(scaling.get("rope_type") or scaling.get("type"))
    return kind, {key: value for key, value in scaling.items() if key not in _NOT_PARAMETERS and value is not None}


def _same(first: tuple[str, dict[str, Any]], second: tuple[str, dict[str, Any]], lengths: list[int]) -> bool:
    """Whether two scalings are one; a parameter that only one states may be its default."""
    if first[0] != second[0]:
        return False
    for key in first[1].keys() | second[1].keys():
        values = [item[key] for item in (first[1], second[1]) if key in item]
        if len(values) == 2:  # noqa: PLR2004
            if values[0] != values[1]:
                return False
        elif key == "original_max_position_embeddings":
            if values[0] not in lengths and first[0] != "default":
                return False
        elif values[0] != _PARAMETER_DEFAULTS.get(key):
            return False
    return True


def _difference(key: str, wanted: Any, given: Any, *, severity: Any = "error") -> Finding:
    return finding(
        "rope",
        f"{key} is {given} in the config, the drafter was trained with {wanted}",
        severity=severity,
        expected={key: wanted},
        actual={key: given},
        details={"key": key},
        next_step=f"write {key} {wanted} in config.json, or correct the contract",
    )
