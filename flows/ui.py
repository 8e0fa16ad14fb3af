"""`congruence ui`: MLflow's pages on the evaluations of a home folder, for as long as the command runs."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from types import FrameType

from congruence.flows.environment import tracking_uri
from congruence.flows.tied import end, start_tied


def serve_ui(home: Path, host: str, port: int) -> int:
    """Serve until Ctrl-C, SIGTERM or the server's own end; returns its exit status, 0 where it was asked to end.

    The server and its workers end with this process, also where that is killed.
    """
    command = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", tracking_uri(home)]
    command += ["--default-artifact-root", str(home / "mlartifacts")]
    command += ["--host", host, "--port", str(port), "--workers", "1"]
    server = start_tied(command, os.environ | {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"})
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        return server.wait()
    except KeyboardInterrupt:
        return 0
    finally:
        end(server)


def _interrupt(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
    raise KeyboardInterrupt
