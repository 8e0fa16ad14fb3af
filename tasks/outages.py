"""Which errors mean that a server of MLflow is away, rather than that it refused."""

from __future__ import annotations

import requests
from mlflow.exceptions import MlflowException

_CODES = {"INTERNAL_ERROR", "TEMPORARILY_UNAVAILABLE", "RESOURCE_EXHAUSTED", "REQUEST_LIMIT_EXCEEDED", "ABORTED"}


def is_outage(error: BaseException) -> bool:
    """Whether the same request may succeed a little later."""
    if isinstance(error, MlflowException):
        return error.error_code in _CODES
    response = getattr(error, "response", None)
    if response is not None:
        return bool(response.status_code >= 500 or response.status_code == 429)
    return isinstance(error, (requests.ConnectionError, requests.Timeout, ConnectionError, TimeoutError))
