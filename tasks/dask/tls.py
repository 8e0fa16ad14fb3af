"""TLS between this process, a Dask scheduler and its workers: certificates from files, on both sides."""

from __future__ import annotations

from typing import Any

import dask

from congruence.tasks.runtime.errors import SettingsError
from congruence.tasks.settings.cluster import ClusterSettings

_PLACES = {
    "ca_file": "distributed.comm.tls.ca-file",
    "cert_file": "distributed.comm.tls.client.cert",
    "key_file": "distributed.comm.tls.client.key",
}


def tls_configuration(settings: ClusterSettings) -> dict[str, Any]:
    """What Dask's configuration must hold for every client in this process to speak TLS as the settings say.

    Scheduler and workers have theirs from the options ``--tls-ca-file``, ``--tls-cert`` and ``--tls-key``.

    Raises:
        SettingsError: a file is not there, or the address asks for TLS and nothing names certificates.
    """
    if settings.tls is None:
        if (settings.address or "").startswith("tls://"):
            _require_configured(settings)
        return {}
    found: dict[str, Any] = {"distributed.comm.require-encryption": True}
    for key, place in _PLACES.items():
        file = getattr(settings.tls, key)
        if not file.is_file():
            raise SettingsError(f"cluster.tls.{key}: there is no file {file}; give the path of a PEM file")
        found[place] = str(file)
    return found


def _require_configured(settings: ClusterSettings) -> None:
    missing = [key for key, place in _PLACES.items() if not dask.config.get(place, None)]
    if missing:
        raise SettingsError(
            f"cluster.address: {settings.address} asks for TLS, and nothing names {', '.join(missing)}; write "
            "tls: {ca_file: ..., cert_file: ..., key_file: ...} beside it, or set distributed.comm.tls in Dask's files"
        )
