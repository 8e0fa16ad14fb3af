"""What every command of `congruence` shares: its common options, its start, and how it reports errors."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from congruence.flows.environment import embed_servers
from congruence.kernels.errors import CongruenceError

if TYPE_CHECKING:
    from congruence.tasks.comparison import GateDecision

Home = Annotated[Path | None, typer.Option(envvar="CONGRUENCE_HOME", help="Where runs keep their data.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show tracebacks.")]
File = Annotated[Path, typer.Argument(help="The evaluation file (YAML).")]
Models = Annotated[
    list[str] | None,
    typer.Option("--model", "-m", help="models:/name/3, models:/name@alias, or a name for all versions."),
]

FAILED = 1
REFUSED = 2
GATE_FAILED = 3
GATE_UNDECIDED = 4


def leave_by(decisions: Sequence[GateDecision]) -> None:
    """End with the status that says what the gate decided: nothing where all versions passed."""
    from congruence.tasks.comparison import worst  # not at the start: the command line opens without pandas

    outcome = worst(decision.outcome for decision in decisions)
    if outcome != "passed":
        raise typer.Exit(GATE_FAILED if outcome == "failed" else GATE_UNDECIDED)


def start(home: Path | None) -> Path:
    """The home folder, made if need be, with embedded servers pointed at it."""
    return embed_servers(home or Path(".congruence"))


class Errors:
    """Prints our own errors as one readable message; others keep their traceback, which a report of a defect needs."""

    def __init__(self, debug: bool) -> None:
        self.debug = debug

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if not isinstance(error, CongruenceError) or self.debug:
            return
        typer.secho(f"Error: {error}", err=True, fg=typer.colors.RED)
        sys.exit(REFUSED)
