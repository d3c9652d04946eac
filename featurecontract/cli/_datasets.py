"""Commands that read training data: audit-data."""

from __future__ import annotations

import sys
import time

import click

from featurecontract.cli._group import cli
from featurecontract.cli._options import (
    FiniteRange,
    checkpoint_argument,
    color_option,
    emit,
    format_option,
    guard,
    links_option,
    one_line,
    output_option,
)
from featurecontract.errors import InputError

__all__: list[str] = []

_SECONDS_BETWEEN_LINES = 2.0


@cli.command("audit-data")
@click.argument("data", metavar="DIR")
@checkpoint_argument
@click.option("--target", metavar="T", help="Target's model directory: identifies planes on the dataset's own tokens.")
@click.option("--identify", type=click.IntRange(1), default=4, show_default=True, help="Sequences to identify.")
@click.option("--limit", type=click.IntRange(1), help="Read at most this many files, evenly spread over the dataset.")
@click.option("--workers", type=click.IntRange(1, 256), default=1, show_default=True, help="Threads that read files.")
@click.option(
    "--confidence",
    type=FiniteRange(0.0, 1.0),
    default=0.9,
    show_default=True,
    help="Below this an identification is inconclusive: could not check.",
)
@click.option("--layers", metavar="PATH", help="Module path of the target's decoder layers, such as model.layers.")
@click.option("--norm", metavar="PATH", help="Module path of its final norm.")
@click.option("--embedding", metavar="PATH", help="Module path of its token embedding.")
@click.option("--head", metavar="PATH", help="Module path of its output head.")
@click.option("--device", metavar="D", help="Device of the target; by default all GPUs, else the CPU.")
@click.option("--trust-remote-code", is_flag=True, help="Run the model code in the target's directory.")
@click.option("--strict", is_flag=True, help="Count warnings as errors.")
@links_option
@format_option
@output_option
@color_option
def audit_data(
    data: str,
    checkpoint: str,
    target: str | None,
    identify: int,
    limit: int | None,
    workers: int,
    confidence: float,
    layers: str | None,
    norm: str | None,
    embedding: str | None,
    head: str | None,
    device: str | None,
    trust_remote_code: bool,
    strict: bool,
    follow_links: bool,
    fmt: str,
    output: str | None,
    color: str,
) -> None:
    """Check the stored hidden states in DIR against the contract of CKPT."""
    from featurecontract.gate import audit_data as run
    from featurecontract.gate import refused

    guard(output, checkpoint, data)
    try:
        report = run(
            data,
            checkpoint,
            target=target,
            identify=identify,
            limit=limit,
            workers=workers,
            confidence=confidence,
            layers=layers,
            norm=norm,
            embedding=embedding,
            head=head,
            device=device,
            trust_remote_code=trust_remote_code,
            strict=strict,
            follow_links=follow_links,
            progress=_Progress().say,
            say=lambda line: click.echo(one_line(line), err=True),
        )
    except InputError as error:
        if fmt == "text" and output is None:
            raise
        report = refused(checkpoint, error)
    emit(report, fmt, output, color, kind="check")
    sys.exit(report.exit_status)


class _Progress:
    """A line on standard error now and then, and one at the end."""

    def __init__(self) -> None:
        self.last = time.monotonic()

    def say(self, done: int, total: int) -> None:
        now = time.monotonic()
        if done == total or now - self.last >= _SECONDS_BETWEEN_LINES:
            self.last = now
            click.echo(f"read {done} of {total} files", err=True)
