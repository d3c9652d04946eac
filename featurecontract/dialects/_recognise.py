"""config.json -> dialect and candidates; nothing here picks one when several fit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from featurecontract.dialects import dflash, eagle3, last_state, modelopt, others, specforge, speculators
from featurecontract.dialects._view import DraftConfig, IdsAt
from featurecontract.dialects.specforge import USE_AUX
from featurecontract.errors import UsageError
from featurecontract.findings import Finding, finding

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from featurecontract.dialects._family import Candidate, Family, Target

__all__ = ["FAMILIES", "Recognition", "dialect_named", "recognise"]

_BY_CODE = {
    family.code: family
    for family in (*dflash.FAMILIES, *modelopt.FAMILIES, *specforge.FAMILIES, *speculators.FAMILIES, *eagle3.FAMILIES)
}

# From the most telling mark to the least: a speculators key before an architecture string that two formats share.
FAMILIES: tuple[Family, ...] = (
    *last_state.EARLY_FAMILIES,
    _BY_CODE["D22"],
    *(_BY_CODE[code] for code in ("D23", "D21", "D20", "D16")),
    _BY_CODE["D27"],
    *(_BY_CODE[code] for code in ("D7", "D8", "D10", "D9")),
    *(_BY_CODE[code] for code in ("D15", "D14", "D13")),
    *others.FAMILIES,
    *(_BY_CODE[code] for code in ("D5", "D28")),
    *(_BY_CODE[code] for code in ("D18", "D17", "D19")),
    *(_BY_CODE[code] for code in ("D11", "D4", "D12", "D6", "D3")),
    *last_state.LATE_FAMILIES,
)

# Keys that one trainer writes with one meaning: two different lists under them contradict each other.
_SAME_MEANING = (
    (
        "eagle_config.eagle_aux_hidden_state_layer_ids",
        "eagle_aux_hidden_state_layer_ids",
        "text_config.eagle_config.eagle_aux_hidden_state_layer_ids",
        "text_config.eagle_aux_hidden_state_layer_ids",
    ),
    (
        "dflash_config.target_layer_ids",
        "target_layer_ids",
        "text_config.dflash_config.target_layer_ids",
        "text_config.target_layer_ids",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Recognition:
    """What a config says: its dialect, the readings it leaves open, and what is wrong with it.

    ``dialect`` is None when no family knows the file; ``candidates`` is empty when no reading fits the target.
    """

    config: DraftConfig
    family: Family | None
    method: str
    candidates: tuple[Candidate, ...]
    findings: tuple[Finding, ...]

    @property
    def dialect(self) -> str:
        """Stable name of the dialect, such as ``specforge-nested``; empty when unknown."""
        return self.family.name if self.family else ""

    @property
    def code(self) -> str:
        """Family code D1..D28; empty when unknown."""
        return self.family.code if self.family else ""

    @property
    def recurrent_state(self) -> str:
        """The recurrent state by the dialect's rule; ``norm_output`` alone never decides it."""
        if self.family is None or self.method not in ("eagle3", "p_eagle"):
            return "unknown"
        if self.family.recurrent is not None:
            return self.family.recurrent(self.config)
        return "unknown" if self.config.flag("norm_output") else "pre_norm"


def dialect_named(name: str) -> Family:
    """Return the dialect of a name or code; raises UsageError with the valid ones."""
    for family in FAMILIES:
        if name in (family.name, family.code):
            return family
    raise UsageError(f"unknown dialect {name!r}; known: {', '.join(family.name for family in FAMILIES)}")


def recognise(
    config: Mapping[str, Any], target: Target, *, source: str = "config.json", dialect: str | None = None
) -> Recognition:
    """Recognise a drafter's config for a target.

    Raises InputError where a value cannot be what its key says, UsageError for an unknown ``dialect``.
    """
    view = DraftConfig(config, source=source)
    family = dialect_named(dialect) if dialect else next((item for item in FAMILIES if item.matches(view)), None)
    candidates = tuple(family.candidates(view, target)) if family else ()
    return Recognition(
        config=view,
        family=family,
        method=family.method_of(view) if family else "other",
        candidates=candidates,
        findings=tuple(_static_findings(view, family, candidates, target)),
    )


def _static_findings(
    view: DraftConfig, family: Family | None, candidates: tuple[Candidate, ...], target: Target
) -> Iterator[Finding]:
    if family is None:
        yield finding(
            "features-missing",
            f"{view.source}: no known dialect; architectures {list(view.architectures[:3])}, "
            f"model_type {view.model_type[:60]!r}",
            next_step="state the features: `featurecontract init CKPT --target T --features 2,18,33`",
        )
        return
    yield from _conflicts(view)
    listed = view.listed()
    if not candidates and listed:
        yield _out_of_range(listed[0], target)
    elif not candidates:
        yield finding(
            "features-missing",
            f"{view.source}: {family.name} states no ids, its default does not fit {target.num_hidden_layers} layers",
            next_step="state the features: `featurecontract init CKPT --target T --features ...`",
        )
    if candidates and listed and all(item.ids is None for item in candidates) and view.any_flag(*USE_AUX) is not False:
        yield finding(
            "ids-ambiguous",
            f"{view.source}: {listed[0].key} is {list(listed[0].ids)}, which {family.name} does not read",
            actual=list(listed[0].ids),
            next_step="state the features with `featurecontract init --features ...`, or name the --dialect",
        )
    for found in listed:
        repeated = sorted({item for item in found.ids if found.ids.count(item) > 1})
        if repeated:
            yield finding(
                "ids-duplicate",
                f"{view.source}: {found.key} lists {repeated[0]} {found.ids.count(repeated[0])} times",
                actual=list(found.ids),
                next_step="runtimes collapse duplicates; list each layer once",
            )


def _conflicts(view: DraftConfig) -> Iterator[Finding]:
    for keys in _SAME_MEANING:
        stated = [view.ids_at[key] for key in keys if view.ids_at[key].state == "list"]
        for other in stated[1:]:
            if other.ids != stated[0].ids and not _spelled_for_both(stated[0], other):
                yield finding(
                    "ids-conflict",
                    f"{view.source}: {stated[0].key} is {list(stated[0].ids)}, {other.key} is {list(other.ids)}",
                    expected=list(stated[0].ids),
                    actual=list(other.ids),
                    next_step="keep the list that the drafter was trained with; to serve it by SGLang and vLLM alike, "
                    "make the flat list the nested one plus one",
                )
    eagle = next((view.ids_at[key] for key in _SAME_MEANING[0] if view.ids_at[key].state == "list"), None)
    block = next((view.ids_at[key] for key in _SAME_MEANING[1] if view.ids_at[key].state == "list"), None)
    if eagle and block and eagle.ids not in (block.ids, tuple(item + 1 for item in block.ids)):
        yield finding(
            "ids-conflict",
            f"{view.source}: {block.key} {list(block.ids)} and {eagle.key} {list(eagle.ids)} name different layers "
            "in either convention",
            expected=list(block.ids),
            actual=list(eagle.ids),
            next_step="keep one of them, or make the second the first plus one",
        )


def _spelled_for_both(nested: IdsAt, flat: IdsAt) -> bool:
    """Whether two lists name the same planes: layer outputs where SGLang looks, layer inputs where vLLM does."""
    places = "eagle_config." in nested.key and "eagle_config." not in flat.key
    return places and flat.ids == tuple(item + 1 for item in nested.ids)


def _out_of_range(found: IdsAt, target: Target) -> Finding:
    depth = target.num_hidden_layers
    # What no convention allows comes first, then what only one of them allows.
    bad = next(
        (item for low, high in ((-1, depth), (0, depth - 1)) for item in found.ids if not low <= item <= high),
        found.ids[0],
    )
    return finding(
        "ids-out-of-range",
        f"{found.key} lists {bad}; a target of {depth} layers has ids -1..{depth - 1} as layer outputs and 0..{depth} "
        "as layer inputs",
        actual=list(found.ids),
        next_step="correct the list, or give the target it was written for with --target",
    )
