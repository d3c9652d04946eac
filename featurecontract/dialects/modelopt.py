"""NVIDIA ModelOpt's exports: ``eagle_config`` with its five flags; the order of the ids is not the order of planes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from featurecontract.dialects._family import Candidate, Family, Target
from featurecontract.dialects.specforge import NESTED, USE_AUX, nested_candidates

if TYPE_CHECKING:
    from collections.abc import Iterator

    from featurecontract.dialects._view import DraftConfig

__all__ = ["FAMILIES"]

FLAGS = (
    "use_input_layernorm_in_first_layer",
    "use_last_layernorm",
    "use_mtp_layernorm",
    "next_layer_regular",
    "parallel_draft_step",
    "parallel_draft_heads_num_layers",
)


def _modelopt(config: DraftConfig) -> bool:
    return any(config.has(f"eagle_config.{flag}") for flag in FLAGS) or config.has("num_eagle_features")


def _candidates(config: DraftConfig, target: Target) -> Iterator[Candidate]:
    # Forward hooks fire in layer order, so training concatenated ascending whatever list was exported;
    # Megatron exports went through list(set(...)) and are unsorted (nvidia-modelopt 0.47.0, plugins/hf_eagle.py).
    ids = config.ids(NESTED).ids
    yield from nested_candidates(
        config, target, dialect="ModelOpt", output_prior=0.85, ascending=list(ids) != sorted(ids)
    )


FAMILIES = (
    Family(
        code="D10",
        name="modelopt-no-aux",
        method="eagle3",
        matches=lambda config: config.any_flag(*USE_AUX) is False,
        candidates=_candidates,
        trainer="ModelOpt",
        recurrent=lambda _config: "unknown",
    ),
    Family(
        code="D9",
        name="modelopt-nested",
        method="eagle3",
        matches=lambda config: _modelopt(config) and config.architecture != "DFlashDraftModel",
        candidates=_candidates,
        trainer="ModelOpt",
        recurrent=lambda _config: "pre_norm",
    ),
)
