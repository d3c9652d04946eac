"""Commands that need no torch: predict, check, init, show, diff, explain, rules, schema."""

from __future__ import annotations

import sys

import click

from featurecontract.cli._group import cli
from featurecontract.cli._options import (
    checkpoint_argument,
    color_option,
    dialect_option,
    emit,
    format_option,
    guard,
    links_option,
    output_option,
    read_rules_files,
    rules_option,
    runtime_option,
    target_option,
    write,
)
from featurecontract.errors import InputError, UsageError

__all__: list[str] = []


@cli.command()
@checkpoint_argument
@target_option
@runtime_option
@click.option("--changes", is_flag=True, help="Print only what differs between the runtimes or versions named.")
@dialect_option
@rules_option
@links_option
@format_option
@output_option
@color_option
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

    guard(output, checkpoint)
    report = run(
        checkpoint,
        target=target,
        runtimes=runtimes,
        dialect=dialect,
        rules=read_rules_files(rules_files),
        follow_links=follow_links,
    )
    status = report.prediction_status
    if changes:
        report = prediction_changes(report)
        if not report.predicted and not report.findings and fmt == "text":
            write("no difference: each feeds the same as the one named before it\n", output)
            sys.exit(status)
    emit(report, fmt, output, color, kind="predict")
    sys.exit(status)


@cli.command()
@checkpoint_argument
@target_option
@runtime_option
@click.option("--contract", "contract_file", metavar="FILE", help="Contract to use instead of the one beside CKPT.")
@click.option(
    "--serve-args", metavar="ARGS", help="The server's command line, or a file with it (YAML for TensorRT-LLM)."
)
@rules_option
@click.option("--digests", is_flag=True, help="Compare the sha256 of the tensors as well; reads their data.")
@click.option("--strict", is_flag=True, help="Count warnings as errors.")
@links_option
@format_option
@output_option
@color_option
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

    guard(output, checkpoint, contract_file)
    if serve_args is not None and not serve_args.strip():
        raise UsageError("--serve-args: is empty; give the server's command line, or a file with it: @FILE")
    rules = read_rules_files(rules_files)
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
    emit(report, fmt, output, color, kind="check")
    sys.exit(report.exit_status)


@cli.command()
@checkpoint_argument
@target_option
@dialect_option
@click.option("--features", metavar="LIST", help="The features it was trained on: boundaries, embedding, final_norm.")
@click.option("--convention", type=click.Choice(("layer_output", "layer_input")), help="What the config's ids count.")
@click.option("--from-search", metavar="FILE", help="The features that `replay --search -o json` found, as inferred.")
@click.option("--name", metavar="NAME", help="Name in the contract; the directory's by default.")
@click.option("--digests", is_flag=True, help="Record the sha256 of the interface's tensors; reads their data.")
@click.option("--force", is_flag=True, help="Replace the contract that is there.")
@links_option
def init(
    checkpoint: str,
    target: str | None,
    dialect: str | None,
    features: str | None,
    convention: str | None,
    from_search: str | None,
    name: str | None,
    digests: bool,
    force: bool,
    follow_links: bool,
) -> None:
    """Write a contract beside CKPT: from --features, from a search, or from its config where only one reading fits."""
    from featurecontract.gate import write_contract

    click.echo(
        write_contract(
            checkpoint,
            target=target,
            dialect=dialect,
            features=features,
            convention=convention,
            from_search=from_search,
            name=name,
            digests=digests,
            force=force,
            follow_links=follow_links,
        ),
        nl=False,
    )


@cli.command()
@checkpoint_argument
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
@format_option
@output_option
@color_option
def diff(old: str, new: str, fmt: str, output: str | None, color: str) -> None:
    """Compare two contracts: 0 compatible, 1 breaking, 2 unreadable."""
    from featurecontract.contract import load
    from featurecontract.gate import compare_contracts

    guard(output, old, new)
    report = compare_contracts(load(old), load(new), paths=(old, new))
    emit(report, fmt, output, color, kind="check")
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
