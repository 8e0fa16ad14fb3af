"""The command line, `congruence`: its commands that evaluate, and the list of all."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from congruence.flows.cli.options import (
    FAILED,
    AsJson,
    File,
    Format,
    GateFormat,
    Home,
    Models,
    announce,
    exit_status,
    open_file,
    print_json,
    quiet_libraries,
    reporting_errors,
    start,
    use_home_store,
)
from congruence.flows.cli.registered import (
    clean,
    compare,
    demo,
    doctor,
    gate,
    list_versions,
    open_report,
    recalibrate,
    score,
    ui,
)
from congruence.tasks.runtime.files import SERVED_HOME

if TYPE_CHECKING:
    from congruence.tasks.settings.evaluation import EvaluationSettings


def evaluate(
    file: File,
    model: Models = None,
    again: Annotated[bool, typer.Option("--again", help="Predict and measure again; embeddings are reused.")] = False,
    quick: Annotated[
        bool,
        typer.Option("--quick", help="A first look: 2,000 random rows of a split, logged as <split>-quick; no gate."),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check everything and say what would be done, as `congruence validate`.")
    ] = False,
    as_json: AsJson = False,
    form: GateFormat = Format.TEXT,
    home: Home = None,
) -> int:
    """Evaluate registry versions on the splits of an evaluation file, and judge them by its gate.

    Exit status: 0 where all went well, 1 where a version could not be evaluated, 2 where the file or the data cannot be
    used, 3 where a version failed the file's gate, 4 where none failed it but on one it is undecided.
    """
    settings = open_file(file, home, models=model)
    if quick:
        from congruence.flows.operations.validate import quick as first_look

        settings = first_look(settings)
    if dry_run:
        return _validate(settings, as_json)
    from congruence.flows.cli.session import beginning_early

    with beginning_early(settings):
        from congruence.flows.cli.console import print_outcomes
        from congruence.flows.cli.session import run_evaluation

        if settings.gate is None:
            outcomes, decisions = run_evaluation(settings, again=again), []
        else:
            from congruence.flows.operations.gate import gate_outcomes, require_baselines

            require_baselines(settings)
            outcomes = run_evaluation(settings, again=again)
            decisions = gate_outcomes(settings, outcomes)
    status = FAILED if any(outcome.status == "failed" for outcome in outcomes) else exit_status(decisions)
    if as_json:
        said = {"outcomes": [each.to_json() for each in outcomes], "gate": [each.to_json() for each in decisions]}
        print_json({"home": settings.home, **said, "exit_status": status})
    else:
        print_outcomes(outcomes)
        if decisions or form is Format.GITHUB:
            from congruence.flows.operations.gate import show

            show(decisions, form, file, outcomes)
    return status


def validate(file: File, model: Models = None, as_json: AsJson = False, home: Home = None) -> int:
    """Check file, data, encoder, models and gate as a run would, and say what it would do; nothing is evaluated.

    Versions that are not evaluated yet are loaded, which runs their authors' code, and asked for a few rows.
    Exit status: 0 where a run could go on, 1 where a version could not be evaluated, 2 where none could be.
    """
    return _validate(open_file(file, home, models=model), as_json)


def _validate(settings: EvaluationSettings, as_json: bool) -> int:
    from congruence.tasks.data.split import open_split

    if not settings.is_of_stored_predictions:  # of which the plan says it
        for split in settings.splits:  # for what files and columns alone can be wrong in: before MLflow is loaded
            open_split(split, settings.plans_folder)
    from congruence.flows.operations import validate as operation

    result = operation.validate(settings)
    status = 0 if result.good else FAILED
    if as_json:
        print_json(asdict(result) | {"exit_status": status})
    else:
        operation.print_validation(result)
    return status


def init(
    data: Annotated[str, typer.Argument(help="A labelled split: a file, folder or address in any supported format.")],
    model: Annotated[
        list[str] | None,
        typer.Option("--model", "-m", help="A version in the registry, which is asked for a row; may be repeated."),
    ] = None,
    target: Annotated[str | None, typer.Option(help="The column to predict, where its name does not tell.")] = None,
    targets: Annotated[
        str | None, typer.Option(help="A table of outcomes, where the data are predictions that production stored.")
    ] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="The file to write.")] = Path("evaluation.yaml"),
    force: Annotated[bool, typer.Option("--force", help="Replace the file where it exists.")] = False,
    home: Home = None,
) -> None:
    """Write a commented evaluation file for a data set and a model; columns get their roles from names and types.

    Data with columns of predictions, such as mu and sigma or q0.1 to q0.9, are taken as stored predictions, which are
    judged without the models that made them.
    """
    from congruence.flows.operations.init import write_evaluation

    if model is not None:
        use_home_store(home)
    write_evaluation(data, output, model=model, target=target, targets=targets, overwrite=force)
    typer.echo(f"wrote {output}; read it, then: congruence validate {output}")


def watch(
    file: File,
    every: Annotated[
        str | None, typer.Option(help="Time between two passes: 90s, 5m, 1h; by default watch.every of the file.")
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Run one pass and exit, for cron.")] = False,
    home: Home = None,
) -> int:
    """Evaluate registry versions that lack an evaluation, until stopped; one such command runs in a home folder.

    Exit status with --once: 1 where a version could not be evaluated, 3 where a version evaluated now failed the file's
    gate, 4 where none failed it but on one it is undecided.
    """
    settings = open_file(file, home)
    from congruence.tasks.settings.production import every_seconds

    pause = every_seconds(every) if every is not None else None
    announce("starting; the first pass follows in some seconds")
    from congruence.flows.operations import watch as operation
    from congruence.flows.operations.looks import report

    if not once:
        operation.watch(settings, every=pause)
        return 0
    with operation.only_watch(settings):
        result = operation.check_once(settings)
    report(result)
    return FAILED if result.failed or result.problems else exit_status(result.decisions)


def serve(
    file: File,
    cron: Annotated[str, typer.Option(help="When to look at the registry, in UTC.")] = "*/15 * * * *",
    name: Annotated[str | None, typer.Option(help="Of the deployments in Prefect; by default the file's.")] = None,
    home: Home = None,
) -> None:
    """Evaluate versions on a schedule, and at once when `congruence receive` announces one, as runs in Prefect.

    The Prefect server is that of PREFECT_API_URL. Its page shows every run, and starts one by hand.
    """
    # What runs log stands on their pages of the server; said before it is loaded.
    os.environ.setdefault("PREFECT_LOGGING_LEVEL", "INFO")
    os.environ.setdefault("PREFECT_LOGGING_EXTRA_LOGGERS", "congruence")
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
) -> None:
    """Turn MLflow's signed webhooks of new versions into Prefect events, which deployments listen to."""
    start(home)
    from congruence.flows.receiver import serve_receiver

    serve_receiver(secret, host=host, port=port)


def webhook(
    url: Annotated[str, typer.Argument(help="The receiver's, as MLflow's server reaches it: http://HOST:4280/mlflow.")],
    secret: Secret,
) -> None:
    """Have MLflow's server (MLFLOW_TRACKING_URI) post new versions to `congruence receive`."""
    quiet_libraries()
    from congruence.flows.receiver import register_webhook
    from congruence.tasks.settings.sections import TrackingSettings

    typer.echo(register_webhook(url, secret, TrackingSettings()))


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


_COMMANDS: tuple[Callable[..., int | None], ...] = (
    *(evaluate, validate, init, list_versions, open_report, compare, gate, recalibrate, watch, serve, score),
    *(receive, webhook, demo, ui, doctor, clean),
)
for _function in _COMMANDS:
    app.command(_function.__name__.partition("_")[0])(reporting_errors(_function))
