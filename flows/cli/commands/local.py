"""`congruence demo` and `ui`: on this machine alone."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

import typer

from congruence.flows.cli.options import Debug, Errors, Home, start
from congruence.tasks.settings.home import tracking_uri

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
    """Run the whole pipeline on data whose law is known: data, model versions, embeddings, CCE, MLflow."""
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
        from congruence.flows.operations.free_port import require_free
        from congruence.flows.operations.ui import serve_ui
        from congruence.tasks.runtime.mlflow_database import require_local_store

        require_free(host, port)
        require_local_store(tracking_uri(folder))
        typer.echo(f"MLflow on http://{host}:{port} (stop with Ctrl-C)")
        raise typer.Exit(serve_ui(folder, host, port))
