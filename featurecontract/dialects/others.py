"""Spellings that were seen once: home-made nested keys, xLLM, AMD Quark, NeMo, PARD-2, verl."""

from __future__ import annotations

from typing import TYPE_CHECKING

from featurecontract.contract import Convention, Feature, Wiring
from featurecontract.dialects._family import Candidate, Candidates, Family, Target, from_ids
from featurecontract.dialects._two_readings import both_readings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from featurecontract.dialects._view import DraftConfig

__all__ = ["FAMILIES"]

METHODS = {
    "pard2_target_layers": "pard2",
    "dspark_config.target_layer_ids": "dspark",
    "dflash_config.layer_ids": "dflash",
}


def _places(key: str) -> tuple[str, str]:
    return (key, f"text_config.{key}")


def _one_convention(key: str, convention: Convention, reason: str) -> Candidates:
    def candidates(config: DraftConfig, target: Target) -> Iterator[Candidate]:
        candidate = from_ids(config.ids(*_places(key)), convention, target, reason=reason, confidence=0.8)
        if candidate is not None:
            yield candidate

    return candidates


def _undecided(key: str, dialect: str) -> Candidates:
    def candidates(config: DraftConfig, target: Target) -> Iterator[Candidate]:
        yield from both_readings(config.ids(*_places(key)), target, output_prior=0.5, dialect=dialect)

    return candidates


def _from_the_end(key: str, dialect: str) -> Candidates:
    def candidates(config: DraftConfig, target: Target) -> Iterator[Candidate]:
        """Read negative ids as Python indices into transformers' tuple, whose last entry is norm(h[L])."""
        depth = target.num_hidden_layers
        found = config.ids(*_places(key))
        features = []
        for slot, item in enumerate(found.ids):
            boundary = item if item >= 0 else depth + 1 + item
            if not 0 <= boundary <= depth:
                return
            normed = boundary == depth
            features.append(
                Feature(
                    slot=slot,
                    boundary=boundary,
                    state="final_norm" if normed else "residual",
                    dim=target.hidden_size,
                )
            )
        yield Candidate(
            wiring=Wiring(features=tuple(features)),
            ids=found.ids,
            ids_key=found.key,
            reason=f"{dialect} ids index transformers' hidden_states, negative ones from its end",
            confidence=0.7,
        )

    return candidates


def _family(key: str, name: str, candidates: Candidates, trainer: str) -> Family:
    return Family(
        code="D28",
        name=name,
        method=METHODS.get(key, "eagle3"),
        matches=lambda config: config.ids(*_places(key)).state == "list",
        candidates=candidates,
        trainer=trainer,
    )


FAMILIES = (
    _family(
        "layers_to_capture",
        "xllm-layers-to-capture",
        _one_convention("layers_to_capture", "layer_input", "xLLM uses the ids as they are, before the layer"),
        "xLLM",
    ),
    _family(
        "aux_layer_ids",
        "nemo-aux-layer-ids",
        _one_convention("aux_layer_ids", "layer_output", "NeMo hooks the layer's output (eagle/target.py)"),
        "NeMo Automodel",
    ),
    _family(
        "aux_hidden_states_layers",
        "torchspec-run-ids",
        _one_convention("aux_hidden_states_layers", "layer_output", "TorchSpec counts layer outputs"),
        "TorchSpec",
    ),
    _family(
        "target_hidden_layer_ids",
        "verl-speco",
        _one_convention("target_hidden_layer_ids", "layer_output", "verl-SpeCo takes hidden_states[id + 1]"),
        "verl-SpeCo",
    ),
    _family("aux_hidden_layers", "quark-negative-ids", _from_the_end("aux_hidden_layers", "AMD Quark"), "AMD Quark"),
    _family("pard2_target_layers", "pard2", _from_the_end("pard2_target_layers", "PARD-2"), "PARD-2"),
    _family(
        "eagle_config.aux_hidden_state_layer_ids",
        "home-made-nested",
        _undecided("eagle_config.aux_hidden_state_layer_ids", "home-made"),
        "",
    ),
    _family("eagle_config.layer_ids", "vllm-nested-layer-ids", _undecided("eagle_config.layer_ids", "home-made"), ""),
    _family(
        "dflash_config.layer_ids", "vllm-nested-dflash-ids", _undecided("dflash_config.layer_ids", "home-made"), ""
    ),
    _family(
        "dspark_config.target_layer_ids",
        "dspark-nested",
        _one_convention("dspark_config.target_layer_ids", "layer_output", "DSpark ids count layer outputs"),
        "DSpark",
    ),
)
