"""The speculators library (vllm-project): ids count completed layers; releases 0.3 and 0.4 recorded one block late."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from featurecontract.dialects._family import Candidate, Family, Target, default_candidate, from_ids
from featurecontract.dialects._two_readings import both_readings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from featurecontract.dialects._view import DraftConfig

__all__ = ["FAMILIES"]

EAGLE_KEY = "eagle_aux_hidden_state_layer_ids"
DFLASH_KEY = "aux_hidden_state_layer_ids"
BLOCK_TYPES = ("dflash", "dflash2", "dspark", "xpress")


def _version(config: DraftConfig) -> tuple[int, int] | None:
    found = re.match(r"(\d{1,4})\.(\d{1,4})", str(config.get("speculators_version") or "")[:40])
    return (int(found[1]), int(found[2])) if found else None


def _is_eagle3(config: DraftConfig) -> bool:
    named = config.architecture in ("Eagle3Speculator", "Eagle3DraftModel")
    return named or config.speculators_type == "eagle3"


def _old(config: DraftConfig, target: Target) -> Iterator[Candidate]:
    version = _version(config)
    if version is not None and (0, 3) <= version < (0, 5):
        late = default_candidate(
            target,
            offset=1,
            reason="speculators 0.3 and 0.4 recorded [2, L//2, L-3] after the layer (data_generation/custom_worker.py)",
            confidence=0.5,
        )
        usual = default_candidate(target, reason="the default h[2], h[L//2], h[L-3]", confidence=0.5)
        yield from (item for item in (late, usual) if item is not None)
        return
    default = default_candidate(
        target, reason="no ids: speculators' default [2, L//2, L-3] counts completed layers", confidence=0.9
    )
    if default is not None:
        yield default


def _new(config: DraftConfig, target: Target) -> Iterator[Candidate]:
    found = config.ids(EAGLE_KEY)
    if found.state == "list":
        candidate = from_ids(
            found,
            "layer_input",
            target,
            reason="speculators ids count completed layers, as vLLM's do (models/utils.py, 0.9.0)",
            confidence=0.95,
        )
        if candidate is not None:
            yield candidate
        return
    yield from _old(config, target)


def _converted(config: DraftConfig, target: Target) -> Iterator[Candidate]:
    # The converter copies a ModelOpt list, which counts layer outputs, into a key that vLLM reads as inputs.
    yield from both_readings(config.ids(EAGLE_KEY), target, output_prior=0.6, dialect="converted")


def _block(config: DraftConfig, target: Target) -> Iterator[Candidate]:
    found = config.ids(DFLASH_KEY, f"text_config.{DFLASH_KEY}")
    if found.state != "list":
        # This format requires the ids: it has no default that could stand in for null or [].
        return
    candidate = from_ids(
        found,
        "layer_input",
        target,
        reason="speculators' DFlash ids count completed layers: z-lab's id + 1 (convert/dflash/converter.py, 0.9.0)",
        confidence=0.95,
    )
    if candidate is not None:
        yield candidate


FAMILIES = (
    Family(
        code="D22",
        name="speculators-dflash",
        method=lambda config: "dspark" if "dspark" in config.speculators_type else "dflash",
        matches=lambda config: (
            config.speculators_type in BLOCK_TYPES
            or config.ids(DFLASH_KEY, f"text_config.{DFLASH_KEY}").state in ("list", "empty")
        ),
        candidates=_block,
        trainer="speculators",
    ),
    Family(
        code="D15",
        name="speculators-converted",
        method="eagle3",
        matches=lambda config: config.architecture == "Eagle3Speculator" and config.ids_at[EAGLE_KEY].state == "list",
        candidates=_converted,
        trainer="ModelOpt, converted by speculators",
    ),
    Family(
        code="D14",
        name="speculators-0.5",
        method="eagle3",
        matches=lambda config: (
            _is_eagle3(config)
            and (config.architecture == "Eagle3DraftModel" or config.ids_at[EAGLE_KEY].state != "absent")
        ),
        candidates=_new,
        trainer="speculators",
        recurrent=lambda config: "post_norm" if config.flag("norm_output") else "pre_norm",
    ),
    Family(
        code="D13",
        name="speculators-0.4",
        method="eagle3",
        matches=_is_eagle3,
        candidates=_old,
        trainer="speculators",
        recurrent=lambda _config: "pre_norm",
    ),
)
