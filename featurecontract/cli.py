"""The commands. Each reads its arguments, calls the gate, renders, and exits 0, 1 or 2; nothing is decided here."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from featurecontract._version import __version__
from featurecontract.errors import FeatureContractError, InputError, UsageError

if TYPE_CHECKING:
    from featurecontract.findings import Report
    from featurecontract.runtimes import RuntimeRules

__all__ = ["cli", "main"]

FORMATS = ("text", "json", "junit", "sarif", "github", "markdown", "html")
COULD_NOT_CHECK = 2
INTERRUPTED = 130

_checkpoint = click.argument("checkpoint", metavar="CKPT")
_target = click.option(
    "--target", metavar="T", help="Target: model directory, config.json, or name:L,H[,ARCHITECTURE]."
)
_runtime = click.option(
    "--runtime", "runtimes", multiple=True, metavar="NAME[==VERSION]", help="Runtime to predict; may be repeated."
)
_dialect = click.option("--dialect", metavar="D", help="Read the config as this dialect (see `rules --dialects`).")
_rules = click.option(
    "--rules", "rules_files", multiple=True, metavar="FILE", help="Rules of a fork, in the format of ours."
)
_links = click.option("--follow-links", is_flag=True, help="Follow links that leave the checkpoint directory.")
_format = click.option(
    "-o", "fmt", type=click.Choice(FORMATS), default="text", show_default=True, help="Output format."
)
_output = click.option("--output", metavar="FILE", help="Write the output to FILE instead of standard output.")
_color = click.option(
    "--color", type=click.Choice(("auto", "always", "never")), default="auto", help="Colours in text output."
)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="featurecontract")
def cli() -> None:
    """Contract tests for the hidden states that a drafter is trained on and a serving runtime feeds.

    Exit status: 0 holds, 1 violated, 2 could not check.
    """


@cli.command()
@_checkpoint
@_target
@_runtime
@click.option("--changes", is_flag=True, help="Print only what differs between the runtimes or versions named.")
@_dialect
@_rules
@_links
@_format
@_output
@_color
def predict(
    checkpoint: str,
    target: str | None,
    runtimes: tuple[str, ...],
    changes: bool,
    dialect: str | None,
    rules_files: tuple[str, ...],
    follow_links: bool,
    fmt: str,
    output: str | None,
    color: str,
) -> None:
    """Say what each known runtime would feed for CKPT; needs no contract, no GPU, no torch."""
    from featurecontract.gate import predict as run
    from featurecontract.gate import prediction_changes

    _guard(output, checkpoint)
    report = run(
        checkpoint,
        target=target,
        runtimes=runtimes,
        dialect=dialect,
        rules=_read_rules(rules_files),
        follow_links=follow_links,
    )
    status = report.prediction_status
    if changes:
        report = prediction_changes(report)
        if not report.predicted and not report.findings and fmt == "text":
            _write("no difference: each feeds the same as the one named before it\n", output)
            sys.exit(status)
    _emit(report, fmt, output, color, kind="predict")
    sys.exit(status)


@cli.command()
@_checkpoint
@_target
@_runtime
@click.option("--contract", "contract_file", metavar="FILE", help="Contract to use instead of the one beside CKPT.")
@click.option(
    "--serve-args", metavar="ARGS", help="The server's command line, or a file with it (YAML for TensorRT-LLM)."
)
@_rules
@click.option("--digests", is_flag=True, help="Compare the sha256 of the tensors as well; reads their data.")
@click.option("--strict", is_flag=True, help="Count warnings as errors.")
@_links
@_format
@_output
@_color
def check(
    checkpoint: str,
    target: str | None,
    runtimes: tuple[str, ...],
    contract_file: str | None,
    serve_args: str | None,
    rules_files: tuple[str, ...],
    digests: bool,
    strict: bool,
    follow_links: bool,
    fmt: str,
    output: str | None,
    color: str,
) -> None:
    """Compare what each runtime would feed for CKPT with what its contract declares."""
    from featurecontract.gate import check as run
    from featurecontract.gate import refused

    _guard(output, checkpoint, contract_file)
    if serve_args is not None and not serve_args.strip():
        raise UsageError("--serve-args: is empty; give the server's command line, or a file with it: @FILE")
    rules = _read_rules(rules_files)
    try:
        report = run(
            checkpoint,
            target=target,
            runtimes=runtimes,
            contract=contract_file,
            rules=rules,
            serve_args=serve_args,
            digests=digests,
            strict=strict,
            follow_links=follow_links,
        )
    except (InputError, UsageError) as error:
        if fmt == "text" and output is None:
            raise
        report = refused(checkpoint, error)
    _emit(report, fmt, output, color, kind="check")
    sys.exit(report.exit_status)


@cli.command()
@_checkpoint
@_target
@_dialect
@click.option("--features", metavar="LIST", help="The features it was trained on: boundaries, embedding, final_norm.")
@click.option("--convention", type=click.Choice(("layer_output", "layer_input")), help="What the config's ids count.")
@click.option("--name", metavar="NAME", help="Name in the contract; the directory's by default.")
@click.option("--digests", is_flag=True, help="Record the sha256 of the interface's tensors; reads their data.")
@click.option("--force", is_flag=True, help="Replace the contract that is there.")
@_links
def init(
    checkpoint: str,
    target: str | None,
    dialect: str | None,
    features: str | None,
    convention: str | None,
    name: str | None,
    digests: bool,
    force: bool,
    follow_links: bool,
) -> None:
    """Write a contract beside CKPT: from --features, or from its config where only one reading fits."""
    from featurecontract.gate import write_contract

    click.echo(
        write_contract(
            checkpoint,
            target=target,
            dialect=dialect,
            features=features,
            convention=convention,
            name=name,
            digests=digests,
            force=force,
            follow_links=follow_links,
        ),
        nl=False,
    )


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
@click.option("--seed", type=int, default=0, show_default=True, help="Chooses the fingerprints' channels.")
@click.option("--force", is_flag=True, help="Replace a contract that declares other features.")
@click.option("--trust-remote-code", is_flag=True, help="Run the model code in MODEL.")
@_links
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
        progress=lambda line: click.echo(_one_line(line), err=True),
    )
    probe = contract.probe
    floor = probe.noise_floor if probe else None
    click.echo(f"wrote {out}: [{contract.wiring}], {rows} rows, noise floor {floor}")
    for statement in contract.provenance.statements:
        if statement.path == "probe":
            click.echo(_one_line(statement.reason))


@cli.command()
@_checkpoint
@click.argument("captures", metavar="CAPTURE...", nargs=-1, required=True)
@click.option(
    "--confidence",
    type=click.FloatRange(0.0, 1.0),
    default=0.9,
    show_default=True,
    help="Below this an answer is inconclusive: could not check.",
)
@click.option("--strict", is_flag=True, help="Count warnings as errors.")
@_links
@_format
@_output
@_color
def verify(
    checkpoint: str,
    captures: tuple[str, ...],
    confidence: float,
    strict: bool,
    follow_links: bool,
    fmt: str,
    output: str | None,
    color: str,
) -> None:
    """Name what CAPTURE holds (files, or directories of them) and compare it with the contract of CKPT."""
    from featurecontract.gate import refused
    from featurecontract.gate import verify as run

    _guard(output, checkpoint, *captures)
    try:
        report = run(checkpoint, captures, confidence=confidence, strict=strict, follow_links=follow_links)
    except InputError as error:
        if fmt == "text" and output is None:
            raise
        report = refused(checkpoint, error)
    _emit(report, fmt, output, color, kind="check")
    sys.exit(report.exit_status)


@cli.command()
@_checkpoint
@click.option(
    "-o", "fmt", type=click.Choice(("text", "json")), default="text", show_default=True, help="Output format."
)
def show(checkpoint: str, fmt: str) -> None:
    """Print the contract of CKPT, with every boundary in the words of each tool."""
    from featurecontract.contract import dumps, load
    from featurecontract.render import describe_contract

    contract = load(checkpoint)
    click.echo(dumps(contract).decode() if fmt == "json" else describe_contract(contract), nl=False)


@cli.command()
@click.argument("old")
@click.argument("new")
@_format
@_output
@_color
def diff(old: str, new: str, fmt: str, output: str | None, color: str) -> None:
    """Compare two contracts: 0 compatible, 1 breaking, 2 unreadable."""
    from featurecontract.contract import load
    from featurecontract.gate import compare_contracts

    _guard(output, old, new)
    report = compare_contracts(load(old), load(new), paths=(old, new))
    _emit(report, fmt, output, color, kind="check")
    sys.exit(report.exit_status)


@cli.command()
@click.argument("slug")
def explain(slug: str) -> None:
    """Explain a rule: what it means, what causes it, what to do."""
    from featurecontract.findings import rule_for

    rule = rule_for(slug)
    could_not = ", could not check" if rule.unchecked else ""
    click.echo(f"{rule.rule} {rule.slug} ({rule.severity}{could_not}): {rule.title}\n")
    click.echo(click.wrap_text(rule.text, 96))


@cli.command("rules")
@click.option("--runtimes", "what", flag_value="runtimes", help="List the runtimes and the versions that are known.")
@click.option("--dialects", "what", flag_value="dialects", help="List the dialects of published configs.")
@click.option(
    "-o", "fmt", type=click.Choice(("text", "json")), default="text", show_default=True, help="Output format."
)
def rules_command(what: str | None, fmt: str) -> None:
    """List the rules; with an option, the runtimes or the dialects."""
    import json

    from featurecontract.gate import listing

    rows = listing(what or "rules")
    if fmt == "json":
        click.echo(json.dumps(rows, indent=2))
        return
    width = [max(len(str(row[key])) for row in rows) for key in rows[0]]
    for row in rows:
        click.echo("  ".join(str(v).ljust(w) for v, w in zip(row.values(), width, strict=True)).rstrip())


@cli.command()
@click.argument("which", type=click.Choice(("contract", "report", "rules")), default="contract")
def schema(which: str) -> None:
    """Print the JSON Schema of contracts, of the JSON report, or of rules files."""
    import json

    from featurecontract.gate import json_schema

    click.echo(json.dumps(json_schema(which), indent=2))


def _read_rules(paths: tuple[str, ...]) -> dict[str, RuntimeRules]:
    if not paths:
        return {}
    from featurecontract.runtimes import read_rules

    found = [read_rules(Path(path)) for path in paths]
    return {item.runtime: item for item in found}


def _wants_color(choice: str, output: str | None) -> bool:
    if choice != "auto":
        return choice == "always"
    return output is None and sys.stdout is not None and sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def _emit(report: Report, fmt: str, output: str | None, color: str, *, kind: str) -> None:
    from featurecontract.render import render

    _write(render(report, fmt, color=_wants_color(color, output), kind=kind), output)


def _write(text: str, output: str | None) -> None:
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


def _guard(output: str | None, *inputs: str | None) -> None:
    from featurecontract.contract._files import same_file_of

    found = same_file_of(output, *inputs) if output is not None else None
    if found is not None:
        raise UsageError(f"--output {output}: that is {found}, which is read; choose another file")


def main(arguments: list[str] | None = None) -> Any:
    """Run a command; every failure is one line on standard error and exit status 2, an interrupt is 130."""
    try:
        try:
            _dispatch(arguments)
        finally:
            if arguments is None:
                # What is left is the interpreter's own shutdown: an interrupt in it ends the process, without a word.
                _interrupts_end_the_process()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


def _interrupts_end_the_process() -> None:
    import signal

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def _dispatch(arguments: list[str] | None) -> None:
    try:
        cli.main(args=arguments, prog_name="featurecontract", standalone_mode=False)
    except click.ClickException as error:
        with contextlib.suppress(OSError):
            if sys.stderr is not None:
                error.show()
        sys.exit(COULD_NOT_CHECK)
    except click.Abort:
        _complain("interrupted")
        sys.exit(INTERRUPTED)
    except FeatureContractError as error:
        _complain(f"error: {_one_line(str(error))}")
        sys.exit(COULD_NOT_CHECK)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        _complain(f"error: {_one_line(where + (error.strerror or str(error)))}")
        _drop_output()
        sys.exit(COULD_NOT_CHECK)
    except SystemExit:
        # click answers a pipe whose reader went away, as `| head` does, with status 1: that would be a verdict.
        if type(sys.stdout).__name__.endswith("PacifyFlushWrapper"):
            _drop_output()
            sys.exit(COULD_NOT_CHECK)
        raise


def _complain(line: str) -> None:
    """Say a line on standard error, if there is one that takes it."""
    with contextlib.suppress(OSError):
        click.echo(line, err=True)


def _drop_output() -> None:
    """Send what is still buffered to nowhere: a flush that fails at the end would give an exit status of its own."""
    with contextlib.suppress(OSError, AttributeError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _one_line(text: str) -> str:
    from featurecontract.render import clean

    return clean(text, limit=2000)


if __name__ == "__main__":
    main()
