"""The webhook receiver: only what MLflow signed, recently, is handled, and each delivery once."""

from __future__ import annotations

import json
import secrets
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import requests
import uvicorn
from loopback import MlflowServer, free_port, wait_until
from mlflow import MlflowClient
from mlflow.webhooks.delivery import _generate_hmac_signature
from starlette.testclient import TestClient

from congruence.kernels.errors import CongruenceError, InvalidInputError
from congruence.tasks.mlflow.settings import TrackingSettings
from congruence.tasks.runtime.errors import SettingsError
from congruence.tasks.watching.bounded_server import bounded_server
from congruence.tasks.watching.registration import register_webhook
from congruence.tasks.watching.webhook import MAX_BODY, NewVersion, create_receiver, serve_receiver

SECRET = "a secret of some length"
NOW = 1_800_000_000


def payload(entity: str = "model_version", action: str = "created", **data: Any) -> str:
    data = {"name": "angle", "version": "3", "source": "models:/m-1", "run_id": None, "tags": {"team": "a"}} | data
    return json.dumps({"entity": entity, "action": action, "timestamp": "2026-01-01T00:00:00", "data": data})


def signed(body: str, *, secret: str = SECRET, delivery: str = "d-1", at: int = NOW) -> dict[str, str]:
    """The headers that MLflow itself would send."""
    return {
        "X-MLflow-Delivery-Id": delivery,
        "X-MLflow-Timestamp": str(at),
        "X-MLflow-Signature": _generate_hmac_signature(secret, delivery, str(at), body),
    }


class Receiver:
    def __init__(self) -> None:
        self.handled: list[NewVersion] = []
        self.failures = 0
        app = create_receiver(SECRET, handle=self._handle, clock=lambda: NOW)
        self.client = TestClient(app, raise_server_exceptions=False)

    def _handle(self, version: NewVersion) -> None:
        if self.failures:
            self.failures -= 1
            raise RuntimeError("the event server is away")
        self.handled.append(version)

    def post(self, body: str, headers: dict[str, str]) -> int:
        return self.client.post("/mlflow", content=body, headers=headers).status_code


@pytest.fixture
def receiver() -> Receiver:
    return Receiver()


def test_a_signed_new_version_is_handled_once(receiver: Receiver) -> None:
    body = payload()
    assert receiver.post(body, signed(body)) == 202
    assert receiver.post(body, signed(body)) == 200  # MLflow's second attempt at the same delivery
    assert [version.uri for version in receiver.handled] == ["models:/angle/3"]
    assert receiver.handled[0].tags == {"team": "a"}
    assert receiver.post(body, signed(body, delivery="d-2")) == 202


def test_a_delivery_that_could_not_be_handled_may_come_again(receiver: Receiver) -> None:
    receiver.failures = 1
    body = payload()
    assert receiver.post(body, signed(body)) == 500
    assert receiver.handled == []
    assert receiver.post(body, signed(body)) == 202
    assert len(receiver.handled) == 1


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"X-MLflow-Signature": "v1,AAAA"}, 401),
        ({"X-MLflow-Signature": "v1,ü"}, 401),
        ({"X-MLflow-Delivery-Id": "d-9"}, 401),
        ({"X-MLflow-Timestamp": str(NOW + 1)}, 401),
        ({"X-MLflow-Timestamp": "soon"}, 400),
        ({"X-MLflow-Signature": None}, 400),
        ({"X-MLflow-Timestamp": None}, 400),
    ],
)
def test_an_altered_delivery_is_refused(receiver: Receiver, change: dict[str, str | None], status: int) -> None:
    body = payload()
    headers = {name: value.encode() for name, value in {**signed(body), **change}.items() if value is not None}
    assert receiver.client.post("/mlflow", content=body, headers=headers).status_code == status
    assert receiver.handled == []


def test_another_body_secret_or_time_is_refused(receiver: Receiver) -> None:
    body = payload()
    assert receiver.post(payload(name="other"), signed(body)) == 401
    assert receiver.post(body, signed(body, secret="another secret, as long")) == 401
    for age in (-301, 301):
        assert receiver.post(body, signed(body, at=NOW - age)) == 401
    assert receiver.post(body, signed(body, at=NOW - 299)) == 202


def test_other_events_and_nonsense_do_nothing(receiver: Receiver) -> None:
    for body, status in ((payload(action="deleted"), 200), (payload(entity="prompt"), 200), ("[]", 400), ("x", 400)):
        assert receiver.post(body, signed(body)) == status
    large = "x" * (MAX_BODY + 1)
    assert receiver.post(large, signed(large)) == 413
    assert receiver.client.get("/mlflow").status_code == 405
    assert receiver.handled == []


def test_whoever_keeps_it_running_sees_that_it_is_well(receiver: Receiver) -> None:
    answer = receiver.client.get("/health")
    assert (answer.status_code, answer.json()) == (200, {"status": "ok"})
    assert receiver.client.post("/health").status_code == 405


def test_a_short_secret_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="expected at least 16"):
        create_receiver("short")


@pytest.fixture
def mlflow_server(tmp_path: Path) -> Iterator[MlflowClient]:
    server = MlflowServer(tmp_path)
    server.start()
    yield MlflowClient(server.uri)
    server.stop()


@pytest.mark.slow
def test_a_real_registry_announces_its_new_version(
    mlflow_server: MlflowClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    handled: list[NewVersion] = []
    secret, port = secrets.token_urlsafe(), free_port()
    config = uvicorn.Config(create_receiver(secret, handle=handled.append), port=port, log_level="error")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    wait_until(lambda: server.started)
    target = f"http://127.0.0.1:{port}/mlflow"
    place = TrackingSettings(uri=mlflow_server.tracking_uri)
    assert "Webhook registered: MLflow at " in register_webhook(
        "http://127.0.0.1:9/mlflow", "an earlier secret of ours", place
    )
    assert "Webhook updated: MLflow at " in register_webhook(target, secret, place)
    (webhook,) = mlflow_server.list_webhooks()
    assert webhook.url == target
    mlflow_server.create_registered_model("angle")
    logged = mlflow_server.create_logged_model("0", name="angle")
    mlflow_server.create_model_version(
        "angle", source=f"models:/{logged.model_id}", model_id=logged.model_id, tags={"team": "a"}
    )
    wait_until(lambda: handled, 30)
    assert (handled[0].uri, handled[0].tags) == ("models:/angle/1", {"team": "a"})
    assert mlflow_server.test_webhook(webhook.webhook_id).success
    server.should_exit = True
    thread.join(timeout=10)


def test_a_database_posts_nothing(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="set MLFLOW_TRACKING_URI to its address"):
        register_webhook("http://127.0.0.1:4280/mlflow", SECRET, TrackingSettings(uri=f"sqlite:///{tmp_path}/m.db"))


@pytest.mark.parametrize(
    "body",
    [
        "[" * 400_000,
        '{"a":' * 100_000,
        payload(tags=json.loads("[" * 40 + "]" * 40)),
        payload(name="\ud800"),
        '{"entity": ' + "1" * 10_000 + "}",
        payload(tags=[1, 2]),
        '"' + "\\" * 300_000,
    ],
    ids=["brackets", "objects", "deep tags", "surrogate", "long number", "tags a list", "open string"],
)
def test_what_would_exhaust_the_reader_is_answered_400(receiver: Receiver, body: str) -> None:
    assert receiver.post(body, signed(body)) == 400
    good = payload(source="]" * 50 + "[" * 50)
    assert receiver.post(good, signed(good)) == 202


def test_what_may_pass_is_answered_503_and_handled_when_it_comes_again() -> None:
    failures: list[Exception] = [CongruenceError("set PREFECT_API_URL"), ConnectionRefusedError("gone")]
    handled: list[NewVersion] = []

    def handle(version: NewVersion) -> None:
        if failures:
            raise failures.pop()
        handled.append(version)

    client = TestClient(create_receiver(SECRET, handle=handle, clock=lambda: NOW))
    body = payload()
    answers = [client.post("/mlflow", content=body, headers=signed(body)).status_code for _ in range(3)]
    assert answers == [503, 503, 202]
    assert len(handled) == 1


@pytest.fixture
def bounded() -> Iterator[int]:
    """The port of a receiver that takes eight connections and waits a second for a request."""
    app = create_receiver(SECRET, handle=lambda version: None, clock=lambda: NOW)
    server = bounded_server(app, connections=8, seconds=1.5)
    listener = socket.create_server(("127.0.0.1", 0), backlog=32)
    thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
    thread.start()
    wait_until(lambda: server.started)
    yield int(listener.getsockname()[1])
    server.should_exit = True
    thread.join(timeout=10)


def received(connection: socket.socket) -> bytes:
    """What comes before the other side closes."""
    connection.settimeout(10)
    with suppress(ConnectionResetError):
        return connection.recv(100)
    return b""


def status(port: int, body: str) -> int:
    answer = requests.post(
        f"http://127.0.0.1:{port}/mlflow",
        data=body,
        headers={**signed(body, delivery=secrets.token_hex()), "Connection": "close"},
        timeout=10,
    )
    return answer.status_code


def test_many_open_connections_are_answered_503_and_the_receiver_stays_alive(
    bounded: int, capfd: pytest.CaptureFixture[str]
) -> None:
    silent = [socket.create_connection(("127.0.0.1", bounded)) for _ in range(8)]
    for at, half in enumerate(
        (b"", b"POST /mlflow HTTP/1.1\r\nX-Slow: ", b"POST /mlflow HTTP/1.1\r\nContent-Length: 9\r\n\r\n")
    ):
        silent[at].sendall(half)
    more = [socket.create_connection(("127.0.0.1", bounded)) for _ in range(24)]
    refused = [received(connection).startswith(b"HTTP/1.1 503 ") for connection in more]
    assert sum(refused) >= 16  # on a busy machine some of the silent ones are closed before all of them have come
    assert not any(b"202" in received(connection) for connection in silent)  # none has made its request in its time
    assert status(bounded, payload()) == 202
    assert status(bounded, "x" * (MAX_BODY + 1)) == 413
    assert status(bounded, "[" * 400_000) == 400
    assert status(bounded, payload()) == 202
    for connection in (*silent, *more):
        connection.close()
    assert "Traceback" not in capfd.readouterr().err


def test_a_port_that_is_taken_is_said() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(SettingsError, match="choose another port"):
        serve_receiver(SECRET, port=int(taken.getsockname()[1]))
