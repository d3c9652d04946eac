"""Commands that run a target or read tensors: record, verify."""

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
)
from featurecontract.errors import InputError

__all__: list[str] = []


@cli.command()
@click.argument("model", metavar="MODEL")
@click.option("--out", required=True, metavar="CKPT", help="Checkpoint directory that the contract and probe go into.")
@click.option("--wiring", metavar="LIST", help="The features it is trained on; by default those of CKPT's contract.")
@click.option("--tokens", metavar="FILE", help="Token ids of the probe: one sequence, at least as many as --rows.")
@click.option("--rows", type=int, default=64, show_default=True, help="Rows of the probe.")
@click.option("--gguf", metavar="FILE", help="GGUF file in MODEL.")
@click.option("--layers", metavar="PATH", help="Module path of the decoder layers, such as model.layers.")
@click.option("--norm", metavar="PATH", help="Module path of the final norm.")
@click.option("--embedding", metavar="PATH", help="Module path of the token embedding.")
@click.option("--head", metavar="PATH", help="Module path of the output head.")
@click.option("--dtype", default="auto", show_default=True, help="Dtype that the target runs in.")
@click.option("--second-dtype", default="bfloat16", show_default=True, help="Dtype of the noise floor's run, or none.")
@click.option("--device", metavar="D", help="Device; by default all GPUs with accelerate, else the CPU.")
@click.option(
    "--seed",
    type=click.IntRange(0, 2**63 - 1),
    default=0,
    show_default=True,
    help="Chooses the fingerprints' channels.",
)
@click.option("--force", is_flag=True, help="Replace a contract that declares other features.")
@click.option("--trust-remote-code", is_flag=True, help="Run the model code in MODEL.")
@links_option
def record(
    model: str,
    out: str,
    wiring: str | None,
    tokens: str | None,
    rows: int,
    gguf: str | None,
    layers: str | None,
    norm: str | None,
    embedding: str | None,
    head: str | None,
    dtype: str,
    second_dtype: str,
    device: str | None,
    seed: int,
    force: bool,
    trust_remote_code: bool,
    follow_links: bool,
) -> None:
    """Run MODEL on a few tokens and write its golden features, with the contract that names them, into CKPT."""
    from featurecontract.gate import record as run

    contract = run(
        model,
        out=out,
        wiring=wiring,
        tokens=tokens,
        rows=rows,
        gguf=gguf,
        layers=layers,
        norm=norm,
        embedding=embedding,
        head=head,
        dtype=dtype,
        second_dtype=second_dtype,
        device=device,
        seed=seed,
        force=force,
        trust_remote_code=trust_remote_code,
        follow_links=follow_links,
        progress=lambda line: click.echo(one_line(line), err=True),
    )
    probe = contract.probe
    floor = probe.noise_floor if probe else None
    click.echo(f"wrote {out}: [{contract.wiring}], {rows} rows, noise floor {floor}")
    for statement in contract.provenance.statements:
        if statement.path == "probe":
            click.echo(one_line(statement.reason))


@cli.command()
@checkpoint_argument
@click.argument("captures", metavar="CAPTURE...", nargs=-1, required=True)
@click.option(
    "--target", metavar="T", help="Target; its directory lends embedding and head to a drafter without its own."
)
@click.option(
    "--drafts/--no-drafts",
    default=None,
    help="Draft again, with CKPT's weights, what the runtime drafted; by default where that can be done.",
)
@click.option(
    "--confidence",
    type=FiniteRange(0.0, 1.0),
    default=0.9,
    show_default=True,
    help="Below this an answer is inconclusive: could not check.",
)
@click.option("--strict", is_flag=True, help="Count warnings as errors.")
@links_option
@format_option
@output_option
@color_option
def verify(
    checkpoint: str,
    captures: tuple[str, ...],
    target: str | None,
    drafts: bool | None,
    confidence: float,
    strict: bool,
    follow_links: bool,
    fmt: str,
    output: str | None,
    color: str,
) -> None:
    """Name what CAPTURE holds (files, or directories of them) and compare it, and its draft tokens, with CKPT."""
    from featurecontract.gate import refused
    from featurecontract.gate import verify as run

    guard(output, checkpoint, *captures)
    try:
        report = run(
            checkpoint,
            captures,
            target=target,
            drafts=drafts,
            confidence=confidence,
            strict=strict,
            follow_links=follow_links,
        )
    except InputError as error:
        if fmt == "text" and output is None:
            raise
        report = refused(checkpoint, error)
    emit(report, fmt, output, color, kind="check")
    sys.exit(report.exit_status)
