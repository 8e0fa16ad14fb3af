"""The command `congruence doctor`; what it does is loaded when it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from congruence.flows.cli.options import AsJson, Debug, Errors, Home, print_json


def doctor(
    file: Annotated[
        Path | None, typer.Argument(help="An evaluation file (YAML): what it names is looked at, too.")
    ] = None,
    pool: Annotated[
        str | None, typer.Option(help="The Prefect work pool of your deployments: a worker must serve it.")
    ] = None,
    as_json: AsJson = False,
    home: Home = None,
    debug: Debug = False,
) -> None:
    """Look at servers, workers, cards, disks, clocks and packages, and say what is wrong and how to fix it.

    What can be written is found out by writing: a run and an artifact in MLflow, a tag on each named model, a variable
    in Prefect, an object in the store; all of it is deleted at once. It takes seconds and starts nothing.
    Exit status: 0 where evaluations can run, 1 where something is wrong.
    """
    with Errors(debug, as_json):
        from congruence.flows.operations.doctor import diagnose, exit_status, findings_json, print_finding

        found = []
        for finding in diagnose(file, home, pool, debug=debug):
            found.append(finding)
            if not as_json:
                print_finding(finding)
        if as_json:
            print_json(findings_json(found))
        if status := exit_status(found):
            raise typer.Exit(status)
