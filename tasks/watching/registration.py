"""MLflow's registration of the receiver: one webhook of new versions, whose deliveries are signed."""

from __future__ import annotations

from typing import Literal

from congruence.kernels.errors import InvalidInputError
from congruence.kernels.masking import mask_text
from congruence.tasks.mlflow.connection import connect, persist, server
from congruence.tasks.mlflow.settings import TrackingSettings

_NAME = "congruence"
_NEW_VERSION: Literal["model_version.created"] = "model_version.created"


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

    done = persist("registering the webhook", register, settings)
    return f"Webhook {done}: MLflow at {server(settings)} will notify {mask_text(url)}."
