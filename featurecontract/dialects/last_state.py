"""Drafters that read one last state: EAGLE-1/2, MTP, MLP speculators, Medusa."""

from __future__ import annotations

from typing import TYPE_CHECKING

from featurecontract.dialects._family import Candidate, Family, Target, final_state, with_embedding_slot

if TYPE_CHECKING:
    from collections.abc import Iterator

    from featurecontract.dialects._view import DraftConfig

__all__ = ["EARLY_FAMILIES", "LATE_FAMILIES"]

NORMED = "the feature is the last state after the final norm (SafeAILab/EAGLE#91)"


def _eagle1(_config: DraftConfig, target: Target) -> Iterator[Candidate]:
    yield with_embedding_slot(target, normed=True, reason=NORMED, confidence=0.9)


def _mtp(config: DraftConfig, target: Target) -> Iterator[Candidate]:
    # speculators records h[L] before the norm, vLLM's MTP feeds it after; engines disagree about the rest.
    pre = 0.6 if config.speculators_type else 0.4
    before = with_embedding_slot(
        target, normed=False, reason="the last state before the final norm, as speculators records it", confidence=pre
    )
    after = with_embedding_slot(
        target, normed=True, reason="the last state after the final norm, as most engines feed it", confidence=1 - pre
    )
    yield from sorted((before, after), key=lambda item: -item.confidence)


def _mlp(_config: DraftConfig, target: Target) -> Iterator[Candidate]:
    yield final_state(
        target, normed=True, reason="the last state after the final norm, as vLLM feeds it", confidence=0.6
    )
    yield final_state(
        target, normed=False, reason="the config does not say whether the norm is applied", confidence=0.4
    )


def _medusa(_config: DraftConfig, target: Target) -> Iterator[Candidate]:
    yield final_state(
        target, normed=True, reason="Medusa reads the base model's output, after its final norm", confidence=0.9
    )


def _plain_eagle(config: DraftConfig) -> bool:
    return (
        config.architecture
        in (
            "LlamaForCausalLM",
            "LlamaForCausalLMEagle",
            "MixtralForCausalLM",
            "EagleLlamaForCausalLM",
            "EagleSpeculator",
        )
        and config.body("num_hidden_layers") == 1
        and not config.has("draft_vocab_size")
        and not config.has("eagle_config")
        and not config.listed()
    )


EARLY_FAMILIES = (
    Family(
        code="D26",
        name="medusa",
        method="medusa",
        matches=lambda config: config.has("medusa_num_heads") or config.architecture == "MedusaModel",
        candidates=_medusa,
        trainer="Medusa",
    ),
    Family(
        code="D25",
        name="mlp-speculator",
        method="mlp_speculator",
        matches=lambda config: (
            config.model_type == "mlp_speculator"
            or config.architecture == "MLPSpeculatorPreTrainedModel"
            or config.speculators_type == "mlp_speculator"
        ),
        candidates=_mlp,
        trainer="IBM fms-fsdp",
    ),
    Family(
        code="D24",
        name="mtp",
        method="mtp",
        matches=lambda config: config.architecture == "MTPDraftModel" or config.speculators_type == "mtp",
        candidates=_mtp,
        trainer="speculators",
    ),
    Family(
        code="D2",
        name="vllm-eagle-wrapper",
        method="eagle",
        matches=lambda config: config.model_type == "eagle" and isinstance(config.get("model"), dict),
        candidates=_eagle1,
        trainer="EAGLE",
    ),
)

LATE_FAMILIES = (
    Family(
        code="D24",
        name="mtp-native",
        method="mtp",
        matches=lambda config: bool(
            (config.body("num_nextn_predict_layers") or config.body("mtp_num_hidden_layers"))
            and not config.listed()
            and not config.has("draft_vocab_size")
        ),
        candidates=_mtp,
        trainer="the target's own",
    ),
    Family(
        code="D1",
        name="eagle1",
        method="eagle",
        matches=_plain_eagle,
        candidates=_eagle1,
        trainer="EAGLE",
    ),
)
