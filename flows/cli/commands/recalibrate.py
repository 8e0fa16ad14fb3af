"""`congruence recalibrate`."""

from __future__ import annotations

from typing import Annotated

import typer

from congruence.flows.cli.options import FAILED, AsJson, Debug, Errors, File, Home, open_file, print_json


def recalibrate(
    file: File,
    version: Annotated[
        str | None, typer.Option("--version", "-v", help="Number or alias under the file's model, or models:/name/3.")
    ] = None,
    fit: Annotated[
        str | None, typer.Option(help="Split to fit on, all of it; by default half of the first split's rows, by key.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Also where the test of calibration finds no fault.")] = False,
    as_json: AsJson = False,
    home: Home = None,
    debug: Debug = False,
) -> None:
    """Correct a version where it is wrong, register the result as a new version, and evaluate both.

    They are judged on rows that the correction was not fitted on: the other half, as the split `<split>-held-out`, or
    with --fit the file's other splits. Exit status: 1 where one could not be evaluated, 2 where there is nothing to
    recalibrate or it cannot be done.
    """
    with Errors(debug, as_json):
        settings = open_file(file, home)
        from congruence.flows.prefect.session import session

        with session():
            from congruence.flows.operations.recalibrate import print_recalibrated
            from congruence.flows.operations.recalibrate import recalibrate as correct

            made = correct(settings, version, fit=fit, force=force)
        status = FAILED if any(outcome.status == "failed" for outcome in made.outcomes) else 0
        if as_json:
            said = {"parent": made.parent.uri, "version": made.version.uri, "fitted_on": made.fitted_on}
            outcomes = [outcome.to_json() for outcome in made.outcomes]
            print_json({**said, "correction": made.said, "outcomes": outcomes, "exit_status": status})
        else:
            print_recalibrated(made)
        if status:
            raise typer.Exit(status)
