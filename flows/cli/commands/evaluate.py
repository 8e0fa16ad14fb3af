"""`congruence evaluate`, `validate` and `init`: what an evaluation file asks for, tried and written."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

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
    exit_status,
    open_file,
    print_json,
    use_home_store,
)

if TYPE_CHECKING:
    from congruence.tasks.settings.evaluation import EvaluationSettings


def evaluate(
    file: File,
    model: Models = None,
    again: Annotated[
        bool,
        typer.Option("--again", help="Predict and measure again; embeddings are reused."),
    ] = False,
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
    debug: Debug = False,
) -> None:
    """Evaluate registry versions on the splits of an evaluation file, and judge them by its gate.

    Exit status: 0 where all went well, 1 where a version could not be evaluated, 2 where the file or the data cannot be
    used, 3 where a version failed the file's gate, 4 where none failed it but on one it is undecided.
    """
    as_json = as_json or form is Format.JSON
    with Errors(debug, as_json, annotated=file if form is Format.GITHUB else None):
        settings = open_file(file, home, models=model)
        if quick:
            from congruence.flows.operations.sample import quick as first_look

            settings = first_look(settings)
        if dry_run:
            _validate(settings, as_json)
            return
        from congruence.flows.cli.tables import print_outcomes
        from congruence.flows.prefect.session import run_evaluation

        if settings.gate is None:
            outcomes, decisions = run_evaluation(settings, again=again), []
        else:
            from congruence.flows.operations.gate import gate_outcomes, require_baselines

            require_baselines(settings)
            outcomes = run_evaluation(settings, again=again)
            decisions = gate_outcomes(settings, outcomes)
        status = FAILED if any(outcome.status == "failed" for outcome in outcomes) else exit_status(decisions)
        if as_json:
            print_json(
                {
                    "home": settings.home,
                    "outcomes": [outcome.to_json() for outcome in outcomes],
                    "gate": [decision.to_json() for decision in decisions],
                    "exit_status": status,
                }
            )
        else:
            print_outcomes(outcomes)
            if form is Format.GITHUB:
                from congruence.flows.operations.gate_on_github import show

                show(decisions, file, outcomes)
            elif decisions:
                from congruence.flows.operations.gate import print_decisions

                print_decisions(decisions)
        if status:
            raise typer.Exit(status)


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
    from congruence.tasks.evaluate.splits import require_splits

    if not settings.is_of_stored_predictions:  # of which the plan says it
        require_splits(settings)
    from congruence.flows.operations.validate import print_validation, validation_json
    from congruence.flows.operations.validate import validate as checked

    result = checked(settings)
    if as_json:
        print_json(validation_json(result) | {"exit_status": 0 if result.good else FAILED})
    else:
        print_validation(result)
    if not result.good:
        raise typer.Exit(FAILED)


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
    debug: Debug = False,
) -> None:
    """Write a commented evaluation file for a data set and a model; columns get their roles from names and types.

    Data with columns of predictions, such as mu and sigma or q0.1 to q0.9, are taken as stored predictions, which are
    judged without the models that made them.
    """
    with Errors(debug):
        from congruence.flows.operations.init_file import write_evaluation
        from congruence.flows.operations.init_stored import stored_evaluation_text

        if model is not None:
            use_home_store(home)
        text = None if model else stored_evaluation_text(data, output, target=target, targets=targets)
        write_evaluation(data, output, model=model, target=target, overwrite=force, text=text)
        typer.echo(f"wrote {output}; read it, then: congruence validate {output}")
