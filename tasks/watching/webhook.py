"""Receiver of MLflow's webhooks: a signed ``model_version.created`` becomes a Prefect event.

MLflow signs each delivery with the secret of the webhook: HMAC-SHA256 of ``delivery id . timestamp . body``, sent as
``X-MLflow-Signature: v1,<base64>`` beside ``X-MLflow-Delivery-Id`` and ``X-MLflow-Timestamp`` (seconds). A delivery
whose signature, age or form is wrong is refused; one that comes again is answered but changes nothing. A receiver that
misses a delivery loses nothing for good where a watcher polls the registry too.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import logging
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from prefect.events import emit_event
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from congruence.kernels.errors import CongruenceError, InvalidInputError
from congruence.kernels.masking import mask_text
from congruence.tasks.watching.bounded_server import serve_bounded

log = logging.getLogger(__name__)
PATH, HEALTH = "/mlflow", "/health"
EVENT = "mlflow.model_version.created"
MAX_AGE = 300.0
MAX_BODY = 1_000_000
MIN_SECRET = 16


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


def verify(headers: Mapping[str, str], body: bytes, secret: str, *, now: float) -> str:
    """The id of the delivery, if a holder of ``secret`` signed this body at most ``MAX_AGE`` seconds before ``now``.

    Raises:
        DeliveryError: 400 where a header is missing or malformed, 401 where the signature or the age is wrong.
    """
    names = ("X-MLflow-Signature", "X-MLflow-Timestamp", "X-MLflow-Delivery-Id")
    missing = [name for name in names if name not in headers]
    if missing:
        raise DeliveryError(400, f"header {missing[0]} is missing: create the webhook with a secret")
    given, timestamp, delivery = (headers[name] for name in names)
    if not timestamp.isascii() or not timestamp.isdigit():
        raise DeliveryError(400, "X-MLflow-Timestamp is not a number of seconds")
    signed = f"{delivery}.{timestamp}.".encode() + body
    digest = hmac.new(secret.encode(), signed, hashlib.sha256).digest()
    if not hmac.compare_digest(given.encode(), b"v1," + base64.b64encode(digest)):
        raise DeliveryError(401, "the signature is not that of this receiver's secret")
    if abs(now - int(timestamp)) > MAX_AGE:
        raise DeliveryError(401, f"signed {now - int(timestamp):.0f} s ago, more than {MAX_AGE:.0f}: check both clocks")
    return delivery


def read_announcement(body: bytes, delivery: str) -> NewVersion | None:
    """The version that a delivery announces; None for other events and for MLflow's test of a webhook without a name.

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
        raise DeliveryError(
            400, f"the body is not an MLflow webhook payload ({type(error).__name__}: {error})"
        ) from error


def emit_new_version(announced: NewVersion) -> None:
    """Emit the Prefect event that deployments are triggered by; its id follows from the delivery's.

    Raises:
        CongruenceError: this process has no Prefect server to emit to.
    """
    emitted = emit_event(
        event=EVENT,
        id=uuid.uuid5(uuid.NAMESPACE_URL, announced.delivery),
        resource=version_resource(announced.name, announced.version),
        payload={
            "model": announced.uri,
            "name": announced.name,
            "version": announced.version,
            "source": announced.source,
            "tags": dict(announced.tags),
        },
    )
    if emitted is None:
        raise CongruenceError(
            f"{announced.uri}: Prefect emits no events here; set PREFECT_API_URL to the server whose deployments listen"
        )


def version_resource(name: str, version: str) -> dict[str, str]:
    """What Prefect's events name a model version by."""
    return {
        "prefect.resource.id": f"mlflow.model-version.{name}.{version}",
        "prefect.resource.name": f"{name}/{version}",
        "mlflow.model": name,
    }


class _Deliveries:
    """The ids seen within the last ``2 MAX_AGE``: older deliveries are refused by their timestamp."""

    def __init__(self) -> None:
        self._seen: dict[str, float] = {}
        self._lock = threading.Lock()

    def is_new(self, delivery: str, now: float) -> bool:
        with self._lock:
            self._seen = {known: at for known, at in self._seen.items() if now - at <= 2 * MAX_AGE}
            if delivery in self._seen:
                return False
            self._seen[delivery] = now
            return True

    def forget(self, delivery: str) -> None:
        with self._lock:
            self._seen.pop(delivery, None)


def create_receiver(
    secret: str,
    *,
    handle: Callable[[NewVersion], Any] = emit_new_version,
    clock: Callable[[], float] = time.time,
) -> Starlette:
    """The application that answers MLflow's POST requests on ``/mlflow``, and anyone's GET on ``/health`` with 200.

    Args:
        secret: that of the webhook in MLflow, at least 16 characters.
        handle: called once for each announced version, in a thread; by default it emits the Prefect event. If it
            raises, the answer is 503 for what may pass (an error of ours, a server that is away), else 500;
            MLflow's next attempt is handled again.
        clock: seconds since the epoch.

    Raises:
        InvalidInputError: the secret is too short to protect anything.
    """
    if len(secret) < MIN_SECRET:
        raise InvalidInputError(
            f"webhook secret: has {len(secret)} characters, expected at least {MIN_SECRET}; "
            'make one with python -c "import secrets; print(secrets.token_urlsafe())"'
        )
    deliveries = _Deliveries()

    async def receive(request: Request) -> Response:
        try:
            body = await _body(request)
            now = clock()
            delivery = verify(request.headers, body, secret, now=now)
            announced = read_announcement(body, delivery)
        except DeliveryError as error:
            return JSONResponse({"error": str(error)}, error.status)
        if announced is None:
            return JSONResponse({"status": "ignored"})
        if not deliveries.is_new(delivery, now):
            return JSONResponse({"status": "known"})
        try:
            await run_in_threadpool(handle, announced)
        except (CongruenceError, OSError) as error:
            deliveries.forget(delivery)
            log.warning("%s was not passed on: %s", announced.uri, mask_text(str(error)))
            return JSONResponse({"error": "not passed on; try again"}, 503, {"Retry-After": "5"})
        except BaseException:
            deliveries.forget(delivery)
            raise
        return JSONResponse({"status": "accepted", "model": announced.uri}, 202)

    async def health(_: Request) -> Response:
        return JSONResponse({"status": "ok"})

    return Starlette(routes=[Route(PATH, receive, methods=["POST"]), Route(HEALTH, health, methods=["GET"])])


async def _body(request: Request) -> bytes:
    """The body, read no further than ``MAX_BODY``: nobody has signed it yet."""
    stated = request.headers.get("content-length", "")
    if stated.isdigit() and int(stated[:20]) > MAX_BODY:
        raise DeliveryError(413, f"the body is larger than {MAX_BODY} bytes")
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > MAX_BODY:
                raise DeliveryError(413, f"the body is larger than {MAX_BODY} bytes")
    except ClientDisconnect as error:
        raise DeliveryError(400, "the sender went away") from error
    return bytes(body)


def serve_receiver(secret: str, *, host: str = "127.0.0.1", port: int = 4280) -> None:
    """Answer webhooks until interrupted; by default from this machine only.

    MLflow itself refuses plain http and private addresses as webhook targets unless its server has
    ``MLFLOW_WEBHOOK_ALLOWED_SCHEMES=http,https`` and ``MLFLOW_WEBHOOK_ALLOW_PRIVATE_IPS=true``; from other machines put
    a TLS proxy before the receiver.

    Raises:
        InvalidInputError: the secret is too short.
        SettingsError: nothing can listen there.
    """
    serve_bounded(create_receiver(secret), host, port)
