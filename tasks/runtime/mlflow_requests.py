"""Requests to MLflow, whoever makes them: all pages of a list, and which errors mean that the server is away."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import requests
from mlflow.exceptions import MlflowException

from congruence.tasks.runtime.errors import chain, trouble

_CODES = {"INTERNAL_ERROR", "TEMPORARILY_UNAVAILABLE", "RESOURCE_EXHAUSTED", "REQUEST_LIMIT_EXCEEDED", "ABORTED"}


def all_pages(search: Callable[[str | None], Any]) -> Iterator[Any]:
    """Yields the items of every page; ``search`` is given the token of the page that it is to ask for."""
    token: str | None = None
    while True:
        page = search(token)
        yield from page
        token = page.token
        if not token:
            return


def is_transient(error: BaseException) -> bool:
    """Whether the same request may succeed a little later."""
    if "database is locked" in str(error):  # another process writes
        return True
    if trouble(error) is not None:
        return False
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
    refused = any(isinstance(cause, ConnectionRefusedError) for cause in chain(error))
    return refused or "Connection refused" in str(error)  # MLflow tells its cause as text


def is_unknown_login(error: BaseException) -> bool:
    """Whether the server rejected the credentials."""
    if isinstance(error, MlflowException):
        return error.error_code in ("UNAUTHENTICATED", "CUSTOMER_UNAUTHORIZED")
    return getattr(getattr(error, "response", None), "status_code", None) == 401


def _is_race(error: MlflowException) -> bool:
    # Two writers, such as two commands on one split, insert the same dataset: the second finds it at its next try.
    text = str(error).lower()
    return error.error_code == "BAD_REQUEST" and ("unique" in text or "duplicate" in text)
