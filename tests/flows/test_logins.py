"""A login that a server does not know is said in a sentence: which server, which variables, and no secret."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from mlflow import MlflowClient
from prefect.client.orchestration import get_client
from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, temporary_settings

from congruence.flows.cli.error_messages import explaining
from congruence.tasks.mlflow.connection import TrackingError, with_retries
from congruence.tasks.mlflow.settings import TrackingSettings
from congruence.tasks.runtime.errors import ClusterError


@contextmanager
def asking_for_a_login(*free: str) -> Iterator[str]:
    """A server that knows nobody, and answers on ``free`` paths alone; its address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.answer()

        def do_POST(self) -> None:
            self.answer()

        def answer(self) -> None:
            known = self.path in free
            self.send_response(200 if known else 401)
            self.end_headers()
            self.wfile.write(b"true" if known else b"You are not authenticated.")

        def log_message(self, *line: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def test_a_login_that_mlflow_does_not_know(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "somebody")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "hunter22")
    with asking_for_a_login() as uri:
        settings = TrackingSettings(uri=uri)
        with pytest.raises(TrackingError) as error:
            with_retries("looking for models", lambda: MlflowClient(uri).search_registered_models(), settings)
    said = str(error.value)
    assert f"MLflow at {uri} rejected the credentials; set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASS" in said
    assert "hunter22" not in said


def test_a_login_that_prefect_does_not_know() -> None:
    with asking_for_a_login("/api/health") as uri:
        known = {PREFECT_API_URL: f"{uri}/api", PREFECT_API_AUTH_STRING: "somebody:hunter22"}
        with (
            temporary_settings(known),
            pytest.raises(ClusterError) as error,
            explaining(),
            get_client(sync_client=True) as client,
        ):
            client.read_flows()
    said = str(error.value)
    assert f"the Prefect server at {uri}/api rejected the credentials; set PREFECT_API_AUTH_STRING" in said
    assert "hunter22" not in said
