"""The probe's token ids: given, from a file, or the package's own text in the target's own tokens."""

from __future__ import annotations

import json
import re
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from featurecontract.contract.strict_json import open_regular, read_all
from featurecontract.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from os import PathLike

__all__ = ["MIN_DISTINCT", "choose_tokens", "probe_text", "read_tokens"]

#: Of 64 rows; with fewer, rows and planes can no longer be told apart.
MIN_DISTINCT = 48

_MAX_BYTES = 2**20
_MAX_ID = 2**31
_SPLIT = re.compile(r"[\s,\[\]]+")


def probe_text() -> str:
    """Return the text that is shipped: prose, code and several scripts, so that neighbouring tokens differ in kind."""
    return resources.files("featurecontract.probe").joinpath("probe_text.txt").read_text("utf-8")


def read_tokens(path: str | PathLike[str]) -> tuple[int, ...]:
    """Read token ids from a file: whole numbers in a JSON list, or apart by commas or white space.

    Raises:
        InputError: the file cannot be read, or holds anything else.
    """
    file = Path(path)
    with open_regular(file, source=str(file)) as stream:
        data = read_all(stream, source=str(file), max_bytes=_MAX_BYTES)
    words = [word for word in _SPLIT.split(data.decode("utf-8", "replace")) if word]
    for index, word in enumerate(words):
        if not (word.isascii() and word.isdigit() and len(word) <= 10 and int(word) < _MAX_ID):  # noqa: PLR2004
            raise InputError.single(
                str(file),
                f"{json.dumps(word[:40])} is no token id",
                place=f"[{index}]",
                next_step="write whole numbers from 0, one sequence, as a JSON list or apart by spaces",
            )
    return tuple(int(word) for word in words)


def choose_tokens(
    rows: int,
    *,
    given: Iterable[int] | None = None,
    tokenizer: Any = None,
    vocab_size: int | None = None,
    seed: int = 0,
) -> tuple[tuple[int, ...], str]:
    """Return ``rows`` token ids and where they are from.

    Given ids win. Else the package's text in the target's tokenizer, as a prompt would be tokenized (with a leading
    BOS where it adds one); else, or where that text gives too few different tokens, ids spread over the vocabulary,
    chosen by ``seed``: no text, but rows that differ.

    Raises:
        InputError: too few ids were given, or there is neither a tokenizer nor a vocabulary size.
    """
    if given is not None:
        ids = tuple(int(item) for item in given)
        if len(ids) < rows:
            raise InputError.single(
                "the probe's tokens",
                f"{len(ids)} ids, the probe has {rows} rows",
                next_step="give one sequence of at least as many tokens as rows",
                slug="probe-degenerate",
            )
        return ids[:rows], "given"
    if tokenizer is not None:
        encoded = tokenizer(probe_text())["input_ids"] if callable(tokenizer) else tokenizer.encode(probe_text())
        ids = tuple(int(item) for item in getattr(encoded, "ids", encoded))[:rows]
        if len(ids) == rows and len(set(ids)) >= min(MIN_DISTINCT, rows):
            return ids, "the package's text"
    if vocab_size is None or vocab_size < rows:
        raise InputError.single(
            "the probe's tokens",
            "there is no tokenizer, and the vocabulary is unknown or too small to choose from",
            next_step="give token ids with --tokens FILE",
            slug="probe-degenerate",
        )
    return _spread(rows, vocab_size, seed), "a spread over the vocabulary"


def _spread(rows: int, vocab_size: int, seed: int) -> tuple[int, ...]:
    import torch

    generator = torch.Generator().manual_seed(seed)
    edges = torch.linspace(0, vocab_size, rows + 1, dtype=torch.float64).long()
    ids = edges[:-1] + (torch.rand(rows, dtype=torch.float64, generator=generator) * edges.diff()).long()
    return tuple(int(item) for item in ids[torch.randperm(rows, generator=generator)])
