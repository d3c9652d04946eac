"""``capture``: the probe through a real server or engine, with capture on."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import click

from featurecontract.cli._group import cli
from featurecontract.cli._options import checkpoint_argument, links_option, one_line
from featurecontract.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

__all__: list[str] = []


@cli.command()
@checkpoint_argument
@click.option("--runtime", required=True, metavar="NAME", help="vllm, sglang, transformers or torch.")
@click.option("--out", required=True, metavar="DIR", help="Directory that the captures go into.")
@click.option("--target", metavar="T", help="The target's directory; for transformers.")
@click.option("--url", metavar="U", help="A server that runs with the plugin already, such as http://127.0.0.1:8000.")
@click.option("--tap", metavar="PATH", help="PACKAGE.MODULE:Class.method whose rows are captured; for torch.")
@click.option("--startup", type=float, default=1200.0, show_default=True, help="Seconds until the server must answer.")
@links_option
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="[-- COMMAND...]")
def capture(
    checkpoint: str,
    runtime: str,
    out: str,
    target: str | None,
    url: str | None,
    tap: str | None,
    startup: float,
    follow_links: bool,
    command: tuple[str, ...],
) -> None:
    """Send CKPT's probe through COMMAND, a server, with capture on; print where the captures are."""
    from featurecontract.contract import contract_path, load
    from featurecontract.live import capture_reference, capture_script, capture_served
    from featurecontract.probe import read_probe

    def say(line: str) -> None:
        click.echo(one_line(line), err=True)

    file = contract_path(checkpoint)
    contract = load(file)
    probe = read_probe(contract, file.parent, follow_links=follow_links)
    if tap is not None and runtime != "torch":
        raise UsageError("--tap names a callable of your own program: --runtime torch --tap PATH -- SCRIPT...")
    if runtime == "transformers":
        if target is None or command or url:
            raise UsageError(
                "--runtime transformers runs the target itself: give --target DIR, and no command or --url"
            )
        paths: tuple[Path, ...] = (capture_reference(contract, probe, target, out, progress=say),)
    elif runtime == "torch":
        if tap is None or not command:
            raise UsageError("--runtime torch runs your own program: --tap PACKAGE.MODULE:Class.method -- SCRIPT...")
        paths = capture_script(tap, out, command, progress=say)
    else:
        paths = capture_served(runtime, probe, out, command=command, url=url, startup=startup, progress=say)
    for path in paths:
        click.echo(str(path))
    words = shlex.join(["featurecontract", "verify", checkpoint, str(paths[0].parent)])
    click.echo(one_line(f"next: {words}"), err=True)
