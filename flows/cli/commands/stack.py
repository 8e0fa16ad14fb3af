"""`congruence stack`: every server of a deployment as a process of this machine."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from congruence.flows.cli.options import FAILED, AsJson, Debug, Errors, File, Home, home_folder, open_file, print_json

if TYPE_CHECKING:
    from congruence.tasks.stack.account import Account

stack = typer.Typer(
    no_args_is_help=True,
    help="PostgreSQL, an S3-protocol server, MLflow, Prefect and Dask as processes of this machine.",
)


@stack.command()
def up(
    home: Home = None,
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Return when every part is well.")] = False,
    wait: Annotated[float, typer.Option(help="Seconds to wait for that, with --detach.")] = 300.0,
    s3: Annotated[
        str | None,
        typer.Option(help="Address of an S3-protocol server of yours, with its keys in AWS_ACCESS_KEY_ID and so on."),
    ] = None,
    debug: Debug = False,
) -> None:
    """Start every part, look after them, and end them all at Ctrl-C, SIGTERM or `congruence stack down`."""
    with Errors(debug):
        chosen = home_folder(home)
        chosen.announce()
        from congruence.flows.stack.up import keep_up, start_detached

        if not detach:
            raise typer.Exit(keep_up(chosen.folder, typer.echo, s3=s3))
        _show(start_detached(chosen.folder, wait, s3=s3))
        _tell(chosen.folder)


@stack.command()
def status(home: Home = None, as_json: AsJson = False, debug: Debug = False) -> None:
    """Show each part: its process, its address, whether it is well and since when. Status 1 unless all are."""
    with Errors(debug, as_json):
        from congruence.flows.stack.place import stack_folder
        from congruence.tasks.stack.account import read_account

        folder = home_folder(home).folder
        account = read_account(stack_folder(folder))
        if as_json:
            print_json(None if account is None else account.as_dict())
        elif account is None:
            typer.echo(f"no stack is up in {folder}; start one with `congruence stack up`")
        else:
            _show(account)
        if account is None or not account.healthy:
            raise typer.Exit(FAILED)


@stack.command()
def down(home: Home = None, debug: Debug = False) -> None:
    """End every part in order. What they keep stays, but for what the stack's own S3 server held in memory."""
    with Errors(debug):
        from congruence.flows.stack.up import take_down

        folder = home_folder(home).folder
        typer.echo("every part has ended" if take_down(folder) else f"no stack is up in {folder}")


@stack.command()
def deploy(
    file: File,
    cron: Annotated[str, typer.Option(help="When to look at the registry, in UTC.")] = "*/15 * * * *",
    name: Annotated[str | None, typer.Option(help="Of the deployments in Prefect; by default the file's.")] = None,
    home: Home = None,
    debug: Debug = False,
) -> None:
    """Have the stack evaluate versions by an evaluation file: on a schedule, and as soon as one is registered."""
    with Errors(debug):
        from congruence.flows.stack.deployed import deploy_on_stack, use_stack

        settings = open_file(file, home)
        use_stack(settings.home_folder)
        for line in deploy_on_stack(settings, file, cron=cron, name=name):
            typer.echo(line)


def _show(account: Account) -> None:
    rows = [("part", "process", "address", "well", "since", "starts")]
    rows += [
        (
            part.name,
            str(part.pid or "-"),
            part.address,
            "yes" if part.healthy else f"no: {part.note or 'starting'}",
            time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(part.since)),
            str(part.starts),
        )
        for part in account.parts
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        typer.echo("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip())


def _tell(home: Path) -> None:
    from congruence.flows.stack.place import stack_folder

    folder = os.path.relpath(stack_folder(home))
    typer.echo(
        f"\nan evaluation file to begin with: {folder}/evaluation.yaml (`congruence stack deploy` has it carried out)\n"
        f"addresses and passwords for a shell: . {folder}/environment\n"
        f"logs: {folder}/logs"
    )
