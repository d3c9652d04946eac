"""EAGLE-3 drafters whose config holds no ids: the reference, SpecForge's templates, AngelSlim, TorchSpec, P-EAGLE."""

from __future__ import annotations

from typing import TYPE_CHECKING

from featurecontract.dialects._family import Candidate, Candidates, Family, Target, default_candidate
from featurecontract.dialects._two_readings import both_readings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from featurecontract.dialects._view import DraftConfig

__all__ = ["FAMILIES"]

EAGLE3_ARCHITECTURES = ("LlamaForCausalLMEagle3", "MiniCPMForCausalLMEagle3", "LlamaEagle3DraftModel")
BAND_KEYS = ("aux_hidden_states_layer_ids", "text_config.aux_hidden_states_layer_ids")
PARALLEL_KEYS = ("ptd_token_id", "pard_token", "mask_hidden")


def _drafts_eagle3(config: DraftConfig) -> bool:
    return config.architecture in EAGLE3_ARCHITECTURES or (
        config.has("draft_vocab_size") and not config.speculators_type and not config.listed()
    )


def _only_default(reason: str, confidence: float = 0.9) -> Candidates:
    def candidates(_config: DraftConfig, target: Target) -> Iterator[Candidate]:
        found = default_candidate(target, reason=reason, confidence=confidence)
        if found is not None:
            yield found

    return candidates


def _p_eagle(config: DraftConfig) -> bool:
    return (
        config.architecture.startswith("PEagle")
        or config.model_type == "llama_peagle"
        or config.speculators_type == "peagle"
        or (
            config.has("draft_vocab_size")
            and (config.flag("parallel_drafting") is True or any(config.has(key) for key in PARALLEL_KEYS))
        )
    )


def _p_eagle_candidates(config: DraftConfig, target: Target) -> Iterator[Candidate]:
    found = config.ids("eagle_aux_hidden_state_layer_ids", "eagle_config.eagle_aux_hidden_state_layer_ids")
    if found.state == "list":
        prior = 0.1 if config.speculators_type else 0.5
        yield from both_readings(found, target, output_prior=prior, dialect="P-EAGLE")
        return
    default = default_candidate(target, reason="P-EAGLE trains on EAGLE-3's default planes", confidence=0.85)
    if default is not None:
        yield default


def _angelslim(config: DraftConfig) -> bool:
    return (
        config.architecture.endswith("Eagle3LlamaForCausalLM")
        or config.has("target_model_type")
        or config.has("modal_type")
        or config.ids(*BAND_KEYS).state == "list"
    ) and config.architecture != "DFlashDraftModel"


def _angelslim_candidates(config: DraftConfig, target: Target) -> Iterator[Candidate]:
    found = config.ids(*BAND_KEYS)
    if found.state == "list":
        # AngelSlim's own wrapper takes hidden_states[id + 1] (train/models/target/target_model_wrapper.py, 0.5.0).
        yield from both_readings(found, target, output_prior=SURE_OUTPUT, dialect="AngelSlim")
        return
    default = default_candidate(
        target, reason="AngelSlim's default [1, L//2-1, L-4] counts layer outputs", confidence=0.9
    )
    if default is not None:
        yield default


SURE_OUTPUT = 0.9

FAMILIES = (
    Family(
        code="D27",
        name="p-eagle",
        method="p_eagle",
        matches=_p_eagle,
        candidates=_p_eagle_candidates,
        trainer="P-EAGLE",
    ),
    Family(
        code="D11",
        name="angelslim-flat",
        method="eagle3",
        matches=_angelslim,
        candidates=_angelslim_candidates,
        trainer="AngelSlim",
    ),
    Family(
        code="D4",
        name="eagle3-target-hidden-size",
        method="eagle3",
        matches=lambda config: _drafts_eagle3(config) and config.has("target_hidden_size") and not config.listed(),
        candidates=_only_default("the EAGLE-3 reference captures before layers 2, L//2 and L-3"),
        trainer="EAGLE",
    ),
    Family(
        code="D12",
        name="torchspec-flat",
        method="eagle3",
        matches=lambda config: (
            config.architecture in EAGLE3_ARCHITECTURES
            and not config.has("draft_vocab_size")
            and not config.has("eagle_config")
            and not config.listed()
        ),
        candidates=_only_default("TorchSpec's default [1, L//2-1, L-4] counts layer outputs", 0.85),
        trainer="TorchSpec",
    ),
    Family(
        code="D6",
        name="specforge-flat",
        method="eagle3",
        matches=lambda config: (
            config.architecture in EAGLE3_ARCHITECTURES and not config.has("eagle_config") and not config.listed()
        ),
        candidates=_only_default("SpecForge's default [1, L//2-1, L-4] counts layer outputs", 0.9),
        trainer="SpecForge",
    ),
    Family(
        code="D3",
        name="eagle3-reference",
        method="eagle3",
        matches=lambda config: (
            config.has("draft_vocab_size")
            and not config.has("eagle_config")
            and not config.speculators_type
            and not config.listed()
        ),
        candidates=_only_default("the EAGLE-3 reference captures before layers 2, L//2 and L-3"),
        trainer="EAGLE",
    ),
)
