"""Which errors mean that a server of MLflow is away or busy, rather than that it refused."""

from __future__ import annotations

import requests
from mlflow.exceptions import MlflowException

_CODES = {"INTERNAL_ERROR", "TEMPORARILY_UNAVAILABLE", "RESOURCE_EXHAUSTED", "REQUEST_LIMIT_EXCEEDED", "ABORTED"}


def is_transient(error: BaseException) -> bool:
    """Whether the same request may succeed a little later."""
    if "database is locked" in str(error):  # another process writes
        return True
    if isinstance(error, MlflowException):
        return error.error_code in _CODES or _is_race(error)
    response = getattr(error, "response", None)
    if response is not None:
        return bool(response.status_code >= 500 or response.status_code == 429)
    # Two writers that put the same folder of artifacts in place: it is there at the next try.
    return isinstance(
        error, (requests.ConnectionError, requests.Timeout, ConnectionError, TimeoutError, FileExistsError)
    )


def is_refusal(error: BaseException) -> bool:
    """Whether connections were refused: nothing listens at that address, which waiting seldom changes."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ConnectionRefusedError):
            return True
        cause = cause.__cause__ or cause.__context__
    return "Connection refused" in str(error)  # MLflow tells its cause as text


def _is_race(error: MlflowException) -> bool:
    # Two writers, such as two watchers on one split, insert the same dataset: the second finds it at its next try.
    text = str(error).lower()
    return error.error_code == "BAD_REQUEST" and ("unique" in text or "duplicate" in text)
