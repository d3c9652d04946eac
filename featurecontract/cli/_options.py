"""What the commands share: options, the guard of their inputs, and the writing of a report."""

from __future__ import annotations

import math
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from featurecontract.errors import InputError, UsageError

if TYPE_CHECKING:
    from featurecontract.findings import Report
    from featurecontract.runtimes import RuntimeRules

__all__ = [
    "FORMATS",
    "FiniteRange",
    "checkpoint_argument",
    "color_option",
    "dialect_option",
    "emit",
    "format_option",
    "guard",
    "links_option",
    "one_line",
    "output_option",
    "read_rules_files",
    "rules_option",
    "runtime_option",
    "target_option",
    "write",
]

FORMATS = ("text", "json", "junit", "sarif", "github", "markdown", "html")


class FiniteRange(click.FloatRange):
    """A float in a range; NaN is in none, though it compares with neither end."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number, or refuse it."""
        found = super().convert(value, param, ctx)
        if not math.isfinite(found):
            self.fail(f"{value} is no number in the range {self._describe_range()}.", param, ctx)
        return found


checkpoint_argument = click.argument("checkpoint", metavar="CKPT")
target_option = click.option(
    "--target", metavar="T", help="Target: model directory, config.json, or name:L,H[,ARCHITECTURE]."
)
runtime_option = click.option(
    "--runtime", "runtimes", multiple=True, metavar="NAME[==VERSION]", help="Runtime to predict; may be repeated."
)
dialect_option = click.option(
    "--dialect", metavar="D", help="Read the config as this dialect (see `rules --dialects`)."
)
rules_option = click.option(
    "--rules", "rules_files", multiple=True, metavar="FILE", help="Rules of a fork, in the format of ours."
)
links_option = click.option("--follow-links", is_flag=True, help="Follow links that leave the checkpoint directory.")
format_option = click.option(
    "-o", "fmt", type=click.Choice(FORMATS), default="text", show_default=True, help="Output format."
)
output_option = click.option("--output", metavar="FILE", help="Write the output to FILE instead of standard output.")
color_option = click.option(
    "--color", type=click.Choice(("auto", "always", "never")), default="auto", help="Colours in text output."
)


def read_rules_files(paths: tuple[str, ...]) -> dict[str, RuntimeRules]:
    if not paths:
        return {}
    from featurecontract.runtimes import read_rules

    found = [read_rules(Path(path)) for path in paths]
    return {item.runtime: item for item in found}


def _wants_color(choice: str, output: str | None) -> bool:
    if choice != "auto":
        return choice == "always"
    return output is None and sys.stdout is not None and sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def emit(report: Report, fmt: str, output: str | None, color: str, *, kind: str) -> None:
    from featurecontract.render import render

    write(render(report, fmt, color=_wants_color(color, output), kind=kind), output)


def write(text: str, output: str | None) -> None:
    if output is None:
        # What is coloured was decided before; click would take the colours out again on a pipe. A standard output
        # that was closed is None: there is nobody to tell, and the verdict still is the exit status.
        click.echo(text, nl=False, color=True)
        return
    from featurecontract.contract._files import write_output

    try:
        write_output(Path(output), text.encode("utf-8", "replace"))
    except (OSError, ValueError) as error:
        raise InputError.single(
            output,
            f"cannot be written: {getattr(error, 'strerror', None) or error}",
            next_step="choose another --output",
        ) from None


def guard(output: str | None, *inputs: str | None) -> None:
    from featurecontract.contract._files import same_file_of

    found = same_file_of(output, *inputs) if output is not None else None
    if found is not None:
        raise UsageError(f"--output {output}: that is {found}, which is read; choose another file")


def one_line(text: str) -> str:
    from featurecontract.render import clean

    return clean(text, limit=2000)
