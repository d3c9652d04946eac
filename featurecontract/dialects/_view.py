"""A published config as a dialect sees it: every place where ids may stand, and the few other facts that matter."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from featurecontract.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["BODIES", "ID_KEYS", "DraftConfig", "IdsAt", "lookup"]

IdsState = Literal["absent", "null", "empty", "list"]

_PLAIN_KEYS = (
    "eagle_config.eagle_aux_hidden_state_layer_ids",
    "eagle_aux_hidden_state_layer_ids",
    "dflash_config.target_layer_ids",
    "target_layer_ids",
    "aux_hidden_state_layer_ids",
    "dspark_target_layer_ids",
    "dspark_config.target_layer_ids",
    "eagle_config.aux_hidden_state_layer_ids",
    "eagle_config.layer_ids",
    "dflash_config.layer_ids",
    "aux_hidden_states_layer_ids",
    "aux_hidden_states_layers",
    "aux_layer_ids",
    "aux_hidden_layers",
    "layers_to_capture",
    "target_hidden_layer_ids",
    "pard2_target_layers",
)
# Every spelling seen in a published config or a trainer, at the top level and inside text_config.
ID_KEYS = (*_PLAIN_KEYS, *(f"text_config.{key}" for key in _PLAIN_KEYS))
# Where the drafter's own body may be described, outermost last: the first that has a key wins.
BODIES = ("transformer_layer_config", "model", "text_config", "")

# No published drafter has more than ten; a list of thousands is not a list of layer ids.
MAX_IDS = 1024


def lookup(config: Mapping[str, Any], path: str) -> tuple[bool, Any]:
    """Return whether ``a.b.c`` is present, and its value; a part that is not an object means absent."""
    value: Any = config
    for part in path.split("."):
        if not isinstance(value, dict) or part not in value:
            return False, None
        value = value[part]
    return True, value


@dataclass(frozen=True, slots=True)
class IdsAt:
    """The ids at one key: absent, null and ``[]`` are three different statements."""

    key: str
    state: IdsState
    ids: tuple[int, ...] = ()


class DraftConfig:
    """Read access to a drafter's config.json; raises InputError where a value cannot be what its key says."""

    def __init__(self, config: Mapping[str, Any], *, source: str = "config.json") -> None:
        """Keep the raw config and read every place of ids once."""
        self.raw = config
        self.source = source
        self.ids_at = {key: self._read_ids(key) for key in ID_KEYS}

    def _read_ids(self, key: str) -> IdsAt:
        present, value = lookup(self.raw, key)
        if not present:
            return IdsAt(key, "absent")
        if value is None:
            return IdsAt(key, "null")
        if not isinstance(value, list) or len(value) > MAX_IDS:
            raise self._error(key, f"is not a list of at most {MAX_IDS} layer ids", "write a list such as [2, 18, 33]")
        for index, item in enumerate(value):
            if not isinstance(item, int) or isinstance(item, bool) or abs(item) > 100_000:  # noqa: PLR2004
                raise self._error(f"{key}[{index}]", "is not a layer id", "write an integer")
        return IdsAt(key, "list" if value else "empty", tuple(value))

    def _error(self, place: str, message: str, next_step: str) -> InputError:
        return InputError.single(self.source, message, place=place, next_step=next_step)

    def get(self, path: str) -> Any:
        """Return the value at a path, None when absent or null."""
        return lookup(self.raw, path)[1]

    def has(self, path: str) -> bool:
        """Whether a key is present and not null."""
        return self.get(path) is not None

    def ids(self, *keys: str) -> IdsAt:
        """Return the first of these keys that holds a list, else the first that is present, else the first."""
        found = [self.ids_at[key] for key in keys]
        for state in ("list", "empty", "null"):
            for item in found:
                if item.state == state:
                    return item
        return found[0]

    def listed(self) -> tuple[IdsAt, ...]:
        """Return every key that holds a non-empty list of ids."""
        return tuple(item for item in self.ids_at.values() if item.state == "list")

    def body(self, key: str) -> Any:
        """Return a value of the drafter's body, wherever the body is described."""
        for place in BODIES:
            value = self.get(f"{place}.{key}" if place else key)
            if value is not None:
                return value
        return None

    def integer(self, key: str, *, low: int = 1) -> int | None:
        """Return a body value as an integer of at least ``low``; None when absent, InputError for anything else."""
        value = self.body(key)
        if value is None:
            return None
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value < 2**31:
            raise self._error(key, "is not a positive integer", "write the number of elements")
        return value

    def flag(self, path: str) -> bool | None:
        """Return a flag, None when absent, null or not a boolean."""
        value = self.get(path)
        return value if isinstance(value, bool) else None

    def any_flag(self, *paths: str) -> bool | None:
        """Return the first of these flags that is stated."""
        for path in paths:
            value = self.flag(path)
            if value is not None:
                return value
        return None

    @property
    def architectures(self) -> tuple[str, ...]:
        """The architecture strings, outer ones first."""
        out: list[str] = []
        for place in ("", *BODIES[:-1]):
            value = self.get(f"{place}.architectures" if place else "architectures")
            if isinstance(value, list):
                out += [item for item in value[:8] if isinstance(item, str)]
        return tuple(out)

    @property
    def architecture(self) -> str:
        """The first architecture string, empty when there is none."""
        return self.architectures[0] if self.architectures else ""

    @property
    def model_type(self) -> str:
        """The outer model_type, empty when there is none."""
        value = self.get("model_type")
        return value if isinstance(value, str) else ""

    @property
    def speculators_type(self) -> str:
        """``speculators_model_type``, or the algorithm that a speculators config names; empty elsewhere."""
        for path in ("speculators_model_type", "speculators_config.algorithm"):
            value = self.get(path)
            if isinstance(value, str):
                return value
        return ""
