"""`congruence ui`: MLflow's pages on the evaluations of a home folder, for as long as the command runs."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import typer

from congruence.tasks.runtime.errors import SettingsError
from congruence.tasks.runtime.files import tracking_uri


def serve_ui(home: Path, host: str, port: int) -> int:
    """Serve until the server ends, with the command or by itself; returns its exit status."""
    command = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", tracking_uri(home)]
    command += ["--default-artifact-root", str(home / "mlartifacts")]
    command += ["--host", host, "--port", str(port), "--workers", "1"]
    pages = list_pages(home, f"http://{host}:{port}")
    server = subprocess.Popen(command, env=os.environ | {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"})
    for page in pages:
        typer.echo(page)
    return server.wait()


def list_pages(home: Path, base: str) -> list[str]:
    """A line for each split: where its evaluations are listed. None where there is no database yet."""
    uri = tracking_uri(home)
    if uri.startswith("sqlite:///") and not Path(uri.removeprefix("sqlite:///")).exists():
        return []
    from mlflow.exceptions import MlflowException

    from congruence.tasks.mlflow.pages import evaluation_lists
    from congruence.tasks.mlflow.settings import TrackingSettings

    try:
        found = evaluation_lists(TrackingSettings(uri=uri))
    except MlflowException:
        return []  # the server says what is wrong with its database
    return [f"  evaluations on {name}: {base}/{page}" for name, page in found.items()]


_LOOKED_AT = 100


def require_free(host: str, port: int) -> None:
    """Refuse a port that cannot be listened on.

    Raises:
        SettingsError: it is in use, or this user may not; names the next one that is free.
    """
    why = _refusal(host, port)
    if why is None:
        return
    following = range(port + 1, min(port + 1 + _LOOKED_AT, 2**16))
    free = next((other for other in following if _refusal(host, other) is None), None)
    offered = "choose another with --port" if free is None else f"use the next free one: congruence ui --port {free}"
    raise SettingsError(f"--port: {host}:{port} cannot be listened on ({why}); {offered}")


def _refusal(host: str, port: int) -> str | None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do: one that ended is no obstacle
        try:
            listener.bind((host, port))
            listener.listen()
        except OSError as error:
            return (error.strerror or str(error)).lower()
    return None
