"""What a producer wrote beside its files: speculators 0.3 and 0.4 left the layer ids in ``data_config.json``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from featurecontract.checkpoint._paths import has_entry, open_entry, shown_path
from featurecontract.contract.strict_json import parse_json, read_all
from featurecontract.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["CONFIG_FILE", "producer_ids"]

CONFIG_FILE = "data_config.json"
_MAX_BYTES = 2**20
_MAX_IDS = 1024


def producer_ids(place: Path, first: Path) -> tuple[int, ...] | None:
    """Return ``hidden_states.layer_ids`` of the producer's config beside the files or in the folder above, or None.

    The ids are layer outputs (id k is h[k + 1]): speculators 0.3's ``custom_worker.py`` captures behind the layer,
    in the order of the layers whatever the list says.

    Raises:
        InputError: the file is there and is no JSON, or its ids are no layer ids.
    """
    for folder in dict.fromkeys((first.parent, place)):
        if folder.is_dir() and has_entry(folder, CONFIG_FILE):
            return _ids(folder)
    return None


def _ids(folder: Path) -> tuple[int, ...] | None:
    source = shown_path(folder / CONFIG_FILE)
    with open_entry(folder, CONFIG_FILE, follow_links=False) as stream:
        document = parse_json(read_all(stream, source=source, max_bytes=_MAX_BYTES), source=source)
    states = document.get("hidden_states") if isinstance(document, dict) else None
    ids = states.get("layer_ids") if isinstance(states, dict) else None
    if ids is None:
        return None
    whole = (
        isinstance(ids, list) and len(ids) <= _MAX_IDS and all(type(item) is int and 0 <= item < 10**5 for item in ids)
    )
    if not whole:
        raise InputError.single(
            source, "is no list of layer ids", place="hidden_states.layer_ids", next_step="mend or remove the file"
        )
    return tuple(sorted(set(ids)))
