"""The command `congruence doctor`; what it does is loaded when it runs."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from congruence.flows.cli.options import FAILED, AsJson, Debug, Errors, Home, print_json

_COLOURS = {"ok": typer.colors.GREEN, "warning": typer.colors.YELLOW, "wrong": typer.colors.RED}


def doctor(
    file: Annotated[
        Path | None, typer.Argument(help="An evaluation file (YAML): what it names is looked at, too.")
    ] = None,
    as_json: AsJson = False,
    home: Home = None,
    debug: Debug = False,
) -> None:
    """Look at versions, servers, store and disks, and say what is wrong and how to fix it.

    It takes seconds, starts nothing, and leaves nothing behind.
    Exit status: 0 where evaluations can run, 1 where something is wrong.
    """
    with Errors(debug, as_json):
        from congruence.flows.operations.doctor import diagnose

        found = []
        for finding in diagnose(file, home, debug=debug):
            found.append(finding)
            if not as_json:
                typer.echo(typer.style(f"{finding.level:<8}", fg=_COLOURS[finding.level]) + str(finding))
        status = FAILED if any(finding.level == "wrong" for finding in found) else 0
        if as_json:
            print_json({"findings": [asdict(finding) for finding in found], "exit_status": status})
        if status:
            raise typer.Exit(status)
