"""The webhook receiver: only what MLflow signed, recently, is passed on, and Prefect's answer is the sender's."""

import contextvars
import json
import secrets
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import requests
from loopback import MlflowServer, free_port, wait_until
from mlflow import MlflowClient
from mlflow.webhooks.delivery import _generate_hmac_signature
from prefect.client.orchestration import get_client
from prefect.events.filters import EventFilter, EventNameFilter
from prefect.settings import PREFECT_API_URL, temporary_settings
from starlette.testclient import TestClient

from congruence.flows.receiver import (
    EVENT,
    MAX_BODY,
    MAX_CONNECTIONS,
    NewVersion,
    create_receiver,
    post_new_version,
    receiver_server,
    register_webhook,
    serve_receiver,
)
from congruence.kernels.errors import InvalidInputError
from congruence.tasks.runtime.errors import SettingsError
from congruence.tasks.settings.sections import TrackingSettings

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
        self.failures: list[Exception] = []
        self.client = TestClient(create_receiver(SECRET, handle=self._handle, clock=lambda: NOW))

    def _handle(self, version: NewVersion) -> None:
        if self.failures:
            raise self.failures.pop()
        self.handled.append(version)

    def post(self, body: str, headers: dict[str, str]) -> int:
        return self.client.post("/mlflow", content=body, headers=headers).status_code


@pytest.fixture
def receiver() -> Receiver:
    return Receiver()


@contextmanager
def running(app: Any) -> Iterator[int]:
    """The port on loopback on which an application is served."""
    server, listener = receiver_server(app), socket.create_server(("127.0.0.1", 0), backlog=MAX_CONNECTIONS)
    within = contextvars.copy_context()  # with the settings of Prefect that a test has made
    thread = threading.Thread(target=within.run, args=(server.run, [listener]), daemon=True)
    thread.start()
    wait_until(lambda: server.started)
    yield int(listener.getsockname()[1])
    server.should_exit = True
    thread.join(timeout=10)


def test_a_signed_new_version_is_passed_on(receiver: Receiver) -> None:
    body = payload()
    assert receiver.post(body, signed(body, at=NOW - 299)) == 202
    assert (receiver.handled[0].uri, receiver.handled[0].tags) == ("models:/angle/3", {"team": "a"})


BODY = payload()


@pytest.mark.parametrize(
    ("change", "status"),
    [
        (signed(payload(name="other")), 401),
        (signed(BODY, secret="another secret, as long"), 401),
        (signed(BODY, at=NOW - 301), 401),
        (signed(BODY, at=NOW + 301), 401),
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
    headers = {name: value.encode() for name, value in {**signed(BODY), **change}.items() if value is not None}
    assert receiver.client.post("/mlflow", content=BODY, headers=headers).status_code == status
    assert receiver.handled == []


OTHER_BODIES = {
    "another action": (payload(action="deleted"), 200),
    "another entity": (payload(entity="prompt"), 200),
    "a list": ("[]", 400),
    "no JSON": ("x", 400),
    "too large": ("x" * (MAX_BODY + 1), 413),
    "brackets": ("[" * 400_000, 400),
    "objects": ('{"a":' * 100_000, 400),
    "surrogate": (payload(name="\ud800"), 400),
    "long number": ('{"entity": ' + "1" * 10_000 + "}", 400),
    "tags a list": (payload(tags=[1, 2]), 400),
    "open string": ('"' + "\\" * 300_000, 400),
}


@pytest.mark.parametrize("what", OTHER_BODIES)
def test_other_events_nonsense_and_what_would_exhaust_the_reader_do_nothing(receiver: Receiver, what: str) -> None:
    body, status = OTHER_BODIES[what]
    assert receiver.post(body, signed(body)) == status
    assert receiver.handled == []


def test_what_prefect_did_not_take_is_answered_503_and_passed_on_when_it_comes_again(receiver: Receiver) -> None:
    receiver.failures = [httpx.ConnectError("refused"), ConnectionRefusedError("gone")]
    body = payload()
    assert [receiver.post(body, signed(body)) for _ in range(3)] == [503, 503, 202]
    assert len(receiver.handled) == 1


def test_whoever_keeps_it_running_sees_that_it_is_well(receiver: Receiver) -> None:
    assert receiver.client.get("/health").json() == {"status": "ok"}
    assert receiver.client.get("/mlflow").status_code == 405


def test_what_cannot_be_served_is_said_at_once() -> None:
    with pytest.raises(InvalidInputError, match="expected at least 16"):
        create_receiver("short")
    with pytest.raises(InvalidInputError, match="has 5 characters, expected at least 16"):
        register_webhook("http://127.0.0.1:4280/mlflow", "short", TrackingSettings(uri="http://127.0.0.1:9"))
    with temporary_settings(restore_defaults={PREFECT_API_URL}), pytest.raises(SettingsError, match="PREFECT_API_URL"):
        serve_receiver(SECRET)
    with (
        temporary_settings({PREFECT_API_URL: "http://127.0.0.1:9/api"}),
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(SettingsError, match="choose another port"),
    ):
        serve_receiver(SECRET, port=int(taken.getsockname()[1]))


@pytest.mark.usefixtures("prefect_server")
def test_an_announced_version_is_an_event_once() -> None:
    announced = NewVersion("angle", "3", "models:/m-1", "delivery-1", {"team": "a"})
    for _ in range(2):
        post_new_version(announced)

    def events() -> list[Any]:
        """Up to now, which the filter is made with."""
        with get_client(sync_client=True) as client:
            return client.read_events(filter=EventFilter(event=EventNameFilter(name=[EVENT])), limit=10).events

    wait_until(events, 60, "the event")
    (event,) = events()
    assert event.payload["model"] == "models:/angle/3"
    assert event.resource["prefect.resource.id"] == "mlflow.model-version.angle.3"


def test_a_prefect_that_is_away_is_answered_503_in_time() -> None:
    body = payload()
    with (
        temporary_settings({PREFECT_API_URL: f"http://127.0.0.1:{free_port()}/api"}),
        running(create_receiver(SECRET, clock=lambda: NOW)) as port,
    ):
        answer = requests.post(f"http://127.0.0.1:{port}/mlflow", data=body, headers=signed(body), timeout=25)
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "5")


def test_beyond_so_many_connections_the_answer_is_503_and_the_receiver_stays_alive(receiver: Receiver) -> None:
    with running(receiver.client.app) as port:
        silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(MAX_CONNECTIONS)]
        wait_until(lambda: requests.get(f"http://127.0.0.1:{port}/health", timeout=10).status_code == 503, 20)
        for connection in silent:
            connection.close()
        wait_until(lambda: requests.get(f"http://127.0.0.1:{port}/health", timeout=10).status_code == 200, 20)


def test_a_real_registry_announces_its_new_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    handled: list[NewVersion] = []
    secret, server = secrets.token_urlsafe(), MlflowServer(tmp_path)
    server.start()
    client, place = MlflowClient(server.uri), TrackingSettings(uri=server.uri)
    with running(create_receiver(secret, handle=handled.append)) as port:
        target = f"http://127.0.0.1:{port}/mlflow"
        said = register_webhook("http://127.0.0.1:9/mlflow", "an earlier secret of ours", place)
        assert "Webhook registered: MLflow at " in said
        assert "Webhook updated: MLflow at " in register_webhook(target, secret, place)
        (webhook,) = client.list_webhooks()
        assert webhook.url == target
        client.create_registered_model("angle")
        logged = client.create_logged_model("0", name="angle")
        client.create_model_version(
            "angle", source=f"models:/{logged.model_id}", model_id=logged.model_id, tags={"team": "a"}
        )
        wait_until(lambda: handled, 30)
        assert (handled[0].uri, handled[0].tags) == ("models:/angle/1", {"team": "a"})
        assert client.test_webhook(webhook.webhook_id).success
    server.stop()


def test_a_database_posts_nothing(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="set MLFLOW_TRACKING_URI to its address"):
        register_webhook("http://127.0.0.1:4280/mlflow", SECRET, TrackingSettings(uri=f"sqlite:///{tmp_path}/m.db"))
