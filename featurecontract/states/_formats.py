"""The formats, told apart by their keys; each entry cites the code that writes or reads it.

The same key means different tensors in different trainers' files: ``hidden_states`` is every plane in speculators, the
final state in ModelOpt and the projection's input in AngelSlim. docs/stored-states.md has the table.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from featurecontract.states._fields import Fields

if TYPE_CHECKING:
    from collections.abc import Callable

    from featurecontract.states._sample import LastState, Sample

__all__ = ["FORMATS", "StateFormat", "format_of", "holds_states"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StateFormat:
    """One format.

    Attributes:
        name: Its name here.
        trainer: Who writes it, with the version that was read.
        features: What goes to the projection, in the words of the file.
        last: The last plane, in the words of the file; empty where there is none.
        last_state: What that plane is.
        keys: Keys that must be there.
        without: Keys that must not be there.
        suits: Whether the tensors have this format's form, for keys that two formats share.
        load: Reads the fields.
    """

    name: str
    trainer: str
    features: str
    last: str = ""
    last_state: LastState = "unknown"
    keys: tuple[str, ...]
    without: tuple[str, ...] = ()
    suits: Callable[[dict[str, Any]], bool] = lambda _content: True
    load: Callable[[Fields], Sample]

    def matches(self, content: dict[str, Any]) -> bool:
        """Whether a file's entries are of this format."""
        return (
            all(key in content for key in self.keys)
            and not any(key in content for key in self.without)
            and self.suits(content)
        )

    def read(self, content: dict[str, Any], source: str) -> Sample:
        """Return the sample; raises InputError where tensors do not fit each other."""
        return self.load(Fields(content, source))


def _concatenated(features: str, last: str = "", state: LastState = "unknown") -> Callable[[Fields], Sample]:
    """Return a reader for files that hold the projection's input as one tensor."""

    def read(fields: Fields) -> Sample:
        return fields.sample(
            "input_ids",
            fields.plane(features),
            last=fields.plane(last) if last else None,
            last_state=state,
        )

    return read


def _stacked(fields: Fields) -> Sample:
    planes = fields.stack("hidden_states")
    width = int(planes.shape[2])
    return fields.sample(
        "token_ids",
        planes[:, :-1].flatten(1),
        last=planes[:, -1],
        last_state="residual",
        dims=(width,) * (int(planes.shape[1]) - 1),
    )


def _listed(fields: Fields) -> Sample:
    import torch

    planes = fields.planes("hidden_states")
    return fields.sample(
        "input_ids",
        torch.cat(planes[:-1], dim=1),
        last=planes[-1],
        last_state="residual",
        dims=tuple(int(plane.shape[1]) for plane in planes[:-1]),
    )


def _modelopt(fields: Fields) -> Sample:
    # `bool(offline_data.get("hidden_states_prenorm", False))` in modelopt 0.47 speculative/eagle/utils.py.
    state: LastState = "residual" if fields.flag("hidden_states_prenorm") else "final_norm"
    return fields.sample(
        "input_ids", fields.plane("aux_hidden_states"), last=fields.plane("hidden_states"), last_state=state
    )


def _torchspec(fields: Fields) -> Sample:
    # The engine decides: N from transformers and SGLang, h[L] from vLLM; only the flag tells.
    flagged = fields.flag("last_hidden_states_prenorm")
    state: LastState = "unknown" if flagged is None else "residual" if flagged else "final_norm"
    return fields.sample(
        "input_ids", fields.plane("hidden_states"), last=fields.plane("last_hidden_states"), last_state=state
    )


def _is_list(content: dict[str, Any]) -> bool:
    return isinstance(content["hidden_states"], list)


def _is_tensor(content: dict[str, Any]) -> bool:
    return not _is_list(content)


FORMATS: tuple[StateFormat, ...] = (
    StateFormat(
        name="speculators",
        trainer="speculators 0.5 and later (train/data.py of 0.9.0)",
        features="hidden_states[:, :-1].flatten(1)",
        last="hidden_states[:, -1]",
        last_state="residual",
        keys=("hidden_states", "token_ids"),
        suits=_is_tensor,
        load=_stacked,
    ),
    StateFormat(
        name="speculators-list",
        trainer="speculators 0.3 and 0.4 (train/data.py of 0.3.0, standardize_data_v1)",
        features="cat(hidden_states[:-1])",
        last="hidden_states[-1]",
        last_state="residual",
        keys=("hidden_states", "input_ids"),
        suits=_is_list,
        load=_listed,
    ),
    StateFormat(
        name="specforge-eagle3",
        trainer="SpecForge 0.2.0 (algorithms/eagle3/data.py)",
        features="aux_hidden_state",
        last="hidden_state",
        last_state="final_norm",
        keys=("aux_hidden_state", "hidden_state", "input_ids"),
        load=_concatenated("aux_hidden_state", "hidden_state", "final_norm"),
    ),
    StateFormat(
        name="modelopt",
        trainer="ModelOpt 0.47.0 (torch/speculative/eagle/utils.py)",
        features="aux_hidden_states",
        last="hidden_states",
        last_state="final_norm",
        keys=("aux_hidden_states", "hidden_states", "input_ids"),
        suits=_is_tensor,
        load=_modelopt,
    ),
    StateFormat(
        name="angelslim",
        trainer="AngelSlim 0.5.0 (train/trainer/offline_eagle3_trainer.py)",
        features="hidden_states",
        last="target_hiddens",
        last_state="final_norm",
        keys=("hidden_states", "target_hiddens", "input_ids"),
        suits=_is_tensor,
        load=_concatenated("hidden_states", "target_hiddens", "final_norm"),
    ),
    StateFormat(
        name="specforge-dspark",
        trainer="SpecForge 0.2.0 (DSpark)",
        features="hidden_states",
        last="target_last_hidden_states",
        last_state="final_norm",
        keys=("hidden_states", "target_last_hidden_states", "input_ids"),
        suits=_is_tensor,
        load=_concatenated("hidden_states", "target_last_hidden_states", "final_norm"),
    ),
    StateFormat(
        name="torchspec",
        trainer="TorchSpec at 6f21829c",
        features="hidden_states",
        last="last_hidden_states",
        last_state="unknown",
        keys=("hidden_states", "last_hidden_states", "input_ids"),
        suits=_is_tensor,
        load=_torchspec,
    ),
    StateFormat(
        name="angelslim-dflash",
        trainer="AngelSlim 0.5.0 (train/trainer/offline_dflash_trainer.py)",
        features="hidden_states",
        keys=("hidden_states", "attention_mask", "input_ids"),
        suits=_is_tensor,
        load=_concatenated("hidden_states"),
    ),
    StateFormat(
        name="specforge-dflash",
        trainer="SpecForge 0.2.0 (DFlash, Domino)",
        features="hidden_states",
        keys=("hidden_states", "loss_mask", "input_ids"),
        suits=_is_tensor,
        load=_concatenated("hidden_states"),
    ),
)


def format_of(content: dict[str, Any]) -> StateFormat | None:
    """Return the format of a file's entries, None for no known one."""
    return next((item for item in FORMATS if item.matches(content)), None)


def holds_states(content: dict[str, Any]) -> bool:
    """Whether anything in a file is called hidden states, in any spelling."""
    return any("hidden" in name for name in content)
