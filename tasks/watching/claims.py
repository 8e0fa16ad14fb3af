"""Claims on an evaluation: of several watchers, on whatever machines, one evaluates a version.

MLflow has no compare-and-swap, but each watcher can write a tag of its own on the model version and read all of them.
A watcher first writes that it asks, then reads: alone, it holds the claim; beside a holder, or beside one that asks
under a smaller name, it withdraws; otherwise it looks again until the others have withdrawn. Whoever reads later sees
what was written before, so two watchers never both find themselves alone. A holder renews its claim; the claim of one
that died ends with its lease and is taken off by the next who looks. An MLflow that was away for longer than a lease
makes living holders look dead: they renew within a second or two of its return, for which the others wait.

Leases are written and judged by one clock, that of MLflow's server or database (``server_clock``).
"""

from __future__ import annotations

import functools
import json
import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from mlflow import MlflowClient

from congruence.tasks.mlflow.connection import TrackingError, connect, server, with_retries
from congruence.tasks.mlflow.identity import PREFIX, EvaluationIdentity
from congruence.tasks.mlflow.server_clock import server_time
from congruence.tasks.mlflow.settings import TrackingSettings
from congruence.tasks.runtime.masking import mask_text
from congruence.tasks.runtime.mlflow_requests import is_transient

log = logging.getLogger(__name__)

CLAIM = PREFIX + "claim."
ASKING, HELD = "asking", "held"
ASKING_SECONDS = 30.0
RETURN_SECONDS = 5.0
_LOOKS, _PAUSE = 25, 0.2
_TRIES, _STEP_PAUSE, _LEASE = 40, 0.5, 30.0
_RENEW_AGAIN = 0.5


def new_owner() -> str:
    """A name for a watcher, unlike any other: host, process and chance."""
    host = "".join(letter if letter.isalnum() or letter == "-" else "-" for letter in socket.gethostname())[:40]
    return f"{host}-{os.getpid()}-{uuid.uuid4().hex[:8]}"


def claim(identity: EvaluationIdentity, owner: str, lease: float, settings: TrackingSettings) -> bool:
    """Whether ``owner`` alone may evaluate ``identity`` for the next ``lease`` seconds."""
    client = connect(settings)
    return with_retries(
        f"claiming {identity.model.label}", lambda: _claim(client, identity, owner, lease, settings), settings
    )


def drop_expired(identities: Sequence[EvaluationIdentity], settings: TrackingSettings) -> None:
    """Take claims off that nobody renews; where there are some, ``RETURN_SECONDS`` are waited for their holders."""
    client = connect(settings)

    def expired() -> dict[str, tuple[EvaluationIdentity, str]]:
        now = server_time(settings)
        return {
            key: (identity, value)
            for identity in identities
            for key, value in _claims(client, identity).items()
            if json.loads(value)["expires"] <= now
        }

    step = "looking at claims"
    before = {key: value for key, (_, value) in with_retries(step, expired, settings).items()}
    if not before:
        return
    time.sleep(RETURN_SECONDS)
    for key, (identity, value) in with_retries(step, expired, settings).items():
        if before.get(key) == value:
            log.warning("%s: a watcher died or was cut off; its claim is taken off", identity.model.label)
            with_retries(step, functools.partial(_remove, client, identity, key), settings)


def release(identity: EvaluationIdentity, owner: str, settings: TrackingSettings) -> None:
    """Take the claim of ``owner`` off the version."""
    client = connect(settings)
    with_retries(
        f"releasing {identity.model.label}", lambda: _remove(client, identity, _key(identity, owner)), settings
    )


@contextmanager
def held(
    identities: Sequence[EvaluationIdentity], owner: str, lease: float, settings: TrackingSettings
) -> Iterator[None]:
    """Renew claims that ``owner`` holds while the body runs, and release them after it."""
    client, stopped = connect(settings), threading.Event()

    def renew() -> None:
        pause, said = lease / 3.0, False
        while not stopped.wait(pause):
            try:
                for identity in identities:
                    _write(client, identity, owner, HELD, lease, settings)
                pause, said = lease / 3.0, False
            except Exception as error:  # whatever it is, the next one may succeed
                if not said:
                    why = f"{server(settings)} does not answer" if is_transient(error) else mask_text(str(error))[:400]
                    log.warning("claims not renewed, trying on: %s", why)
                pause, said = min(_RENEW_AGAIN, lease / 3.0), True

    thread = threading.Thread(target=renew, name="renew-claims", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join(timeout=lease)
        for identity in identities:
            try:
                release(identity, owner, settings)
            except TrackingError as error:
                log.warning("%s; the claim ends by itself within %.0f s", error, lease)


@contextmanager
def exclusive(identity: EvaluationIdentity, owner: str, settings: TrackingSettings) -> Iterator[Callable[[], bool]]:
    """Hold a claim for a step of moments; what is yielded tells whether it still stands.

    A holder that was held up for longer than the lease may no longer be alone: it asks after it has written, and takes
    back what it wrote where its claim is gone. As long as the claim stands nobody else has read or written meanwhile.

    Raises:
        TrackingError: MLflow does not answer, or others hold it for too long.
    """
    for _ in range(_TRIES):
        if claim(identity, owner, _LEASE, settings):
            break
        drop_expired([identity], settings)  # of whoever stands in the way
        time.sleep(_STEP_PAUSE)
    else:
        raise TrackingError(
            f"{identity.model.label}: other watchers hold its {identity.split_name}; it is tried at the next look"
        )
    try:
        yield lambda: _stands(identity, owner, settings)
    finally:
        release(identity, owner, settings)


def _stands(identity: EvaluationIdentity, owner: str, settings: TrackingSettings) -> bool:
    client, key = connect(settings), _key(identity, owner)
    return with_retries(
        f"looking at the claim on {identity.model.label}", lambda: key in _claims(client, identity), settings
    )


def _claim(
    client: MlflowClient, identity: EvaluationIdentity, owner: str, lease: float, settings: TrackingSettings
) -> bool:
    asked = time.monotonic()
    _write(client, identity, owner, ASKING, ASKING_SECONDS, settings)
    for _ in range(_LOOKS):
        others = _others(client, identity, owner)
        if not others:
            # A pause longer than an asking claim lives may have let another watcher in.
            if time.monotonic() - asked > ASKING_SECONDS / 2.0:
                break
            _write(client, identity, owner, HELD, lease, settings)
            return True
        if HELD in others.values() or min(others) < owner:
            break
        time.sleep(_PAUSE)
    _remove(client, identity, _key(identity, owner))
    return False


def _others(client: MlflowClient, identity: EvaluationIdentity, owner: str) -> dict[str, str]:
    """The states of the claims of others, expired ones too (see ``drop_expired``)."""
    prefix = _key(identity, "")
    return {
        key.removeprefix(prefix): json.loads(value)["state"]
        for key, value in _claims(client, identity).items()
        if key != prefix + owner
    }


def _claims(client: MlflowClient, identity: EvaluationIdentity) -> dict[str, str]:
    model = identity.model
    if model.version:
        tags = client.get_model_version(model.name, model.version).tags
    else:
        tags = client.get_registered_model(model.name).tags
    return {key: value for key, value in tags.items() if key.startswith(_key(identity, ""))}


def _key(identity: EvaluationIdentity, owner: str) -> str:
    return f"{CLAIM}{identity.digest[:16]}.{owner}"


def _write(
    client: MlflowClient,
    identity: EvaluationIdentity,
    owner: str,
    state: str,
    seconds: float,
    settings: TrackingSettings,
) -> None:
    expires = server_time(settings) + seconds
    value = json.dumps({"state": state, "expires": expires, "split": identity.split_name})
    model, key = identity.model, _key(identity, owner)
    if model.version:
        client.set_model_version_tag(model.name, model.version, key, value)
    else:
        client.set_registered_model_tag(model.name, key, value)


def _remove(client: MlflowClient, identity: EvaluationIdentity, key: str) -> None:
    model = identity.model
    if key not in _claims(client, identity):
        return
    if model.version:
        client.delete_model_version_tag(model.name, model.version, key)
    else:
        client.delete_registered_model_tag(model.name, key)
