"""A folder of stored hidden states as a sequence of samples, read one at a time."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from featurecontract.checkpoint._paths import quoted, shown_path
from featurecontract.errors import InputError, UsageError
from featurecontract.states._container import load_file
from featurecontract.states._files import list_files, one_of_each_kind
from featurecontract.states._formats import FORMATS, StateFormat, format_of, holds_states
from featurecontract.states._producer import producer_ids

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

    from featurecontract.states._sample import Sample

__all__ = ["StateSet", "open_states"]


class StateSet:
    """Stored sequences: ``len`` counts files, each holds one sequence; iterating reads one file at a time.

    Reading is thread-safe: ``read(i)`` opens its own file.

    Attributes:
        path: What was opened.
        format: The format of every file.
        files: The files, in natural order (``data_2`` before ``data_10``).
        producer_ids: The layer ids that the producer wrote beside the files, in its own convention; None without.
        notes: What was passed over, and why.
    """

    def __init__(
        self,
        path: Path,
        kind: StateFormat,
        files: tuple[Path, ...],
        *,
        notes: tuple[str, ...] = (),
        producer: tuple[int, ...] | None = None,
        follow_links: bool = False,
    ) -> None:
        """Keep what ``open_states`` found."""
        self.path, self.format, self.files, self.notes = path, kind, files, notes
        self.producer_ids = producer
        self._follow_links = follow_links

    def __len__(self) -> int:
        """Return the number of files."""
        return len(self.files)

    def __iter__(self) -> Iterator[Sample]:
        """Yield every sequence; a file that cannot be read raises its InputError."""
        for index in range(len(self.files)):
            yield self.read(index)

    def read(self, index: int) -> Sample:
        """Return the sequence of one file.

        Raises:
            InputError: the file is hostile, truncated, of another format, or its tensors do not fit each other.
        """
        file = self.files[index]
        content = load_file(file, follow_links=self._follow_links)
        found = format_of(content)
        if found is not self.format:
            what = found.name if found else "no format that is known"
            raise InputError.single(
                shown_path(file),
                f"is {what}, the files before it are {self.format.name}",
                next_step="keep datasets of different trainers in different folders",
            )
        return found.read(content, shown_path(file))


def open_states(
    path: str | os.PathLike[str],
    *,
    format: str | None = None,  # noqa: A002 - the word
    follow_links: bool = False,
) -> StateSet:
    """Open a file or a folder of stored hidden states; the format is told by what the files hold.

    Args:
        path: One file, or a folder that is searched to the bottom; links to folders are not followed.
        format: The name of the format that is expected (``FORMATS``); anything else is then refused.
        follow_links: Also read files through links that leave their folder.

    Raises:
        InputError: there are no such files, or the first one cannot be read.
        UsageError: there is no format of that name.
    """
    if format is not None and format not in {item.name for item in FORMATS}:
        raise UsageError(f"no format is called {format!r}; there are {', '.join(item.name for item in FORMATS)}")
    place = Path(path)
    files = list_files(place)
    notes = []
    left_out: set[Path] = set()
    kind: StateFormat | None = None
    for first, group in one_of_each_kind(files):
        content = load_file(first, follow_links=follow_links)
        if not holds_states(content) and len(files) > len(group):
            left_out.update(group)
            notes.append(f"{shown_path(first)}: holds no hidden states ({_keys(content)}); passed over")
            continue
        found = format_of(content)
        if found is None:
            raise InputError.single(
                shown_path(first),
                f"holds {_keys(content)}, which is no format of stored hidden states that is known",
                next_step=f"known are {', '.join(item.name for item in FORMATS)} (docs/stored-states.md)",
            )
        if kind is None:
            kind = found
    if kind is None:
        raise InputError.single(
            shown_path(place), "holds no hidden states", next_step="name the folder that the trainer reads them from"
        )
    if format is not None and kind.name != format:
        raise InputError.single(shown_path(place), f"is {kind.name}, not {format}", next_step="leave the format out")
    kept = tuple(file for file in files if file not in left_out)
    return StateSet(
        place, kind, kept, notes=tuple(notes), producer=producer_ids(place, kept[0]), follow_links=follow_links
    )


def _keys(content: dict[str, object]) -> str:
    names = [quoted(name) for name in list(content)[:8]]
    return ", ".join(names) + (f" and {len(content) - 8} more" if len(content) > 8 else "") or "nothing"  # noqa: PLR2004
