"""An HTTP server that strangers cannot exhaust: connections, their time, and what a request may hold are bounded."""

from __future__ import annotations

import asyncio
import resource
import socket
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from congruence.tasks.runtime.errors import SettingsError

MAX_CONNECTIONS = 128
REQUEST_SECONDS = 20.0
_BACKLOG = 32  # so many are accepted at a time before any is counted
_HEADERS = 16_384
_FILES_BESIDE = 64 + _BACKLOG
_BUSY = (
    b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 5\r\nConnection: close\r\n"
    b"Content-Type: application/json\r\nContent-Length: 33\r\n\r\n"
    b'{"error": "too many connections"}'
)


class BoundedProtocol(H11Protocol):
    """Answers 503 to connections beyond ``most``, and closes those whose request is not there after ``seconds``."""

    most = MAX_CONNECTIONS
    seconds = REQUEST_SECONDS
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Count it, and let its time begin."""
        super().connection_made(transport)
        if len(self.connections) > self.most:
            transport.write(_BUSY)
            transport.close()
        # A client that does not read its 503 would keep the connection.
        self._deadline = self.loop.call_later(self.seconds, self._expire)

    def connection_lost(self, exc: Exception | None) -> None:
        """Its time ends with it."""
        if self._deadline is not None:
            self._deadline.cancel()
        super().connection_lost(exc)

    def _expire(self) -> None:
        answering = self.cycle is not None and not self.cycle.more_body and not self.cycle.response_complete
        if answering and not self.transport.is_closing():
            self._deadline = self.loop.call_later(self.seconds, self._expire)
        else:
            self.transport.abort()


def serve_bounded(application: Any, host: str, port: int) -> None:
    """Serve ``application`` until interrupted.

    Raises:
        SettingsError: nothing can listen there.
    """
    try:
        listener = socket.create_server((host, port), backlog=_BACKLOG)
    except OSError as error:
        raise SettingsError(
            f"--host {host} --port {port}: nothing can listen there ({error.strerror}); choose another port, or end "
            "what uses it"
        ) from error
    with listener:
        bounded_server(application).run(sockets=[listener])


def bounded_server(
    application: Any, *, connections: int | None = None, seconds: float = REQUEST_SECONDS
) -> uvicorn.Server:
    """A server of ``application``, not started.

    Args:
        application: ASGI.
        connections: open at a time; by default what the process's limit of open files leaves, at most
            ``MAX_CONNECTIONS``.
        seconds: in which a request must have come.
    """
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = connections or max(4, min(MAX_CONNECTIONS, files - _FILES_BESIDE))
    protocol = type("Protocol", (BoundedProtocol,), {"most": most, "seconds": seconds})
    return uvicorn.Server(
        uvicorn.Config(
            application,
            http=protocol,
            ws="none",
            backlog=_BACKLOG,
            h11_max_incomplete_event_size=_HEADERS,
            timeout_keep_alive=5,
            log_level="warning",
        )
    )
