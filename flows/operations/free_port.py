"""A port that another program listens on is said before a server is started there, with one that is free."""

from __future__ import annotations

import socket

from congruence.tasks.runtime.errors import SettingsError

_LOOKED_AT = 100


def require_free(host: str, port: int) -> None:
    """Refuse a port that cannot be listened on.

    Raises:
        SettingsError: it is in use, or this user may not; names the next one that is free.
    """
    why = _refusal(host, port)
    if why is None:
        return
    following = range(port + 1, min(port + 1 + _LOOKED_AT, 2**16))
    free = next((other for other in following if _refusal(host, other) is None), None)
    offered = "choose another with --port" if free is None else f"use the next free one: congruence ui --port {free}"
    raise SettingsError(f"--port: {host}:{port} cannot be listened on ({why}); {offered}")


def _refusal(host: str, port: int) -> str | None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do: one that ended is no obstacle
        try:
            listener.bind((host, port))
            listener.listen()
        except OSError as error:
            return (error.strerror or str(error)).lower()
    return None
