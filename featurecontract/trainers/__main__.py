"""``python -m featurecontract.trainers NAME [--target T] ... -- ARGUMENTS``: a trainer's own command, attached."""

from __future__ import annotations

import argparse
import sys
from importlib.metadata import entry_points
from typing import Any

from featurecontract.errors import FeatureContractError
from featurecontract.trainers import attach_specforge, attach_speculators

__all__ = ["main"]

_ATTACH = {"speculators": attach_speculators, "specforge": attach_specforge}


def main(arguments: list[str] | None = None) -> Any:
    """Attach to a trainer and run its own command with the arguments behind ``--``."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    own, _, theirs = _split(given)
    parser = argparse.ArgumentParser(prog="python -m featurecontract.trainers", description=__doc__)
    parser.add_argument("trainer", choices=sorted(_ATTACH))
    parser.add_argument("--target", help="target's directory; speculators names its own")
    parser.add_argument("--ids", type=_ids, help="the run's layer ids, such as 1,17,32 (specforge)")
    parser.add_argument("--strict", action="store_true", help="fail where no contract can be written")
    options = vars(parser.parse_args(own))
    name = options.pop("trainer")
    if name == "specforge" and options["target"] is None:
        parser.error("specforge needs --target")
    if options["ids"] is None or name != "specforge":
        options.pop("ids")
    command = next(iter(entry_points(group="console_scripts", name=name)), None)
    if command is None:
        parser.error(f"{name} is not installed here, or has no command")
    try:
        _ATTACH[name](**options)
    except FeatureContractError as error:
        parser.error(str(error))
    sys.argv = [name, *theirs]
    return command.load()()


def _split(words: list[str]) -> tuple[list[str], str, list[str]]:
    if "--" not in words:
        return words, "", []
    at = words.index("--")
    return words[:at], "--", words[at + 1 :]


def _ids(text: str) -> list[int]:
    return [int(item) for item in text.split(",")]


if __name__ == "__main__":
    sys.exit(main())
