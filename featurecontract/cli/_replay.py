"""The command that runs a drafter: replay."""

from __future__ import annotations

import sys
from pathlib import Path

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
    target_option,
)
from featurecontract.errors import InputError

__all__: list[str] = []


@cli.command()
@checkpoint_argument
@click.option("--states", metavar="DIR", help="Stored hidden states: a folder or a file, of any known format.")
@target_option
@click.option("--wiring", "wirings", multiple=True, metavar="LIST", help="Replay this wiring too; may be repeated.")
@click.option("--search", is_flag=True, help="Rank every ordered choice of the planes: which was it trained with?")
@click.option(
    "--planes", metavar="LIST", help="What the stored planes are, in order: boundaries, embedding, final_norm."
)
@click.option("--text", metavar="FILE", help="Text for a target that is run.")
@click.option("--tokens", metavar="FILE", help="Token ids for a target that is run: a JSON list of lists, or one list.")
@click.option(
    "--length", type=click.IntRange(16, 1 << 20), default=256, show_default=True, help="Tokens of a sequence."
)
@click.option("--steps", type=click.IntRange(1, 16), default=3, show_default=True, help="Draft steps.")
@click.option("--limit", type=click.IntRange(1), metavar="N", help="Read at most N sequences.")
@click.option("--search-tokens", type=click.IntRange(1), default=4096, show_default=True, help="Tokens of a search.")
@click.option(
    "--confidence",
    type=FiniteRange(0.5, 1.0, max_open=True),
    default=0.95,
    show_default=True,
    help="Of intervals; below it a search names no winner.",
)
@click.option(
    "--tolerance",
    type=FiniteRange(0.0, 1.0),
    default=0.05,
    show_default=True,
    help="How far an accuracy may lie off the contract's, chance apart.",
)
@click.option(
    "--recurrent-state", type=click.Choice(("pre_norm", "post_norm")), help="What enters step 2, where nobody says it."
)
@click.option("--batch-rows", type=click.IntRange(1), default=4096, show_default=True, help="Rows of one batch.")
@click.option(
    "--seed",
    type=click.IntRange(0, 2**63 - 1),
    default=0,
    show_default=True,
    help="Of the sequences that a search draws, and of its random starts.",
)
@click.option("--gguf", metavar="FILE", help="GGUF file in the target's directory.")
@click.option("--layers", metavar="PATH", help="Module path of the target's decoder layers, such as model.layers.")
@click.option("--norm", metavar="PATH", help="Module path of the target's final norm.")
@click.option("--embedding", metavar="PATH", help="Module path of the target's token embedding.")
@click.option("--head", metavar="PATH", help="Module path of the target's output head.")
@click.option("--device", default="cpu", show_default=True, metavar="D", help="Device of the drafter and the target.")
@click.option(
    "--dtype", default="float32", show_default=True, help="float32, bfloat16 or float16: what the drafter runs in."
)
@click.option("--trust-remote-code", is_flag=True, help="Run the model code in the target's directory.")
@click.option("--plot", metavar="FILE", help="Draw accuracy by step and wiring: .png or .svg (needs matplotlib).")
@click.option("--strict", is_flag=True, help="Count warnings as errors.")
@links_option
@format_option
@output_option
@color_option
def replay(
    checkpoint: str,
    states: str | None,
    target: str | None,
    wirings: tuple[str, ...],
    search: bool,
    planes: str | None,
    text: str | None,
    tokens: str | None,
    length: int,
    steps: int,
    limit: int | None,
    search_tokens: int,
    confidence: float,
    tolerance: float,
    recurrent_state: str | None,
    batch_rows: int,
    seed: int,
    gguf: str | None,
    layers: str | None,
    norm: str | None,
    embedding: str | None,
    head: str | None,
    device: str,
    dtype: str,
    trust_remote_code: bool,
    plot: str | None,
    strict: bool,
    follow_links: bool,
    fmt: str,
    output: str | None,
    color: str,
) -> None:
    """Run the drafter in CKPT on hidden states, under its contract's wiring and any other: how often is it right?"""
    from featurecontract.gate import ReplayOptions, refused
    from featurecontract.gate import replay as run

    guard(output, checkpoint, target)
    if plot is not None:
        from featurecontract.render import check_plot

        check_plot(Path(plot))
        guard(plot, checkpoint, target)
    options = ReplayOptions(
        states=states,
        planes=planes,
        target=target,
        gguf=gguf,
        tokens=tokens,
        text=text,
        length=length,
        limit=limit,
        recurrent_state=recurrent_state,
        device=device,
        dtype=dtype,
        modules={"layers": layers, "norm": norm, "embedding": embedding, "head": head},
        trust_remote_code=trust_remote_code,
        follow_links=follow_links,
    )
    try:
        report = run(
            checkpoint,
            options=options,
            wirings=wirings,
            steps=steps,
            search=search,
            confidence=confidence,
            max_tokens=search_tokens,
            seed=seed,
            batch_rows=batch_rows,
            tolerance=tolerance,
            strict=strict,
            progress=lambda line: click.echo(one_line(line), err=True),
        )
    except InputError as error:
        if fmt == "text" and output is None:
            raise
        report = refused(checkpoint, error)
    if plot is not None and report.replayed:
        from featurecontract.render import plot_replayed

        plot_replayed(report, Path(plot))
    emit(report, fmt, output, color, kind="check")
    sys.exit(report.exit_status)
