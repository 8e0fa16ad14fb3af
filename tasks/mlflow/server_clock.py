"""The time by MLflow's own clock, which is one for all who write there: machines disagree by more than a lease."""

from __future__ import annotations

import functools
import time
from email.utils import parsedate_to_datetime
from typing import Any

import mlflow
import sqlalchemy
from mlflow.utils.credentials import get_default_host_creds
from mlflow.utils.rest_utils import http_request

from congruence.tasks.mlflow.settings import TrackingSettings

_DATABASES = {
    "postgresql": "SELECT EXTRACT(EPOCH FROM clock_timestamp())",
    "mysql": "SELECT UNIX_TIMESTAMP(SYSDATE(6))",
}
_KNOWN_SECONDS = 60.0
"""So long a reading is carried on by this machine's monotonic clock."""


def server_time(settings: TrackingSettings) -> float:
    """Seconds since 1970 by the clock of the registry's server or database; by this machine's for a file."""
    uri = str(settings.registry_uri or settings.uri or mlflow.get_registry_uri())
    now = time.monotonic()
    read, asked = _reading(uri, int(now / _KNOWN_SECONDS))
    return time.time() if read is None else read + (now - asked)


@functools.lru_cache(maxsize=8)
def _reading(uri: str, _period: int) -> tuple[float | None, float]:
    """What the clock says, and when, by the monotonic clock, it was asked."""
    scheme = uri.partition(":")[0].partition("+")[0]
    asked = time.monotonic()
    if scheme in ("http", "https"):
        return _of_http(uri), asked
    return (_of_database(uri, _DATABASES[scheme]) if scheme in _DATABASES else None), asked


def _of_http(uri: str) -> float | None:
    request: Any = http_request
    login = get_default_host_creds(uri)  # type: ignore[no-untyped-call]
    response = request(login, "/health", "GET", raise_on_status=False)
    try:
        return parsedate_to_datetime(response.headers["Date"]).timestamp()
    except (KeyError, ValueError, TypeError):  # a proxy that takes it away
        return None


def _of_database(uri: str, query: str) -> float:
    engine = sqlalchemy.create_engine(uri, poolclass=sqlalchemy.pool.NullPool)
    with engine.connect() as connection:
        return float(connection.execute(sqlalchemy.text(query)).scalar_one())
