"""What must be set in the environment before Prefect, MLflow, Dask or a BLAS is imported.

Everything embedded lives under one home folder and talks to nobody: an ephemeral Prefect server on loopback, MLflow on
SQLite, no telemetry. Values that the user has set are kept, so pointing at real servers is a matter of their own
variables (PREFECT_API_URL, MLFLOW_TRACKING_URI).
"""

from __future__ import annotations

import errno
import logging
import os
import shutil
import tempfile
from importlib.util import find_spec
from pathlib import Path

from congruence.tasks.runtime.atomic_files import write_whole
from congruence.tasks.runtime.errors import SettingsError
from congruence.tasks.runtime.json_logging import is_json, require_known_kind, use_json_lines
from congruence.tasks.settings.home import home_store

_QUIET = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "1",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "120",
    "PREFECT_LOGGING_LEVEL": "WARNING",
    "PREFECT_SERVER_LOGGING_LEVEL": "WARNING",
    "DASK_LOGGING__DISTRIBUTED": "error",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",  # it would say the address with its password
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",  # we wait for an MLflow that is away ourselves, and say so
}

_COLLECTED = {
    "PREFECT_LOGGING_LEVEL": "INFO",  # a line for the end of each task, with its stage, version and shards
    "MLFLOW_CONFIGURE_LOGGING": "false",  # its lines go where all others go
}

_LEAST_BYTES = 16 * 2**20


def embed_servers(home: Path) -> Path:
    """Point Prefect at ``home`` unless the user has pointed it elsewhere; returns ``home``, made if need be."""
    require_known_kind()
    home = home.resolve()
    is_own = "PREFECT_HOME" not in os.environ
    defaults = {**_QUIET, "PREFECT_HOME": str(home / "prefect")}
    if is_json():
        defaults |= _COLLECTED
    for name, value in defaults.items():
        os.environ.setdefault(name, value)
    try:
        home.mkdir(parents=True, exist_ok=True)
        if is_own:
            _quiet_connection_pool(home / "prefect")
        _reserve(home)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            free = shutil.disk_usage(home).free / 2**20
            raise SettingsError(
                f"home: the disk of {home} is full ({free:.0f} MiB free, a run needs at least {_LEAST_BYTES // 2**20} "
                "beside what it keeps); make room, or give a folder on another disk with --home"
            ) from error
        remedy = "allow larger ones, see ulimit -f" if error.errno == errno.EFBIG else "give another folder with --home"
        raise SettingsError(f"home: {home} cannot be written ({error.strerror}); {remedy}") from error
    use_json_lines()
    # It tells every single attempt at a server that is away; we tell each pause.
    logging.getLogger("urllib3.connectionpool").setLevel(logging.ERROR)
    return home


def _reserve(home: Path) -> None:
    """Take and give back what the databases of a run need, so that a full disk is said before anything is started."""
    with tempfile.TemporaryFile(dir=home) as probe:
        os.posix_fallocate(probe.fileno(), 0, _LEAST_BYTES)


def _quiet_connection_pool(prefect_home: Path) -> None:
    """Prefect's own logging configuration, less the pool of its embedded server's database.

    A request that ends while the server stops is reported by sqlalchemy as "Exception during reset", with a traceback,
    though nothing was lost.
    """
    installed = find_spec("prefect")
    if installed is None or installed.origin is None:
        return
    default = (Path(installed.origin).parent / "logging" / "logging.yml").read_text()
    wanted = default.replace("\nloggers:\n", "\nloggers:\n  sqlalchemy.pool:\n    level: CRITICAL\n\n", 1)
    path = prefect_home / "logging.yml"
    if not path.exists() or path.read_text() != wanted:
        write_whole(path, wanted.encode())  # several commands may start at once in one home folder


def log_to_prefect() -> None:
    """Show what runs log on their pages of the Prefect server; to be called before ``embed_servers``."""
    os.environ.setdefault("PREFECT_LOGGING_LEVEL", "INFO")
    os.environ.setdefault("PREFECT_LOGGING_EXTRA_LOGGERS", "congruence")


def tracking_uri(home: Path) -> str:
    """The user's MLFLOW_TRACKING_URI, else MLflow on SQLite in ``home``."""
    return os.environ.get("MLFLOW_TRACKING_URI") or home_store(home)
