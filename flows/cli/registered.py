"""Commands on what is evaluated, and on this machine."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

import typer

from congruence.flows.cli.options import (
    FAILED,
    AsJson,
    Debug,
    Errors,
    File,
    Format,
    GateFormat,
    Home,
    Models,
    embed_servers,
    exit_status,
    leave_by,
    open_file,
    print_json,
    start,
    use_home_store,
)
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
            from congruence.flows.operations.demo import run_demo_over_time

            run_demo_over_time(folder)
            return
        if data == "hourly":
            from congruence.flows.operations.demo import run_demo_hourly

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
        from congruence.flows.operations.listing import require_free, serve_ui
        from congruence.tasks.mlflow.connection import require_local_store

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
        settings = use_home_store(home)
        from congruence.flows.operations.listing import listing_json, print_listing
        from congruence.tasks.mlflow.finished import list_evaluations

        found = list_evaluations(names or [], settings)
        if as_json:
            print_json(listing_json(found))
        else:
            print_listing(found)


def open_report(
    version: Annotated[str, typer.Argument(help="models:/name/3, models:/name@alias, or a name for its latest.")],
    split: Annotated[str | None, typer.Option(help="On this split; by default the one evaluated last.")] = None,
    over_time: Annotated[
        bool, typer.Option("--over-time", help="The page of the model over all looks of `watch` instead.")
    ] = False,
    show: Annotated[bool, typer.Option("--browser/--print", help="Open it in a browser, or only print where.")] = True,
    home: Home = None,
    debug: Debug = False,
) -> None:
    """Open the report of a version's latest evaluation, or the page of its model over time."""
    with Errors(debug):
        settings = use_home_store(home)
        from congruence.flows.operations.listing import over_time_address, report_address

        address = over_time_address(version, settings) if over_time else report_address(version, split, settings)
        typer.echo(address)
        if show:
            import webbrowser

            webbrowser.open(address)


def compare(
    arguments: Annotated[
        list[str] | None, typer.Argument(help="[EVALUATION FILE] [VERSION ...]; by default all versions of the split.")
    ] = None,
    split: Annotated[str | None, typer.Option(help="Name of the split; by default every split of the file.")] = None,
    baseline: Annotated[
        str | None,
        typer.Option(
            help="Version to compare with; by default the gate's baseline, else the version that ranks first."
        ),
    ] = None,
    protocol: Annotated[
        str | None,
        typer.Option(help="Protocol digest; by default the file's, without a file the latest that all versions share."),
    ] = None,
    details: Annotated[
        bool,
        typer.Option("--details", help="Every difference with interval and p-value, and where two differ most."),
    ] = False,
    as_json: AsJson = False,
    home: Home = None,
    debug: Debug = False,
) -> None:
    """Compare evaluated versions: differences with intervals and p-values, points won and lost; logged to MLflow.

    With an evaluation file: their evaluations by that file (its data, encoder, protocol, predictions and solver).
    """
    with Errors(debug, as_json):
        from congruence.flows.operations.compare import compare as compare_versions
        from congruence.flows.operations.compare import (
            compare_stored,
            comparison_json,
            comparison_request,
            named_baseline,
            print_comparison,
        )

        request = comparison_request(arguments or [], split, home, protocol_digest=protocol)
        said = []
        file = arguments[0] if arguments and Path(arguments[0]).suffix in (".yaml", ".yml") else None
        if request.stored is not None:
            against = baseline or request.baseline
            for logged in compare_stored(request.stored, request.models, baseline=against):
                if as_json:
                    said.append(comparison_json(logged))
                else:
                    print_comparison(logged, details=details)
        else:
            against = baseline or named_baseline(request.baseline, request.models, request.tracking)
        for name, conditions in request.conditions.items():
            logged = compare_versions(
                name,
                request.models,
                request.tracking,
                baseline=against,
                conditions=conditions,
                seed=request.seed,
                mark=not request.names_versions,
            )
            if as_json:
                said.append(comparison_json(logged, file))
            else:
                print_comparison(logged, details=details, chosen=against is not None, file=file)
        if as_json:
            print_json(said)


def gate(
    file: File,
    model: Models = None,
    protocol: Annotated[str | None, typer.Option(help="Protocol digest; by default the file's.")] = None,
    as_json: AsJson = False,
    form: GateFormat = Format.TEXT,
    home: Home = None,
    debug: Debug = False,
) -> None:
    """Judge versions, as evaluated by an evaluation file, by its gate; an alias moves only if the file says so.

    Exit status: 0 where all pass, 3 where a version fails, 4 where none fails but one is undecided (the split is too
    small to tell), 2 where one cannot be judged.
    """
    form = Format.JSON if as_json else form
    with Errors(debug, form is Format.JSON, annotated=file if form is Format.GITHUB else None):
        settings = open_file(file, home, models=model)
        from congruence.flows.operations.gate import gate as judge
        from congruence.flows.operations.gate import print_decisions, show
        from congruence.tasks.evaluate.splits import use_tracking

        use_tracking(settings)
        decisions = judge(settings, protocol_digest=protocol)
        if form is Format.JSON:
            said = [decision.to_json() for decision in decisions]
            print_json({"home": settings.home, "gate": said, "exit_status": exit_status(decisions)})
        elif form is Format.GITHUB:
            show(decisions, file)
        else:
            print_decisions(decisions)
        leave_by(decisions)


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
        from congruence.flows.session import session

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
        from congruence.flows.session import session

        with session():
            from congruence.flows.operations.score_inputs import print_scores
            from congruence.flows.operations.score_inputs import score as score_inputs

            scored = score_inputs(settings, model, inputs, split, output, log, withhold)
        print_scores(scored)
