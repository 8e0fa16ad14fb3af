"""Which errors mean that a server of MLflow is away or busy, rather than that it refused or failed for good."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

import requests
from mlflow.exceptions import MlflowException

from congruence.tasks.runtime.io_errors import chain

_CODES = {"INTERNAL_ERROR", "TEMPORARILY_UNAVAILABLE", "RESOURCE_EXHAUSTED", "REQUEST_LIMIT_EXCEEDED", "ABORTED"}

_SECONDS = 10.0
_LONGEST = 400
_ENCODING = re.compile(r"codec can't encode|no equivalent in encoding|invalid byte sequence for encoding")
_PASSES = re.compile(r"connection|closed|terminat|shutting down|starting up|time[d ]*out|lock|too many clients", re.I)


@dataclass(frozen=True)
class ServerError:
    """What a server says that answers with an error of its own (HTTP status 5xx), or a database that refuses a value.

    Attributes:
        status: of HTTP.
        words: the server's own, empty where it gives none.
    """

    status: int
    words: str

    @property
    def is_lasting(self) -> bool:
        """Whether the same request fails for as long as the database is what it is."""
        return _ENCODING.search(self.words) is not None

    @property
    def may_be_lasting(self) -> bool:
        """Whether it is worth giving up where the same words come again: they do not tell of something that is away."""
        return self.status == 500 and bool(self.words) and _PASSES.search(self.words) is None

    def __str__(self) -> str:
        remedy = ""
        if self.is_lasting:
            remedy = (
                "; MLflow's database stores ASCII alone: move it to one with ENCODING 'UTF8' (createdb -E UTF8 -T "
                "template0)"
            )
        return f"{self.status}: {self.words or 'no reason given'}{remedy}"


def server_error(error: BaseException) -> ServerError | None:
    """What the server said, where it answered with an error of its own; None where it did not answer.

    MLflow's client keeps the server's words to itself once it has tried again, so the very request, which may be
    repeated, is sent once more to read them.
    """
    for cause in chain(error):
        if isinstance(cause, requests.RequestException):
            response = cause.response
            if response is None and isinstance(cause, requests.exceptions.RetryError):
                response = _asked_again(cause.request)
            return None if response is None or response.status_code < 500 else _of(response)
    if isinstance(error, MlflowException) and _ENCODING.search(str(error)):
        return ServerError(500, _shortened(str(error)))
    return None


def _asked_again(request: object) -> requests.Response | None:
    if not isinstance(request, requests.PreparedRequest):
        return None
    try:
        with requests.Session() as session:
            found = session.merge_environment_settings(request.url or "", {}, None, None, None)
            return session.send(request, timeout=_SECONDS, **found)
    except (requests.RequestException, OSError):
        return None


def _of(response: requests.Response) -> ServerError:
    try:
        said = json.loads(response.text)
        words = str(said.get("message") or said.get("detail") or "")
    except (ValueError, AttributeError):
        words = "" if "<" in response.text else response.text
    return ServerError(response.status_code, _shortened(words))


def _shortened(words: str) -> str:
    return " ".join(words.split())[:_LONGEST]


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
    refused = any(isinstance(cause, ConnectionRefusedError) for cause in chain(error))
    return refused or "Connection refused" in str(error)  # MLflow tells its cause as text


def _is_race(error: MlflowException) -> bool:
    # Two writers, such as two watchers on one split, insert the same dataset: the second finds it at its next try.
    text = str(error).lower()
    return error.error_code == "BAD_REQUEST" and ("unique" in text or "duplicate" in text)
