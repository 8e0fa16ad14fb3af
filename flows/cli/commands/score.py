"""`congruence score`: how far a version can be trusted on new inputs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from congruence.flows.cli.options import Debug, Errors, File, Home, open_file


def score(
    file: File,
    model: Annotated[str, typer.Option("--model", "-m", help="The version: models:/name/3 or models:/name@alias.")],
    inputs: Annotated[str, typer.Option(help="Address of the new inputs, with the columns of the labelled split.")],
    split: Annotated[str | None, typer.Option(help="Name of the labelled split; by default the first.")] = None,
    output: Annotated[Path | None, typer.Option(help="Folder to write to; by default in the home folder.")] = None,
    log: Annotated[bool, typer.Option(help="Log a run to MLflow as well.")] = True,
    withhold: Annotated[
        str | None,
        typer.Option(help="Share of the inputs to withhold, such as '5 %'; by default what is unusual or wrong."),
    ] = None,
    home: Home = None,
    debug: Debug = False,
) -> None:
    """Say how far a version can be trusted on new, unlabelled inputs, and which of them to withhold."""
    with Errors(debug):
        settings = open_file(file, home)
        from congruence.flows.prefect.session import session

        with session():
            from congruence.flows.operations.score_inputs import print_scores
            from congruence.flows.operations.score_inputs import score as score_inputs

            scored = score_inputs(settings, model, inputs, split, output, log, withhold)
        print_scores(scored)
