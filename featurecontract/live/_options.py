"""Settings of an engine as a user writes them: a JSON file, or ``key=value`` words."""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING, Any

from featurecontract.contract.strict_json import read_json
from featurecontract.errors import InputError, UsageError

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["options_from_file", "options_from_text"]


def options_from_file(path: Path) -> dict[str, Any]:
    """Read a JSON object of settings; raises UsageError for anything else."""
    try:
        found = read_json(path)
    except InputError as error:
        raise UsageError(str(error)) from None
    if not isinstance(found, dict):
        raise UsageError(f"{path} holds no JSON object of an engine's settings")
    return found


def options_from_text(text: str) -> dict[str, Any]:
    """Read ``key=value`` words; a value is JSON, or else the text itself: ``dtype=float32 max_num_seqs=8``.

    Raises:
        UsageError: a word has another form, or a key stands there twice.
    """
    found: dict[str, Any] = {}
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UsageError(f"{text!r} cannot be split into words ({error})") from None
    for word in words:
        key, sign, value = word.partition("=")
        if not sign or not key.isidentifier():
            raise UsageError(f"{word!r} is no KEY=VALUE, such as dtype=float32; or name a JSON file")
        if key in found:
            raise UsageError(f"{key} is given twice")
        try:
            found[key] = json.loads(value)
        except ValueError:
            found[key] = value
    return found
