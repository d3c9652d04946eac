"""Ids in ``eagle_config``: SpecForge and its forks, EAGLE-3.1, the MLA drafters, and flat copies of the same list."""

from __future__ import annotations

from typing import TYPE_CHECKING

from featurecontract.dialects._family import Candidate, Family, Target, default_candidate, final_state, from_ids
from featurecontract.dialects._two_readings import both_readings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from featurecontract.dialects._view import DraftConfig

__all__ = ["FAMILIES", "MLA_ARCHITECTURES", "NESTED", "USE_AUX", "nested_candidates"]

NESTED = "eagle_config.eagle_aux_hidden_state_layer_ids"
USE_AUX = ("eagle_config.use_aux_hidden_state", "text_config.eagle_config.use_aux_hidden_state")
FLAT = "eagle_aux_hidden_state_layer_ids"
MLA_ARCHITECTURES = ("Eagle3DeepseekV2ForCausalLM", "Eagle3DeepseekV3ForCausalLM")


def nested_candidates(
    config: DraftConfig, target: Target, *, dialect: str, output_prior: float, ascending: bool = False
) -> Iterator[Candidate]:
    """Yield the readings of ``eagle_config``: one last state, a list of ids, or the trainer's default."""
    if config.any_flag(*USE_AUX) is False:
        yield final_state(
            target,
            normed=True,
            reason="use_aux_hidden_state is false: one state, after the final norm (sgl-project/sglang#32334)",
            confidence=0.9,
        )
        return
    found = config.ids(NESTED, f"text_config.{NESTED}", FLAT)
    flat = config.ids(FLAT)
    if found.state == "list" and found.key != FLAT and flat.ids == tuple(item + 1 for item in found.ids):
        both = from_ids(
            found,
            "layer_output",
            target,
            reason="the flat key names the same planes as layer inputs: spelled for SGLang and vLLM alike",
            confidence=0.95,
            ascending=ascending,
        )
        if both is not None:
            yield both
            return
    if found.state == "list":
        yield from both_readings(found, target, output_prior=output_prior, dialect=dialect, ascending=ascending)
        return
    default = default_candidate(
        target, reason=f"no ids: {dialect}'s default [1, L//2-1, L-4] counts layer outputs", confidence=0.85
    )
    if default is not None:
        yield default


def _specforge(config: DraftConfig, target: Target) -> Iterator[Candidate]:
    yield from nested_candidates(config, target, dialect="SpecForge", output_prior=0.8)


def _mla(config: DraftConfig, target: Target) -> Iterator[Candidate]:
    # The one published truth has first id 2 and counts layer inputs (sgl-project/sglang#25454).
    yield from nested_candidates(config, target, dialect="the MLA drafters'", output_prior=0.6)


def _flat(config: DraftConfig, target: Target) -> Iterator[Candidate]:
    found = config.ids(FLAT, f"text_config.{FLAT}")
    # The flat key is vLLM's and speculators' own, and both count completed layers.
    yield from both_readings(found, target, output_prior=0.3, dialect="flat")


def _eagle31(config: DraftConfig) -> bool:
    return bool(config.flag("fc_norm") or config.flag("use_aux_norm") or config.flag("norm_output"))


def _nested(config: DraftConfig) -> bool:
    return config.has("eagle_config") or config.has("text_config.eagle_config")


FAMILIES = (
    Family(
        code="D8",
        name="mla-eagle3",
        method="eagle3",
        matches=lambda config: config.architecture in MLA_ARCHITECTURES,
        candidates=_mla,
        trainer="TorchSpec or ModelOpt",
    ),
    Family(
        code="D7",
        name="eagle3.1",
        method="eagle3",
        matches=lambda config: (
            _eagle31(config)
            and not config.speculators_type
            and not config.architecture.startswith(("DFlash", "DSpark", "Domino"))
        ),
        candidates=_specforge,
        trainer="SpecForge or TorchSpec",
        # SpecForge feeds the un-normed state back whatever norm_output says (modeling/draft/llama3_eagle.py, 0.2.0);
        # other trainers mean post-norm by the same key, so the file alone does not settle it.
        recurrent=lambda config: "unknown" if config.flag("norm_output") else "pre_norm",
    ),
    Family(
        code="D5",
        name="specforge-nested",
        method="eagle3",
        matches=_nested,
        candidates=_specforge,
        trainer="SpecForge",
        recurrent=lambda _config: "pre_norm",
    ),
    Family(
        code="D28",
        name="flat-eagle3-ids",
        method="eagle3",
        matches=lambda config: config.ids(FLAT, f"text_config.{FLAT}").state == "list" and not config.speculators_type,
        candidates=_flat,
    ),
)
