"""The command that splits a low acceptance: diagnose."""

from __future__ import annotations

import sys

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
    read_rules_files,
    rules_option,
    runtime_option,
    target_option,
)
from featurecontract.errors import InputError, UsageError

__all__: list[str] = []


@cli.command()
@checkpoint_argument
@click.argument("captures", metavar="[CAPTURE]...", nargs=-1)
@target_option
@runtime_option
@click.option("--serve-args", metavar="ARGS", help="The server's command line, or a file with it.")
@rules_option
@click.option(
    "--acceptance", type=float, metavar="A", help="Tokens per round that are served, the target's own included."
)
@click.option("--states", metavar="DIR", help="Stored hidden states: a folder or a file, of any known format.")
@click.option("--planes", metavar="LIST", help="What the stored planes are, in order, as for replay.")
@click.option("--text", metavar="FILE", help="Text for the target, which is then run.")
@click.option("--tokens", metavar="FILE", help="Token ids for the target, which is then run.")
@click.option(
    "--length", type=click.IntRange(16, 1 << 20), default=256, show_default=True, help="Tokens of a sequence."
)
@click.option("--limit", type=click.IntRange(1), metavar="N", help="Read at most N sequences.")
@click.option("--steps", type=click.IntRange(1, 16), help="Draft steps; by default the contract's, else 3.")
@click.option(
    "--tolerance",
    type=FiniteRange(0.0, 1.0),
    default=0.05,
    show_default=True,
    help="How far a figure may lie off another, chance apart.",
)
@click.option("--gguf", metavar="FILE", help="GGUF file in the target's directory.")
@click.option("--device", default="cpu", show_default=True, metavar="D", help="Device of the drafter and the target.")
@click.option(
    "--dtype", default="float32", show_default=True, help="float32, bfloat16 or float16: what the drafter runs in."
)
@click.option("--trust-remote-code", is_flag=True, help="Run the model code in the target's directory.")
@click.option("--strict", is_flag=True, help="Count warnings as errors.")
@links_option
@format_option
@output_option
@color_option
def diagnose(
    checkpoint: str,
    captures: tuple[str, ...],
    target: str | None,
    runtimes: tuple[str, ...],
    serve_args: str | None,
    rules_files: tuple[str, ...],
    acceptance: float | None,
    states: str | None,
    planes: str | None,
    text: str | None,
    tokens: str | None,
    length: int,
    limit: int | None,
    steps: int | None,
    tolerance: float,
    gguf: str | None,
    device: str,
    dtype: str,
    trust_remote_code: bool,
    strict: bool,
    follow_links: bool,
    fmt: str,
    output: str | None,
    color: str,
) -> None:
    """Acceptance is low: is it the wiring, the flags, the runtime, or the drafter in CKPT? Ends in one sentence."""
    from featurecontract.gate import ReplayOptions, Symptoms, refused
    from featurecontract.gate import diagnose as run

    guard(output, checkpoint, target, *captures)
    if serve_args is not None and not serve_args.strip():
        raise UsageError("--serve-args: is empty; give the server's command line, or a file with it: @FILE")
    options = ReplayOptions(
        states=states,
        planes=planes,
        target=target,
        gguf=gguf,
        tokens=tokens,
        text=text,
        length=length,
        limit=limit,
        device=device,
        dtype=dtype,
        trust_remote_code=trust_remote_code,
        follow_links=follow_links,
    )
    symptoms = Symptoms(
        captures=captures,
        runtimes=runtimes,
        serve_args=serve_args,
        rules=read_rules_files(rules_files),
        acceptance=acceptance,
    )
    try:
        report = run(
            checkpoint,
            symptoms=symptoms,
            options=options,
            steps=steps,
            tolerance=tolerance,
            strict=strict,
            progress=lambda line: click.echo(one_line(line), err=True),
        )
    except InputError as error:
        if fmt == "text" and output is None:
            raise
        report = refused(checkpoint, error)
    emit(report, fmt, output, color, kind="check")
    sys.exit(report.exit_status)
