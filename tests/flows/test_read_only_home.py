"""What only reads works where nothing can be written, and a port in use is said before anything is started."""

from __future__ import annotations

import errno
import socket
from pathlib import Path
from typing import Any

import mlflow
import pytest
from databases import mlflow_database
from mlflow import MlflowClient
from typer.testing import CliRunner

from congruence.flows.cli import environment
from congruence.flows.cli.app import app


def test_list_works_on_a_home_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = mlflow.get_tracking_uri()
    client = MlflowClient(mlflow_database(tmp_path))
    client.create_registered_model("angle")
    client.create_model_version("angle", source="/nowhere")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    content = {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}

    def refuse(*_: Any) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(environment, "_reserve", refuse)
    monkeypatch.setattr(environment, "_quiet_connection_pool", lambda _: None)
    try:
        shown = CliRunner().invoke(app, ["list", "--home", str(tmp_path)])
    finally:
        mlflow.set_tracking_uri(before)
    assert shown.exit_code == 0, shown.output
    assert "angle/1" in shown.output
    assert "reading only: home:" in shown.output
    assert {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()} == content


def test_a_port_in_use_is_refused_with_the_next_free_one(tmp_path: Path) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        shown = CliRunner().invoke(app, ["ui", "--port", str(port), "--home", str(tmp_path)])
    assert shown.exit_code == 2
    assert f"--port: 127.0.0.1:{port} cannot be listened on (address already in use)" in shown.output
    assert "use the next free one: congruence ui --port" in shown.output
    assert "MLflow on http" not in shown.output
