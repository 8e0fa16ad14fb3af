"""The `congruence` command."""

from __future__ import annotations

from typing import Annotated

import typer

from congruence.flows.cli.commands.evaluate import evaluate, init, validate
from congruence.flows.cli.commands.local import clean, demo, doctor, ui
from congruence.flows.cli.commands.registry import compare, gate, list_versions, open_report, recalibrate, score
from congruence.flows.cli.commands.watch import receive, serve, watch, webhook


def _print_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        typer.echo(f"congruence {version('congruence')}")
        raise typer.Exit


app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # rich takes longer to import than everything else that `--help` needs
    context_settings={"max_content_width": 160},
)


@app.callback()
def congruence(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """How far the predictive distributions of registered models are from the truth, point by point."""


app.command()(evaluate)
app.command()(validate)
app.command()(init)
app.command(name="list")(list_versions)
app.command(name="open")(open_report)
app.command()(compare)
app.command()(gate)
app.command()(recalibrate)
app.command()(watch)
app.command()(serve)
app.command()(score)
app.command()(receive)
app.command()(webhook)
app.command()(demo)
app.command()(ui)
app.command()(doctor)
app.command()(clean)
