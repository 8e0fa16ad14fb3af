"""`congruence reproduce`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from congruence.flows.cli.options import AsJson, Debug, Errors, Home, print_json, start
from congruence.flows.reproduce.experiments import ALL, NAMES, named


def reproduce(
    name: Annotated[str, typer.Argument(help=f"Which experiment: {ALL}, {', '.join(NAMES)}.")] = ALL,
    quick: Annotated[bool, typer.Option("--quick", help="Sizes that take seconds; verdicts on them are weak.")] = False,
    output: Annotated[
        Path | None,
        typer.Option(help="Where figures, tables and the page go; by default `reproduce` in the home folder."),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(help="Folder of the public data sets (protein/, discrete-wave-and-published-results/)."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of every random choice.")] = 0,
    as_json: AsJson = False,
    home: Home = None,
    debug: Debug = False,
) -> None:
    """Run the papers' own experiments: their figures, a table, and a verdict on each of their claims.

    All is kept in a folder with one page of verdicts, and logged to MLflow's experiment `reproduce`. A claim that does
    not hold here is said with its numbers and is no failure.
    """
    with Errors(debug, as_json):
        names = named(name)
        folder = start(home)
        from congruence.flows.cli.environment import tracking_uri
        from congruence.flows.prefect.session import session
        from congruence.flows.reproduce.run import reproduce as run
        from congruence.tasks.reproduction.outcome import Plan
        from congruence.tasks.runtime.mlflow_database import point_mlflow_at

        point_mlflow_at(tracking_uri(folder))
        kept = output or folder / ("reproduce-quick" if quick else "reproduce")
        with session():
            done = run(names, Plan(quick, seed, data), kept.resolve())
        if as_json:
            said = {o.name: [asdict(claim) for claim in o.claims] for o in done.outcomes}
            print_json({"page": done.page, "verdicts": said, "left_out": done.left_out})
        else:
            typer.echo(f"verdicts and figures: {done.page}")
