"""MLflow's webhooks: the one of new versions that is ours is registered, and its deliveries are checked and read.

MLflow signs each delivery with the secret of the webhook: HMAC-SHA256 of ``delivery id . timestamp . body``, sent as
``X-MLflow-Signature: v1,<base64>`` beside ``X-MLflow-Delivery-Id`` and ``X-MLflow-Timestamp`` (seconds).
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from congruence.kernels.errors import CongruenceError, InvalidInputError
from congruence.tasks.mlflow.connection import connect, server, with_retries
from congruence.tasks.mlflow.settings import TrackingSettings
from congruence.tasks.runtime.masking import mask_text

MAX_AGE = 300.0
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


def register_webhook(url: str, secret: str, settings: TrackingSettings) -> str:
    """Have MLflow's server post new versions to ``url``, signed with ``secret``; gives what was done.

    There is one webhook of ours: registered again, it gets the new address and secret. The ``url`` is the receiver's,
    as MLflow's server reaches it.

    Raises:
        InvalidInputError: the MLflow is a database or a folder, which posts nothing.
        TrackingError: the server does not answer, or refuses the address.
    """
    if not server(settings).startswith(("http://", "https://")):
        raise InvalidInputError(
            f"{server(settings)} posts no webhooks: MLflow's server does; set MLFLOW_TRACKING_URI to its address"
        )
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
