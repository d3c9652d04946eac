"""DFlash, DSpark and DeepSpec: ids count layer outputs, and -1 is the embedding in DeepSpec's."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from featurecontract.dialects._family import Candidate, Candidates, Family, Target, from_ids, spaced_layer_ids
from featurecontract.dialects._view import IdsAt

if TYPE_CHECKING:
    from collections.abc import Iterator

    from featurecontract.dialects._view import DraftConfig

__all__ = ["FAMILIES"]

NESTED = ("dflash_config.target_layer_ids", "text_config.dflash_config.target_layer_ids")
TOP = ("target_layer_ids", "text_config.target_layer_ids")
NATIVE = ("dspark_target_layer_ids", "text_config.dspark_target_layer_ids")
REFERENCE = "z-lab's reference and SpecForge take hidden_states[id + 1]"
# DeepSeek-V4 has 4.
MAX_STREAMS = 64
BLOCK_ARCHITECTURES = ("DFlashDraftModel", "DFlash2DraftModel", "QwenDFlashDraftModel", "DFlareDraftModel")


def _output(*keys: str, reason: str, confidence: float = 0.95) -> Candidates:
    def candidates(config: DraftConfig, target: Target) -> Iterator[Candidate]:
        found = config.ids(*keys)
        if found.state != "list":
            layers = config.integer("num_hidden_layers") or 1
            if layers > target.num_hidden_layers:
                return
            found = IdsAt("default", "list", spaced_layer_ids(layers, target.num_hidden_layers))
            spaced = from_ids(
                found, "layer_output", target, reason="no ids: spaced over the target by draft depth", confidence=0.6
            )
            # A default is no list of the config's.
            candidate = replace(spaced, ids=None, ids_key="", convention=None) if spaced else None
        else:
            candidate = from_ids(found, "layer_output", target, reason=reason, confidence=confidence)
        if candidate is not None:
            yield candidate

    return candidates


def _native(config: DraftConfig, target: Target) -> Iterator[Candidate]:
    streams = config.integer("hc_mult") or target.streams
    many = Target(
        num_hidden_layers=target.num_hidden_layers,
        hidden_size=target.hidden_size,
        streams=streams if streams <= MAX_STREAMS else target.streams,
    )
    candidate = from_ids(
        config.ids(*NATIVE),
        "layer_output",
        many,
        reason="captured after the layer and averaged over the streams (tokenspeed deepseek_v4.py)",
        confidence=0.85,
        reduction="mean" if many.streams > 1 else "none",
    )
    if candidate is not None:
        yield candidate


def _dspark(config: DraftConfig) -> str:
    # DeepSpec names plain DFlash drafters DSpark as well; only the Markov head tells them apart.
    return "dspark" if config.get("markov_rank") else "dflash"


FAMILIES = (
    Family(
        code="D23",
        name="dspark-native",
        method="dspark",
        matches=lambda config: config.ids(*NATIVE).state == "list",
        candidates=_native,
        trainer="DeepSeek",
    ),
    Family(
        code="D21",
        name="specforge-dspark",
        method="dspark",
        matches=lambda config: (
            config.architecture in ("DSparkDraftModel", "DominoDraftModel", "K3DSparkModel", "KimiK3DSparkForCausalLM")
            or config.has("dflash_config.projector_type")
        ),
        candidates=_output(*NESTED, *TOP, reason=REFERENCE),
        trainer="SpecForge",
    ),
    Family(
        code="D20",
        name="deepspec-dspark",
        method=_dspark,
        matches=lambda config: config.architecture.endswith(("DSparkModel", "DFlyModel")),
        candidates=_output(*TOP, *NESTED, reason="DeepSpec takes hidden_states[id + 1], and id -1 is the embedding"),
        trainer="DeepSpec",
    ),
    Family(
        code="D16",
        name="deepspec-eagle3",
        method="eagle3",
        matches=lambda config: config.architecture.endswith("Eagle3Model"),
        candidates=_output(*TOP, reason="DeepSpec takes hidden_states[id + 1], and id -1 is the embedding"),
        trainer="DeepSpec",
    ),
    Family(
        code="D18",
        name="zlab-dflash-2026",
        method="dflash",
        matches=lambda config: (
            (config.ids(*NESTED).state != "absent" or config.architecture in BLOCK_ARCHITECTURES)
            and config.has("dflash_config.block_size")
        ),
        candidates=_output(*NESTED, reason=REFERENCE),
        trainer="z-lab",
    ),
    Family(
        code="D17",
        name="zlab-dflash",
        method="dflash",
        matches=lambda config: config.ids(*NESTED).state != "absent",
        candidates=_output(*NESTED, reason=REFERENCE),
        trainer="z-lab or SpecForge",
    ),
    Family(
        code="D19",
        name="flat-dflash",
        method="dflash",
        matches=lambda config: (
            config.architecture in BLOCK_ARCHITECTURES
            or config.model_type == "dflash"
            or config.ids(*TOP).state == "list"
        ),
        candidates=_output(
            *TOP, reason="flat DFlash ids count layer outputs in TorchSpec and AngelSpec", confidence=0.8
        ),
        trainer="TorchSpec or AngelSpec",
    ),
)
