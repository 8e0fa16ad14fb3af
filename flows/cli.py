"""The `congruence` command."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from congruence.flows.clean import clean
from congruence.flows.environment import log_to_prefect, tracking_uri
from congruence.flows.options import FAILED, Debug, Errors, File, Home, Models, leave_by, start

app = typer.Typer(
    help="How far the predictive distributions of registered models are from the truth, point by point.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)


@app.command()
def evaluate(
    file: File,
    model: Models = None,
    again: Annotated[
        bool, typer.Option("--again", help="Predict and measure anew what was evaluated before; embeddings are kept.")
    ] = False,
    home: Home = None,
    debug: Debug = False,
) -> None:
    """Evaluate registry versions on the splits of an evaluation file, and judge them by its gate.

    Exit status: 0 where all went well, 1 where a version could not be evaluated, 2 where the file or the data cannot be
    used, 3 where a version failed the file's gate, 4 where none failed it but on one it is undecided.
    """
    folder = start(home)
    with Errors(debug):
        from congruence.flows.gate import gate_outcomes, print_decisions, require_baselines
        from congruence.flows.session import run_evaluation
        from congruence.flows.tables import print_outcomes
        from congruence.tasks.settings.evaluation import load_settings

        overrides = {"home": str(folder)} | ({"models": model} if model else {})
        settings = load_settings(file, overrides)
        require_baselines(settings)
        outcomes = run_evaluation(settings, again=again)
        print_outcomes(outcomes)
        decisions = gate_outcomes(settings, outcomes)
        print_decisions(decisions)
        if any(outcome.status == "failed" for outcome in outcomes):
            raise typer.Exit(FAILED)
        leave_by(decisions)


@app.command()
def compare(
    arguments: Annotated[
        list[str] | None, typer.Argument(help="[EVALUATION FILE] [VERSION ...]; by default all versions of the split.")
    ] = None,
    split: Annotated[str | None, typer.Option(help="Name of the split; by default every split of the file.")] = None,
    baseline: Annotated[str | None, typer.Option(help="Version to compare with; by default the lowest CCE.")] = None,
    protocol: Annotated[
        str | None,
        typer.Option(help="Protocol digest; by default the file's, without a file the latest that all versions share."),
    ] = None,
    home: Home = None,
    debug: Debug = False,
) -> None:
    """Compare evaluated versions: differences with intervals and p-values, points won and lost; logged to MLflow.

    With an evaluation file: their evaluations by that file (its data, encoder, protocol, predictions and solver).
    """
    folder = start(home)
    with Errors(debug):
        from congruence.flows.compare import compare as compare_versions
        from congruence.flows.compare import comparison_request, print_comparison

        request = comparison_request(arguments or [], split, folder, protocol_digest=protocol)
        for name, conditions in request.conditions.items():
            logged = compare_versions(
                name, request.models, request.tracking, baseline=baseline, conditions=conditions, seed=request.seed
            )
            print_comparison(logged)


@app.command()
def gate(
    file: File,
    model: Models = None,
    protocol: Annotated[str | None, typer.Option(help="Protocol digest; by default the file's.")] = None,
    home: Home = None,
    debug: Debug = False,
) -> None:
    """Judge versions, as evaluated by an evaluation file, by its gate; an alias moves only if the file says so.

    Exit status: 0 where all pass, 3 where a version fails, 4 where none fails but one is undecided (the split is too
    small to tell), 2 where one cannot be judged.
    """
    folder = start(home)
    with Errors(debug):
        from congruence.flows.gate import gate as judge
        from congruence.flows.gate import print_decisions
        from congruence.flows.tracking import use_tracking
        from congruence.tasks.settings.evaluation import load_settings

        settings = load_settings(file, {"home": str(folder)} | ({"models": model} if model else {}))
        use_tracking(settings)
        decisions = judge(settings, protocol_digest=protocol)
        print_decisions(decisions)
        leave_by(decisions)


@app.command()
def watch(
    file: File,
    every: Annotated[
        str | None, typer.Option(help="Time between two looks: 90s, 5m, 1h; by default watch.every of the file.")
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Look once and leave, for a scheduler of your own.")] = False,
    home: Home = None,
    debug: Debug = False,
) -> None:
    """Evaluate registry versions that lack an evaluation, until stopped; any number of watchers may run.

    Exit status with --once: 1 where a version could not be evaluated, 3 where a version evaluated now failed the file's
    gate, 4 where none failed it but on one it is undecided.
    """
    folder = start(home)
    with Errors(debug):
        from congruence.flows.watch import report, stop_on_signals, tick
        from congruence.flows.watch import watch as keep_watching
        from congruence.tasks.settings.evaluation import load_settings
        from congruence.tasks.watching import every_seconds

        settings = load_settings(file, {"home": str(folder)})
        pause = every_seconds(every) if every is not None else None
        if not once:
            keep_watching(settings, every=pause, stop=stop_on_signals())
            return
        result = tick(settings)
        report(result)
        if result.failed or result.problems:
            raise typer.Exit(FAILED)
        leave_by(result.decisions)


@app.command()
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
    folder = start(home)
    os.environ["CONGRUENCE_HOME"] = str(folder)  # for the runs, which are processes of their own
    with Errors(debug):
        from congruence.flows.serve import serve as serve_deployments
        from congruence.tasks.settings.evaluation import load_settings

        settings = load_settings(file, {"home": str(folder)})
        typer.echo(f"serving {file} (cron {cron!r} and new versions; stop with Ctrl-C)")
        serve_deployments(settings, file, cron=cron, name=name)


@app.command()
def score(
    file: File,
    model: Annotated[str, typer.Option("--model", "-m", help="The version: models:/name/3 or models:/name@alias.")],
    inputs: Annotated[str, typer.Option(help="Address of the new inputs, with the columns of the labelled split.")],
    split: Annotated[str | None, typer.Option(help="Name of the labelled split; by default the first.")] = None,
    output: Annotated[Path | None, typer.Option(help="Folder to write to; by default in the home folder.")] = None,
    log: Annotated[bool, typer.Option(help="Log a run to MLflow as well.")] = True,
    home: Home = None,
    debug: Debug = False,
) -> None:
    """Say how far a version can be trusted on new, unlabelled inputs, and which of them to withhold."""
    folder = start(home)
    with Errors(debug):
        from congruence.flows.score import print_scores
        from congruence.flows.score import score as score_inputs
        from congruence.tasks.settings.evaluation import load_settings

        settings = load_settings(file, {"home": str(folder)})
        print_scores(score_inputs(settings, model, inputs, split, output, log))


@app.command()
def receive(
    secret: Annotated[str, typer.Option(envvar="CONGRUENCE_WEBHOOK_SECRET", help="That of the webhook in MLflow.")],
    port: Annotated[int, typer.Option(help="Port to listen on.")] = 4280,
    host: Annotated[str, typer.Option(help="Address to bind; loopback unless you say otherwise.")] = "127.0.0.1",
    home: Home = None,
    debug: Debug = False,
) -> None:
    """Turn MLflow's signed webhooks of new versions into Prefect events, which deployments listen to."""
    start(home)
    with Errors(debug):
        from congruence.tasks.watching.webhook import PATH, serve_receiver

        typer.echo(f"receiving on http://{host}:{port}{PATH} (stop with Ctrl-C)")
        serve_receiver(secret, host=host, port=port)


@app.command()
def demo(home: Home = None, debug: Debug = False) -> None:
    """Run the whole pipeline on rotated digits: data, six model versions, embeddings, CCE, MLflow."""
    folder = start(home)
    with Errors(debug):
        from congruence.flows.demo import run_demo

        run_demo(folder)


@app.command()
def ui(
    home: Home = None,
    port: Annotated[int, typer.Option(help="Port on loopback.")] = 5000,
    host: Annotated[str, typer.Option(help="Address to bind; loopback unless you say otherwise.")] = "127.0.0.1",
) -> None:
    """Open MLflow's UI on the evaluations of the home folder."""
    folder = start(home)
    command = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", tracking_uri(folder)]
    command += [
        "--default-artifact-root",
        str(folder / "mlartifacts"),
        "--host",
        host,
        "--port",
        str(port),
        "--workers",
        "1",
    ]
    environment = os.environ | {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    typer.echo(f"MLflow on http://{host}:{port} (stop with Ctrl-C)")
    raise typer.Exit(subprocess.call(command, env=environment))


app.command()(clean)


def main() -> None:
    """Entry point of the `congruence` command."""
    app()


if __name__ == "__main__":
    main()
