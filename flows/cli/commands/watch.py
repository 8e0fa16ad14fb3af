"""`congruence watch`, `serve`, `receive` and `webhook`: scheduled and triggered evaluations."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from congruence.flows.cli.environment import log_to_prefect
from congruence.flows.cli.options import FAILED, Debug, Errors, File, Home, announce, leave_by, open_file, start
from congruence.tasks.runtime.files import SERVED_HOME


def watch(
    file: File,
    every: Annotated[
        str | None, typer.Option(help="Time between two passes: 90s, 5m, 1h; by default watch.every of the file.")
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Run one pass and exit, for cron.")] = False,
    home: Home = None,
    debug: Debug = False,
) -> None:
    """Evaluate registry versions that lack an evaluation, until stopped; one such command runs in a home folder.

    Exit status with --once: 1 where a version could not be evaluated, 3 where a version evaluated now failed the file's
    gate, 4 where none failed it but on one it is undecided.
    """
    with Errors(debug):
        settings = open_file(file, home)
        from congruence.tasks.monitor.settings import every_seconds

        pause = every_seconds(every) if every is not None else None
        announce("starting; the first pass follows in some seconds")
        from congruence.flows.watching.report import report
        from congruence.flows.watching.watch import check_once, only_watch
        from congruence.flows.watching.watch import watch as keep_watching

        if not once:
            keep_watching(settings, every=pause)
            return
        with only_watch(settings):
            result = check_once(settings)
        report(result)
        if result.failed or result.problems:
            raise typer.Exit(FAILED)
        leave_by(result.decisions)


def serve(
    file: File,
    cron: Annotated[str, typer.Option(help="When to look at the registry, in UTC.")] = "*/15 * * * *",
    name: Annotated[str | None, typer.Option(help="Of the deployments in Prefect; by default the file's.")] = None,
    home: Home = None,
    debug: Debug = False,
) -> None:
    """Evaluate versions on a schedule, and at once when `congruence receive` announces one, as runs in Prefect.

    The Prefect server is that of PREFECT_API_URL. Its page shows every run, and starts one by hand.
    """
    log_to_prefect()
    with Errors(debug):
        settings = open_file(file, home)
        os.environ[SERVED_HOME] = str(settings.home)
        from congruence.flows.deployed import serve as serve_deployments

        serve_deployments(settings, file, cron=cron, name=name)


Secret = Annotated[str, typer.Option(envvar="CONGRUENCE_WEBHOOK_SECRET", help="That of the webhook in MLflow.")]


def receive(
    secret: Secret,
    port: Annotated[int, typer.Option(help="Port to listen on.")] = 4280,
    host: Annotated[str, typer.Option(help="Address to bind; loopback unless you say otherwise.")] = "127.0.0.1",
    home: Home = None,
    debug: Debug = False,
) -> None:
    """Turn MLflow's signed webhooks of new versions into Prefect events, which deployments listen to."""
    with Errors(debug):
        start(home)
        from congruence.flows.receiver import PATH, serve_receiver

        typer.echo(f"receiving on http://{host}:{port}{PATH} (stop with Ctrl-C)")
        serve_receiver(secret, host=host, port=port)


def webhook(
    url: Annotated[str, typer.Argument(help="The receiver's, as MLflow's server reaches it: http://HOST:4280/mlflow.")],
    secret: Secret,
    debug: Debug = False,
) -> None:
    """Have MLflow's server (MLFLOW_TRACKING_URI) post new versions to `congruence receive`."""
    with Errors(debug):
        from congruence.tasks.mlflow.settings import TrackingSettings
        from congruence.tasks.mlflow.webhook import register_webhook

        typer.echo(register_webhook(url, secret, TrackingSettings()))
