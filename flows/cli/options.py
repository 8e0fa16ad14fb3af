"""What every command of `congruence` shares: its common options, its start, and how it reports errors."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from congruence.flows.cli.environment import embed_servers
from congruence.tasks.runtime.files import DEFAULT_HOME, HOME_VARIABLE, tracking_uri
from congruence.tasks.runtime.json_logging import LOGGER, is_json, use_json_lines

if TYPE_CHECKING:
    from congruence.tasks.comparison.gate import GateDecision
    from congruence.tasks.mlflow.settings import TrackingSettings
    from congruence.tasks.settings.evaluation import EvaluationSettings

Home = Annotated[
    Path | None,
    typer.Option(
        help="Where runs keep their data; by default home: of the file, else $CONGRUENCE_HOME, else .congruence.",
        show_default=False,
    ),
]
Debug = Annotated[bool, typer.Option("--debug", help="Show tracebacks.")]
AsJson = Annotated[
    bool, typer.Option("--json", help="Print the result as JSON on standard output, and nothing else there.")
]


class Format(StrEnum):
    """How the gate's decisions are printed."""

    TEXT = "text"
    JSON = "json"
    GITHUB = "github"


GateFormat = Annotated[
    Format,
    typer.Option("--format", help="json is --json; github: annotations and a step summary for GitHub Actions."),
]
File = Annotated[Path, typer.Argument(help="The evaluation file (YAML); `congruence init` writes one.")]
Models = Annotated[
    list[str] | None,
    typer.Option("--model", "-m", help="models:/name/3, models:/name@alias, or a name for all versions."),
]

FAILED = 1
REFUSED = 2
GATE_FAILED = 3
GATE_UNDECIDED = 4


def exit_status(decisions: Sequence[GateDecision]) -> int:
    """The status that says what the gate decided: 0 where all versions passed, or none was judged."""
    if not decisions:
        return 0
    from congruence.tasks.comparison.gate import worst  # not at the start: the command line opens without pandas

    outcome = worst(decision.outcome for decision in decisions)
    if outcome == "passed":
        return 0
    return GATE_FAILED if outcome == "failed" else GATE_UNDECIDED


def leave_by(decisions: Sequence[GateDecision]) -> None:
    """End with the status that says what the gate decided: nothing where all versions passed."""
    if status := exit_status(decisions):
        raise typer.Exit(status)


@dataclass(frozen=True)
class HomeFolder:
    """The folder that holds everything a run leaves on disk, and who said so."""

    folder: Path
    said_by: str

    def announce(self) -> None:
        """Say both: what is found, and what is not, depends on the folder."""
        announce(f"home: {self.folder} ({self.said_by})")


def home_folder(option: Path | None, file: Path | None = None, file_home: Path | None = None) -> HomeFolder:
    """The home folder by the option, else by the evaluation file, else by the environment, else the default."""
    if option is not None:
        return HomeFolder(option.resolve(), "--home")
    if file_home is not None:
        return HomeFolder(file_home.resolve(), f"home: in {file}")
    if given := os.environ.get(HOME_VARIABLE):
        return HomeFolder(Path(given).resolve(), f"${HOME_VARIABLE}")
    return HomeFolder(Path(DEFAULT_HOME).resolve(), "the default")


def start(home: Path | None) -> Path:
    """The home folder of a command without an evaluation file, made if need be, with embedded servers pointed at it."""
    chosen = home_folder(home)
    chosen.announce()
    return embed_servers(chosen.folder)


def use_home_store(home: Path | None) -> TrackingSettings:
    """Point MLflow at the environment's server, else at the home folder, for commands without an evaluation file."""
    folder = start(home)
    from congruence.tasks.mlflow.settings import TrackingSettings
    from congruence.tasks.runtime.mlflow_access import point_mlflow_at

    point_mlflow_at(tracking_uri(folder))
    return TrackingSettings()


def open_file(file: Path, home: Path | None, **overrides: Any) -> EvaluationSettings:
    """The settings of an evaluation file, its home folder made if need be, with embedded servers pointed at it.

    Only settings are read: a file that is wrong is refused before anything else is loaded.

    Raises:
        SettingsError: unreadable, not YAML, or with wrong keys or values; or a home folder that cannot be made.
    """
    from congruence.tasks.settings.evaluation import load_settings

    settings = load_settings(file, {key: value for key, value in overrides.items() if value})
    chosen = home_folder(home, file, settings.home)
    chosen.announce()
    return settings.model_copy(update={"home": embed_servers(chosen.folder)})


def print_json(content: Any) -> None:
    """Print one JSON document on standard output."""
    typer.echo(json.dumps(content, indent=2, default=str))


def announce(line: str, *, failed: bool = False) -> None:
    """Show a line on standard error, or log it where lines are JSON."""
    if is_json():
        use_json_lines()
        logging.getLogger(LOGGER).log(logging.ERROR if failed else logging.INFO, "%s", line)
    else:
        typer.secho(line, err=True, fg=typer.colors.RED if failed else None)


class Errors:
    """Prints our own errors as one readable message; others keep their traceback, which a report of a defect needs."""

    def __init__(self, debug: bool, as_json: bool = False, *, annotated: Path | None = None) -> None:
        self.debug = debug
        self.as_json = as_json
        self.annotated = annotated  # the evaluation file at which GitHub shows the error

    def __enter__(self) -> None:
        return

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None or self.debug:
            return
        from congruence.flows.cli.error_messages import explained

        error = explained(error)
        if error is None:
            return
        announce(f"Error: {error}", failed=True)
        if self.as_json:
            print_json({"error": str(error), "exit_status": REFUSED})
        if self.annotated is not None:
            from congruence.flows.operations.gate_on_github import annotation

            typer.echo(annotation("error", "nothing was judged", str(error), self.annotated))
        sys.exit(REFUSED)
