"""`congruence demo`, `ui`, `doctor` and `clean`: on this machine alone; what each does is loaded when it runs."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

import typer

from congruence.flows.cli.environment import embed_servers
from congruence.flows.cli.options import FAILED, AsJson, Debug, Errors, Home, print_json, start
from congruence.tasks.runtime.files import tracking_uri

DemoData: TypeAlias = Literal["digits", "hourly"]


def demo(
    data: Annotated[
        DemoData, typer.Option("--data", help="Rotated digits, or counts of every hour, which are not independent.")
    ] = "digits",
    over_time: Annotated[
        bool, typer.Option("--over-time", help="Instead: 40 looks at a version in use that goes wrong on the way.")
    ] = False,
    home: Home = None,
    debug: Debug = False,
) -> None:
    """Run the whole pipeline on data whose distribution is known: data, model versions, embeddings, CCE, MLflow."""
    with Errors(debug):
        folder = start(home)
        if over_time:
            from congruence.flows.operations.demo_over_time import run_demo_over_time

            run_demo_over_time(folder)
            return
        if data == "hourly":
            from congruence.flows.operations.demo_hourly import run_demo_hourly

            run_demo_hourly(folder)
            return
        from congruence.tasks.encoders.loading import require_image_packages

        require_image_packages("the demo", "torch", "open_clip")
        from congruence.flows.operations.demo import run_demo

        run_demo(folder)


def ui(
    home: Home = None,
    port: Annotated[int, typer.Option(help="Port on loopback.")] = 5000,
    host: Annotated[str, typer.Option(help="Address to bind; loopback unless you say otherwise.")] = "127.0.0.1",
    debug: Debug = False,
) -> None:
    """Open MLflow's UI on the evaluations of the home folder."""
    with Errors(debug):
        folder = start(home)
        from congruence.flows.operations.ui import require_free, serve_ui
        from congruence.tasks.runtime.mlflow_access import require_local_store

        require_free(host, port)
        require_local_store(tracking_uri(folder))
        typer.echo(f"MLflow on http://{host}:{port} (stop with Ctrl-C)")
        raise typer.Exit(serve_ui(folder, host, port))


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
    """List, then remove what no run of these evaluation files needs: embeddings, predictions, measurements, indexes.

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
