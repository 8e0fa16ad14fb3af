"""The `congruence` command."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from congruence.flows.environment import embed_servers, tracking_uri
from congruence.kernels.errors import CongruenceError

app = typer.Typer(
    help="How far the predictive distributions of registered models are from the truth, point by point.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)

Home = Annotated[Path | None, typer.Option(envvar="CONGRUENCE_HOME", help="Where runs keep their data.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show tracebacks.")]
Models = Annotated[
    list[str] | None,
    typer.Option("--model", "-m", help="models:/name/3, models:/name@alias, or a name for all versions."),
]


@app.command()
def evaluate(
    file: Annotated[Path, typer.Argument(help="The evaluation file (YAML).")],
    model: Models = None,
    home: Home = None,
    debug: Debug = False,
) -> None:
    """Evaluate registry versions on the splits of an evaluation file."""
    folder = _start(home)
    with _Errors(debug):
        from congruence.flows.session import run_evaluation
        from congruence.flows.tables import print_outcomes
        from congruence.tasks.settings import load_settings

        overrides = {"home": str(folder)} | ({"models": model} if model else {})
        settings = load_settings(file, overrides)
        outcomes = run_evaluation(settings)
        print_outcomes(outcomes, settings)
        if any(outcome.status == "failed" for outcome in outcomes):
            raise typer.Exit(1)


@app.command()
def demo(home: Home = None, debug: Debug = False) -> None:
    """Run the whole pipeline on rotated digits: data, six model versions, embeddings, CCE, MLflow."""
    folder = _start(home)
    with _Errors(debug):
        from congruence.flows.demo import run_demo

        run_demo(folder)


@app.command()
def ui(
    home: Home = None,
    port: Annotated[int, typer.Option(help="Port on loopback.")] = 5000,
    host: Annotated[str, typer.Option(help="Address to bind; loopback unless you say otherwise.")] = "127.0.0.1",
) -> None:
    """Open MLflow's UI on the evaluations of the home folder."""
    folder = _start(home)
    command = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", tracking_uri(folder)]
    command += [
        "--default-artifact-root",
        str(folder / "artifacts"),
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


def _start(home: Path | None) -> Path:
    return embed_servers(home or Path(".congruence"))


class _Errors:
    """Prints our own errors as one readable message; others keep their traceback, which a report of a defect needs."""

    def __init__(self, debug: bool) -> None:
        self.debug = debug

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if not isinstance(error, CongruenceError) or self.debug:
            return
        typer.secho(f"Error: {error}", err=True, fg=typer.colors.RED)
        sys.exit(2)


def main() -> None:
    """Entry point of the `congruence` command."""
    app()


if __name__ == "__main__":
    main()
