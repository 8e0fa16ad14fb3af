"""The `congruence` command."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from congruence.flows.clean import clean
from congruence.flows.environment import log_to_prefect
from congruence.flows.options import (
    FAILED,
    AsJson,
    Debug,
    Errors,
    File,
    Home,
    Models,
    exit_status,
    leave_by,
    open_file,
    print_json,
    start,
)
from congruence.tasks.settings.home import SERVED

if TYPE_CHECKING:
    from congruence.tasks.settings.evaluation import EvaluationSettings
    from congruence.tasks.tracking.settings import TrackingSettings


def _print_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        typer.echo(f"congruence {version('congruence')}")
        raise typer.Exit


app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)


@app.callback()
def congruence(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    """How far the predictive distributions of registered models are from the truth, point by point."""


@app.command()
def evaluate(
    file: File,
    model: Models = None,
    again: Annotated[
        bool, typer.Option("--again", help="Predict and measure anew what was evaluated before; embeddings are kept.")
    ] = False,
    quick: Annotated[
        bool,
        typer.Option("--quick", help="A first look: 2,000 random rows of a split, logged as <split>-quick; no gate."),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check everything and say what would be done, as `congruence validate`.")
    ] = False,
    as_json: AsJson = False,
    home: Home = None,
    debug: Debug = False,
) -> None:
    """Evaluate registry versions on the splits of an evaluation file, and judge them by its gate.

    Exit status: 0 where all went well, 1 where a version could not be evaluated, 2 where the file or the data cannot be
    used, 3 where a version failed the file's gate, 4 where none failed it but on one it is undecided.
    """
    with Errors(debug, as_json):
        settings = open_file(file, home, models=model)
        if quick:
            from congruence.flows.quick import quick as first_look

            settings = first_look(settings)
        if dry_run:
            _validate(settings, as_json)
            return
        from congruence.flows.outcomes import decision_json, outcome_json
        from congruence.flows.session import run_evaluation
        from congruence.flows.tables import print_outcomes

        if settings.gate is None:
            outcomes, decisions = run_evaluation(settings, again=again), []
        else:
            from congruence.flows.gate import gate_outcomes, require_baselines

            require_baselines(settings)
            outcomes = run_evaluation(settings, again=again)
            decisions = gate_outcomes(settings, outcomes)
        status = FAILED if any(outcome.status == "failed" for outcome in outcomes) else exit_status(decisions)
        if as_json:
            print_json(
                {
                    "home": settings.home,
                    "outcomes": [outcome_json(outcome) for outcome in outcomes],
                    "gate": [decision_json(decision) for decision in decisions],
                    "exit_status": status,
                }
            )
        else:
            print_outcomes(outcomes)
            if decisions:
                from congruence.flows.gate import print_decisions

                print_decisions(decisions)
        if status:
            raise typer.Exit(status)


@app.command()
def validate(
    file: File, model: Models = None, as_json: AsJson = False, home: Home = None, debug: Debug = False
) -> None:
    """Check file, data, encoder, models and gate as a run would, and say what it would do; nothing is evaluated.

    Versions that are not evaluated yet are loaded, which runs their authors' code, and asked for a few rows.
    Exit status: 0 where a run could go on, 1 where a version could not be evaluated, 2 where none could be.
    """
    with Errors(debug, as_json):
        _validate(open_file(file, home, models=model), as_json)


def _validate(settings: EvaluationSettings, as_json: bool) -> None:
    from congruence.flows.validate import print_validation, validation_json
    from congruence.flows.validate import validate as checked

    result = checked(settings)
    if as_json:
        print_json(validation_json(result) | {"exit_status": 0 if result.good else FAILED})
    else:
        print_validation(result)
    if not result.good:
        raise typer.Exit(FAILED)


@app.command()
def init(
    data: Annotated[str, typer.Argument(help="A labelled split: a file, folder or address in any supported format.")],
    model: Annotated[
        str | None, typer.Option("--model", "-m", help="A version in the registry, whose columns then say more.")
    ] = None,
    target: Annotated[str | None, typer.Option(help="The column to predict, where its name does not tell.")] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="The file to write.")] = Path("evaluation.yaml"),
    force: Annotated[bool, typer.Option("--force", help="Replace the file where it exists.")] = False,
    home: Home = None,
    debug: Debug = False,
) -> None:
    """Write a commented evaluation file for a data set and a model; columns get their roles from names and types."""
    with Errors(debug):
        from congruence.flows.init import write_evaluation

        if model is not None:
            _use_home_store(home)
        write_evaluation(data, output, model=model, target=target, overwrite=force)
        typer.echo(f"wrote {output}; read it, then: congruence validate {output}")


@app.command(name="list")
def list_versions(
    names: Annotated[
        list[str] | None, typer.Argument(help="Model names, with shell wildcards, or versions; by default all.")
    ] = None,
    as_json: AsJson = False,
    home: Home = None,
    debug: Debug = False,
) -> None:
    """List registered versions with their aliases, latest evaluations and gates."""
    with Errors(debug, as_json):
        settings = _use_home_store(home)
        from congruence.flows.listing import listing_json, print_listing
        from congruence.tasks.tracking.listing import list_evaluations

        found = list_evaluations(names or [], settings)
        if as_json:
            print_json(listing_json(found))
        else:
            print_listing(found)


@app.command(name="open")
def open_report(
    version: Annotated[str, typer.Argument(help="models:/name/3, models:/name@alias, or a name for its latest.")],
    split: Annotated[str | None, typer.Option(help="On this split; by default the one evaluated last.")] = None,
    show: Annotated[bool, typer.Option("--browser/--print", help="Open it in a browser, or only print where.")] = True,
    home: Home = None,
    debug: Debug = False,
) -> None:
    """Open the report of a version's latest evaluation."""
    with Errors(debug):
        settings = _use_home_store(home)
        from congruence.flows.listing import report_address

        address = report_address(version, split, settings)
        typer.echo(address)
        if show:
            import webbrowser

            webbrowser.open(address)


def _use_home_store(home: Path | None) -> TrackingSettings:
    """Point MLflow at the environment's server, else at the home folder, for commands without an evaluation file."""
    folder = start(home)
    import mlflow

    from congruence.flows.environment import tracking_uri
    from congruence.tasks.tracking.settings import TrackingSettings

    mlflow.set_tracking_uri(tracking_uri(folder))
    return TrackingSettings()


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
    as_json: AsJson = False,
    home: Home = None,
    debug: Debug = False,
) -> None:
    """Compare evaluated versions: differences with intervals and p-values, points won and lost; logged to MLflow.

    With an evaluation file: their evaluations by that file (its data, encoder, protocol, predictions and solver).
    """
    with Errors(debug, as_json):
        from congruence.flows.compare import compare as compare_versions
        from congruence.flows.compare import comparison_json, comparison_request, print_comparison

        request = comparison_request(arguments or [], split, home, protocol_digest=protocol)
        said = []
        for name, conditions in request.conditions.items():
            logged = compare_versions(
                name, request.models, request.tracking, baseline=baseline, conditions=conditions, seed=request.seed
            )
            if as_json:
                said.append(comparison_json(logged))
            else:
                print_comparison(logged)
        if as_json:
            print_json(said)


@app.command()
def gate(
    file: File,
    model: Models = None,
    protocol: Annotated[str | None, typer.Option(help="Protocol digest; by default the file's.")] = None,
    as_json: AsJson = False,
    home: Home = None,
    debug: Debug = False,
) -> None:
    """Judge versions, as evaluated by an evaluation file, by its gate; an alias moves only if the file says so.

    Exit status: 0 where all pass, 3 where a version fails, 4 where none fails but one is undecided (the split is too
    small to tell), 2 where one cannot be judged.
    """
    with Errors(debug, as_json):
        settings = open_file(file, home, models=model)
        from congruence.flows.gate import gate as judge
        from congruence.flows.gate import print_decisions
        from congruence.flows.outcomes import decision_json
        from congruence.flows.tracking import use_tracking

        use_tracking(settings)
        decisions = judge(settings, protocol_digest=protocol)
        if as_json:
            said = [decision_json(decision) for decision in decisions]
            print_json({"home": settings.home, "gate": said, "exit_status": exit_status(decisions)})
        else:
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
    with Errors(debug):
        settings = open_file(file, home)
        from congruence.flows.session import session
        from congruence.tasks.watching import every_seconds

        pause = every_seconds(every) if every is not None else None
        with session():
            from congruence.flows.watch import report, stop_on_signals, tick
            from congruence.flows.watch import watch as keep_watching

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
    with Errors(debug):
        settings = open_file(file, home)
        os.environ[SERVED] = str(settings.home)
        from congruence.flows.serve import serve as serve_deployments

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
    with Errors(debug):
        settings = open_file(file, home)
        from congruence.flows.session import session

        with session():
            from congruence.flows.score import print_scores
            from congruence.flows.score import score as score_inputs

            scored = score_inputs(settings, model, inputs, split, output, log)
        print_scores(scored)


@app.command()
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
    mend or it cannot be done.
    """
    with Errors(debug, as_json):
        settings = open_file(file, home)
        from congruence.flows.session import session

        with session():
            from congruence.flows.outcomes import outcome_json
            from congruence.flows.recalibrate import print_recalibrated
            from congruence.flows.recalibrate import recalibrate as correct

            made = correct(settings, version, fit=fit, force=force)
        status = FAILED if any(outcome.status == "failed" for outcome in made.outcomes) else 0
        if as_json:
            said = {"parent": made.parent.uri, "version": made.version.uri, "fitted_on": made.fitted_on}
            outcomes = [outcome_json(outcome) for outcome in made.outcomes]
            print_json({**said, "correction": made.said, "outcomes": outcomes, "exit_status": status})
        else:
            print_recalibrated(made)
        if status:
            raise typer.Exit(status)


@app.command()
def receive(
    secret: Annotated[str, typer.Option(envvar="CONGRUENCE_WEBHOOK_SECRET", help="That of the webhook in MLflow.")],
    port: Annotated[int, typer.Option(help="Port to listen on.")] = 4280,
    host: Annotated[str, typer.Option(help="Address to bind; loopback unless you say otherwise.")] = "127.0.0.1",
    home: Home = None,
    debug: Debug = False,
) -> None:
    """Turn MLflow's signed webhooks of new versions into Prefect events, which deployments listen to."""
    with Errors(debug):
        start(home)
        from congruence.tasks.watching.webhook import PATH, serve_receiver

        typer.echo(f"receiving on http://{host}:{port}{PATH} (stop with Ctrl-C)")
        serve_receiver(secret, host=host, port=port)


@app.command()
def demo(home: Home = None, debug: Debug = False) -> None:
    """Run the whole pipeline on rotated digits: data, six model versions, embeddings, CCE, MLflow."""
    with Errors(debug):
        folder = start(home)
        from congruence.flows.demo import run_demo

        run_demo(folder)


@app.command()
def ui(
    home: Home = None,
    port: Annotated[int, typer.Option(help="Port on loopback.")] = 5000,
    host: Annotated[str, typer.Option(help="Address to bind; loopback unless you say otherwise.")] = "127.0.0.1",
    debug: Debug = False,
) -> None:
    """Open MLflow's UI on the evaluations of the home folder."""
    with Errors(debug):
        folder = start(home)
        from congruence.flows.ui import serve_ui

        typer.echo(f"MLflow on http://{host}:{port} (stop with Ctrl-C)")
        raise typer.Exit(serve_ui(folder, host, port))


app.command()(clean)


def main() -> None:
    """Entry point of the `congruence` command."""
    app()


if __name__ == "__main__":
    main()
