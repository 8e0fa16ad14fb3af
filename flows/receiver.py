"""`congruence receive`: MLflow's signed webhooks of new versions become events in Prefect, which deployments listen to.

A delivery is answered with 202 once Prefect has taken its event, and with 503 where it has not, so that MLflow tries
again. A delivery that comes twice is one event: its id follows from the delivery's. What is lost all the same is made
up for by the deployment that looks at the registry on a schedule.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import logging
import socket
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import httpx
import uvicorn
from prefect.client.orchestration import get_client
from prefect.events import Event
from prefect.settings import PREFECT_API_URL
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from congruence.flows.cli.console import say
from congruence.kernels.errors import CongruenceError, InvalidInputError
from congruence.tasks.mlflow.connection import connect, server, with_retries
from congruence.tasks.runtime.errors import SettingsError, mask_text
from congruence.tasks.settings.sections import TrackingSettings

MAX_AGE = 300.0
MIN_SECRET = 16
_NAME = "congruence"
_NEW_VERSION: Literal["model_version.created"] = "model_version.created"
_HEADERS = ("X-MLflow-Signature", "X-MLflow-Timestamp", "X-MLflow-Delivery-Id")


class DeliveryError(CongruenceError):
    """A delivery that is refused: ``status`` is the HTTP answer."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class NewVersion:
    """A model version that the registry announced. ``delivery`` tells repeated announcements of one event."""

    name: str
    version: str
    source: str
    delivery: str
    tags: Mapping[str, str] = field(default_factory=dict)

    @property
    def uri(self) -> str:
        """The exact URI of the version."""
        return f"models:/{self.name}/{self.version}"


def verified_delivery(headers: Mapping[str, str], body: bytes, secret: str, *, now: float) -> str:
    """Returns the id of the delivery, if a holder of ``secret`` signed this body within ``MAX_AGE`` seconds of ``now``.

    Raises:
        DeliveryError: 400 where a header is missing or malformed, 401 where the signature or the age is wrong.
    """
    missing = [name for name in _HEADERS if name not in headers]
    if missing:
        raise DeliveryError(400, f"header {missing[0]} is missing: create the webhook with a secret")
    given, timestamp, delivery = (headers[name] for name in _HEADERS)
    if not timestamp.isascii() or not timestamp.isdigit():
        raise DeliveryError(400, "X-MLflow-Timestamp is not a number of seconds")
    digest = hmac.new(secret.encode(), f"{delivery}.{timestamp}.".encode() + body, hashlib.sha256).digest()
    if not hmac.compare_digest(given.encode(), b"v1," + base64.b64encode(digest)):
        raise DeliveryError(401, "the signature is not that of this receiver's secret")
    if abs(now - int(timestamp)) > MAX_AGE:
        raise DeliveryError(401, f"signed {now - int(timestamp):.0f} s ago, more than {MAX_AGE:.0f}: check both clocks")
    return delivery


def announced_version(body: bytes, delivery: str) -> NewVersion | None:
    """Returns the version that a delivery announces; None for other events, and for MLflow's test without a name.

    Raises:
        DeliveryError: 400 where the body is not what MLflow sends.
    """
    try:
        message = json.loads(body)
        if (message["entity"], message["action"]) != ("model_version", "created"):
            return None
        data = message["data"]
        tags = {str(key): str(value) for key, value in (data.get("tags") or {}).items()}
        found = NewVersion(str(data["name"]), str(data["version"]), str(data.get("source") or ""), delivery, tags)
        json.dumps(vars(found), ensure_ascii=False).encode()  # half of a surrogate pair cannot be passed on
        return found
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DeliveryError(400, f"the body is not an MLflow webhook payload ({type(error).__name__})") from error


def require_secret(secret: str) -> None:
    """Refuse a secret that is too short to protect anything.

    Raises:
        InvalidInputError: says how to make one.
    """
    if len(secret) < MIN_SECRET:
        raise InvalidInputError(
            f"webhook secret: has {len(secret)} characters, expected at least {MIN_SECRET}; "
            'make one with python -c "import secrets; print(secrets.token_urlsafe())"'
        )


def register_webhook(url: str, secret: str, settings: TrackingSettings) -> str:
    """Have MLflow's server post new versions to ``url``, signed with ``secret``; gives what was done.

    There is one webhook of ours: registered again, it gets the new address and secret. The ``url`` is the receiver's,
    as MLflow's server reaches it.

    Raises:
        InvalidInputError: the MLflow is a database or a folder, which posts nothing; or the secret is too short.
        TrackingError: the server does not answer, or refuses the address.
    """
    if not server(settings).startswith(("http://", "https://")):
        raise InvalidInputError(
            f"{server(settings)} posts no webhooks: MLflow's server does; set MLFLOW_TRACKING_URI to its address"
        )
    require_secret(secret)
    client = connect(settings)

    def register() -> str:
        hooks = [hook for hook in client.list_webhooks() if hook.name == _NAME]
        for hook in hooks[1:]:
            client.delete_webhook(hook.webhook_id)
        if not hooks:
            client.create_webhook(_NAME, url, [_NEW_VERSION], secret=secret)
            return "registered"
        client.update_webhook(hooks[0].webhook_id, url=url, events=[_NEW_VERSION], secret=secret, status="ACTIVE")
        return "updated"

    done = with_retries("registering the webhook", register, settings)
    return f"Webhook {done}: MLflow at {server(settings)} will notify {mask_text(url)}."


log = logging.getLogger(__name__)
PATH, HEALTH = "/mlflow", "/health"
EVENT = "mlflow.model_version.created"
MAX_BODY = 1_000_000
MAX_CONNECTIONS = 64
REQUEST_SECONDS = 20.0


def post_event(event: str, model: str, version: str, payload: dict[str, Any], id: uuid.UUID | None = None) -> None:
    """Post an event about a model version to Prefect, and return once the server has taken it.

    Raises:
        httpx.HTTPError: Prefect does not answer, or refuses it.
    """
    resource = {
        "prefect.resource.id": f"mlflow.model-version.{model}.{version}",
        "prefect.resource.name": f"{model}/{version}",
        "mlflow.model": model,
    }
    made = Event(event=event, id=id or uuid.uuid4(), resource=resource, payload=payload)  # type: ignore[arg-type]
    with get_client(httpx_settings={"timeout": REQUEST_SECONDS}, sync_client=True) as client:
        client.request("POST", "/events", json=[made.model_dump(mode="json")])


def post_new_version(announced: NewVersion) -> None:
    """Post the event of a new version, whose payload names its ``model``; raises as ``post_event`` does."""
    payload = {"model": announced.uri, **vars(announced)}
    made = uuid.uuid5(uuid.NAMESPACE_URL, payload.pop("delivery"))
    post_event(EVENT, announced.name, announced.version, payload, made)


def create_receiver(
    secret: str, *, handle: Callable[[NewVersion], None] = post_new_version, clock: Callable[[], float] = time.time
) -> Starlette:
    """Returns the application that answers MLflow's POST on ``/mlflow``, and anyone's GET on ``/health`` with 200.

    Args:
        secret: that of the webhook in MLflow, at least 16 characters.
        handle: called for each announced version, in a thread; by default it posts the event. What it raises for a
            server that is away or refuses is answered with 503.
        clock: seconds since the epoch.

    Raises:
        InvalidInputError: the secret is too short to protect anything.
    """
    require_secret(secret)

    async def receive(request: Request) -> Response:
        try:
            body = await _body(request)
            announced = announced_version(body, verified_delivery(request.headers, body, secret, now=clock()))
        except DeliveryError as error:
            return JSONResponse({"error": str(error)}, error.status)
        if announced is None:
            return JSONResponse({"status": "ignored"})
        try:
            await run_in_threadpool(handle, announced)
        except (httpx.HTTPError, OSError) as error:
            log.warning("%s was not passed on to Prefect: %s", announced.uri, mask_text(str(error)))
            return JSONResponse({"error": "Prefect did not take the event; try again"}, 503, {"Retry-After": "5"})
        return JSONResponse({"status": "accepted", "model": announced.uri}, 202)

    async def health(_: Request) -> Response:
        return JSONResponse({"status": "ok"})

    return Starlette(routes=[Route(PATH, receive, methods=["POST"]), Route(HEALTH, health, methods=["GET"])])


async def _body(request: Request) -> bytes:
    """The body, read no longer than ``REQUEST_SECONDS`` and no further than ``MAX_BODY``: nobody has signed it yet."""
    body = bytearray()
    try:
        async with asyncio.timeout(REQUEST_SECONDS):
            async for chunk in request.stream():
                body += chunk
                if len(body) > MAX_BODY:
                    raise DeliveryError(413, f"the body is larger than {MAX_BODY} bytes")
    except TimeoutError as error:
        raise DeliveryError(408, f"the body took longer than {REQUEST_SECONDS:.0f} s") from error
    except ClientDisconnect as error:
        raise DeliveryError(400, "the sender went away") from error
    return bytes(body)


def serve_receiver(secret: str, *, host: str = "127.0.0.1", port: int = 4280) -> None:
    """Answer webhooks until interrupted; by default from this machine only.

    MLflow itself refuses plain http and private addresses as webhook targets unless its server has
    ``MLFLOW_WEBHOOK_ALLOWED_SCHEMES=http,https`` and ``MLFLOW_WEBHOOK_ALLOW_PRIVATE_IPS=true``; from other machines put
    a proxy with TLS before the receiver.

    Raises:
        InvalidInputError: the secret is too short.
        SettingsError: no Prefect server is named, or nothing can listen there.
    """
    if not PREFECT_API_URL.value():
        raise SettingsError(
            "PREFECT_API_URL: not set, so there is no Prefect server to tell of new versions; point it at the server "
            "whose deployments listen (export PREFECT_API_URL=http://127.0.0.1:4200/api)"
        )
    application = create_receiver(secret)
    try:
        listener = socket.create_server((host, port), backlog=MAX_CONNECTIONS)
    except OSError as error:
        raise SettingsError(
            f"--host {host} --port {port}: nothing can listen there ({error.strerror}); choose another port, or end "
            "what uses it"
        ) from error
    say(f"receiving on http://{host}:{port}{PATH} (stop with Ctrl-C)")
    with listener:
        receiver_server(application).run(sockets=[listener])


def receiver_server(application: Starlette) -> uvicorn.Server:
    """Returns a server of ``application``, not started, that answers 503 beyond ``MAX_CONNECTIONS`` at a time."""
    return uvicorn.Server(
        uvicorn.Config(
            application,
            http="h11",
            ws="none",
            lifespan="off",
            limit_concurrency=MAX_CONNECTIONS,
            timeout_keep_alive=5,
            h11_max_incomplete_event_size=16_384,
            log_level="warning",
        )
    )
