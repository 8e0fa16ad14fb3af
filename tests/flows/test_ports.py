"""A port in use is said before anything is started."""

from __future__ import annotations

import socket
from pathlib import Path

from typer.testing import CliRunner

from congruence.flows.cli.app import app


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
