"""The command `congruence clean`; what it does is loaded when it runs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from congruence.flows.cli.environment import embed_servers
from congruence.flows.cli.options import Debug, Errors, Home


def clean(
    files: Annotated[list[Path], typer.Argument(help="Evaluation files (YAML): what they name is kept.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Remove without asking.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List only.")] = False,
    predictions: Annotated[
        bool, typer.Option("--predictions", help="Also those on the files' splits: finished evaluations need none.")
    ] = False,
    home: Home = None,
    debug: Debug = False,
) -> None:
    """List, then remove what no run of these evaluation files needs: embeddings, predictions, iterates, indexes.

    All of it can be made again. Nothing goes while a run works in the home folder or in a local store, nor what was
    written within the last hour (in object stores, where others may write unseen, within the last day). What MLflow
    holds, scores of new inputs and data are never touched. Without a terminal and without --yes it only lists.
    """
    with Errors(debug):
        from congruence.flows.operations.cleanup import clean as remove_leftovers
        from congruence.flows.operations.cleanup import readable
        from congruence.tasks.settings.evaluation import load_settings

        def agreed(size: int) -> bool:
            return sys.stdin.isatty() and typer.confirm(f"remove {readable(size)}?")

        settings = [load_settings(file, {} if home is None else {"home": str(home)}) for file in files]
        embed_servers(settings[0].home_folder)
        remove_leftovers(settings, lambda size: not dry_run and (yes or agreed(size)), predictions=predictions)
