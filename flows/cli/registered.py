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
    File,
    Format,
    GateFormat,
    Home,
    Models,
    embed_servers,
    exit_status,
    explaining,
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
) -> None:
    """Run the whole pipeline on data whose distribution is known: data, model versions, embeddings, CCE, MLflow."""
    folder = start(home)
    if not over_time and data == "digits":
        from congruence.tasks.encoders.loading import require_image_packages

        require_image_packages("the demo", "torch", "open_clip")
    from congruence.flows.operations import demo as operation

    run = operation.run_demo_over_time if over_time else operation.demo_of(data).run
    run(folder)


def ui(
    home: Home = None,
    port: Annotated[int, typer.Option(help="Port on loopback.")] = 5000,
    host: Annotated[str, typer.Option(help="Address to bind; loopback unless you say otherwise.")] = "127.0.0.1",
) -> int:
    """Open MLflow's UI on the evaluations of the home folder."""
    folder = start(home, writes=False)
    from congruence.flows.operations.listing import require_free, serve_ui
    from congruence.tasks.mlflow.connection import require_local_store

    require_free(host, port)
    require_local_store(tracking_uri(folder))
    typer.echo(f"MLflow on http://{host}:{port} (stop with Ctrl-C)")
    return serve_ui(folder, host, port)


_COLOURS = {"ok": typer.colors.GREEN, "warning": typer.colors.YELLOW, "wrong": typer.colors.RED}


def doctor(
    file: Annotated[
        Path | None, typer.Argument(help="An evaluation file (YAML): what it names is looked at, too.")
    ] = None,
    as_json: AsJson = False,
    home: Home = None,
    debug: Debug = False,
) -> int:
    """Look at versions, servers, store and disks, and say what is wrong and how to fix it.

    It takes seconds, starts nothing, and leaves nothing behind.
    Exit status: 0 where evaluations can run, 1 where something is wrong.
    """
    from congruence.flows.operations.doctor import diagnose

    found = []
    for finding in diagnose(file, home, debug=debug):
        found.append(finding)
        if not as_json:
            typer.echo(typer.style(f"{finding.level:<8}", fg=_COLOURS[finding.level]) + str(finding))
    status = FAILED if any(finding.level == "wrong" for finding in found) else 0
    if as_json:
        print_json({"findings": [asdict(finding) for finding in found], "exit_status": status})
    return status


def clean(
    files: Annotated[list[Path], typer.Argument(help="Evaluation files (YAML): what they name is kept.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Remove without asking.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List only.")] = False,
    predictions: Annotated[
        bool, typer.Option("--predictions", help="Also those on the files' splits: finished evaluations need none.")
    ] = False,
    home: Home = None,
) -> None:
    """List, then remove what no run of these evaluation files needs: embeddings, predictions, measurements, indexes.

    All of it can be made again. Nothing goes while a run works in the home folder or in a local store, nor what was
    written within the last hour (in object stores, where others may write unseen, within the last day). What MLflow
    holds, scores of new inputs and data are never touched. Without a terminal and without --yes it only lists.
    """
    from dask.utils import format_bytes

    from congruence.flows.operations import cleanup
    from congruence.tasks.settings.evaluation import load_settings

    def agreed(size: int) -> bool:
        return sys.stdin.isatty() and typer.confirm(f"remove {format_bytes(size)}?")

    settings = [load_settings(file, {} if home is None else {"home": str(home)}) for file in files]
    embed_servers(settings[0].home_folder, writes=False)  # a full disk is what people clean
    cleanup.clean(settings, lambda size: not dry_run and (yes or agreed(size)), predictions=predictions)


def list_versions(
    names: Annotated[
        list[str] | None, typer.Argument(help="Model names, with shell wildcards, or versions; by default all.")
    ] = None,
    as_json: AsJson = False,
    home: Home = None,
) -> None:
    """List registered versions with their aliases, latest evaluations and gates."""
    settings = use_home_store(home)
    from congruence.flows.operations import listing
    from congruence.tasks.mlflow.reading import list_evaluations

    found = list_evaluations(names or [], settings)
    if as_json:
        print_json(listing.listing_json(found))
    else:
        listing.print_listing(found, names or ())


def open_report(
    version: Annotated[str, typer.Argument(help="models:/name/3, models:/name@alias, or a name for its latest.")],
    split: Annotated[str | None, typer.Option(help="On this split; by default the one evaluated last.")] = None,
    over_time: Annotated[
        bool, typer.Option("--over-time", help="The page of the model over all looks of `watch` instead.")
    ] = False,
    show: Annotated[bool, typer.Option("--browser/--print", help="Open it in a browser, or only print where.")] = True,
    home: Home = None,
) -> None:
    """Open the report of a version's latest evaluation, or the page of its model over time."""
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
        bool, typer.Option("--details", help="Every difference with interval and p-value, and where two differ most.")
    ] = False,
    as_json: AsJson = False,
    home: Home = None,
) -> None:
    """Compare evaluated versions: differences with intervals and p-values, points won and lost; logged to MLflow.

    With an evaluation file: their evaluations by that file (its data, encoder, protocol, predictions and solver).
    """
    from congruence.flows.operations.compare import compared, comparison_json, print_comparison

    found = compared(arguments or [], home, split=split, baseline=baseline, protocol_digest=protocol)
    if as_json:
        print_json([comparison_json(logged) for logged in found])
        return
    for logged in found:
        print_comparison(logged, details=details)


def gate(
    file: File,
    model: Models = None,
    protocol: Annotated[str | None, typer.Option(help="Protocol digest; by default the file's.")] = None,
    as_json: AsJson = False,
    form: GateFormat = Format.TEXT,
    home: Home = None,
) -> int:
    """Judge versions, as evaluated by an evaluation file, by its gate; an alias moves only if the file says so.

    Exit status: 0 where all pass, 3 where a version fails, 4 where none fails but one is undecided (the split is too
    small to tell), 2 where one cannot be judged.
    """
    settings = open_file(file, home, models=model)
    from congruence.flows.operations import gate as operation
    from congruence.tasks.mlflow.connection import use_tracking

    use_tracking(settings.for_workers().tracking)
    decisions = operation.gate(settings, protocol_digest=protocol)
    status = exit_status(decisions)
    if as_json:
        said = [decision.to_json() for decision in decisions]
        print_json({"home": settings.home, "gate": said, "exit_status": status})
    else:
        operation.show(decisions, form, file)
    return status


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
) -> int:
    """Correct a version where it is wrong, register the result as a new version, and evaluate both.

    They are judged on rows that the correction was not fitted on: the other half, as the split `<split>-held-out`, or
    with --fit the file's other splits. Exit status: 1 where one could not be evaluated, 2 where there is nothing to
    recalibrate or it cannot be done.
    """
    settings = open_file(file, home)
    from congruence.flows.cli.session import session

    with session():
        from congruence.flows.operations import recalibrate as operation

        made = operation.recalibrate(settings, version, fit=fit, force=force)
    status = FAILED if any(outcome.status == "failed" for outcome in made.outcomes) else 0
    if as_json:
        said = {"parent": made.parent.uri, "version": made.version.uri, "fitted_on": made.fitted_on}
        outcomes = [outcome.to_json() for outcome in made.outcomes]
        print_json({**said, "correction": made.said, "outcomes": outcomes, "exit_status": status})
    else:
        operation.print_recalibrated(made)
    return status


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
) -> None:
    """Say how far a version can be trusted on new, unlabelled inputs, and which of them to withhold."""
    settings = open_file(file, home)
    from congruence.flows.cli.session import server_on_its_way, session

    with server_on_its_way(), explaining():
        from congruence.flows.operations import score_inputs

        score_inputs.require_readable(settings, inputs, split)  # before the server is waited for
        with session():
            scored = score_inputs.score(settings, model, inputs, split, output, log, withhold)
    score_inputs.print_scores(scored)
