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
from pathlib import Path

from congruence.tasks.runtime.errors import SettingsError
from congruence.tasks.runtime.files import keep_temporary_files_in
from congruence.tasks.runtime.json_logging import is_json, require_known_kind, use_json_lines

_QUIET = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "1",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
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

_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_LEAST_BYTES = 16 * 2**20


def embed_servers(home: Path) -> Path:
    """Point Prefect at ``home`` unless the user has pointed it elsewhere; returns ``home``, made if need be."""
    require_known_kind()
    home = home.resolve()
    defaults = {**_QUIET, "PREFECT_HOME": str(home / "prefect")}
    if is_json():
        defaults |= _COLLECTED
    for name, value in defaults.items():
        os.environ.setdefault(name, value)
    _exempt_loopback_from_proxies()
    try:
        home.mkdir(parents=True, exist_ok=True)
        _reserve(home)
        keep_temporary_files_in(home / "temporary")
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


def _exempt_loopback_from_proxies() -> None:
    """A proxy answers for no server of this machine, and would be asked for the embedded ones, too."""
    for name in ("NO_PROXY", "no_proxy"):
        given = os.environ.get(name) or os.environ.get(name.swapcase()) or ""
        missing = [host for host in _LOOPBACK if host not in given.split(",")]
        if given != "*" and missing:
            os.environ[name] = ",".join([given, *missing] if given else missing)


def log_to_prefect() -> None:
    """Show what runs log on their pages of the Prefect server; to be called before ``embed_servers``."""
    os.environ.setdefault("PREFECT_LOGGING_LEVEL", "INFO")
    os.environ.setdefault("PREFECT_LOGGING_EXTRA_LOGGERS", "congruence")
