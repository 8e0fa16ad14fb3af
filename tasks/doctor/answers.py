"""HTTP questions to servers, asked once: what came back, or why nothing did."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlsplit

import requests
import urllib3.exceptions

from congruence.tasks.doctor.findings import Finding, fine, warning, wrong
from congruence.tasks.runtime.io_errors import chain

SECONDS = 5.0
_AGREEING_SECONDS = 5.0
_MOST_SECONDS = {"S3": 900.0}
"""From which difference on a server refuses what it is asked."""


@dataclass(frozen=True)
class Answer:
    """What a server said.

    Attributes:
        status: of HTTP.
        text: the body.
        seconds: that it took.
        skew: seconds by which its clock is ahead of this machine's, to a second; None where it does not tell.
    """

    status: int
    text: str
    seconds: float
    skew: float | None


def ask(method: str, url: str, *, headers: Mapping[str, str] | None = None, **options: Any) -> Answer:
    """Ask once, without following to other servers.

    Raises:
        requests.RequestException: nothing came back; see ``why_none``.
    """
    asked, started = time.time(), time.monotonic()
    given = {"timeout": SECONDS, "allow_redirects": False, **options}
    response = requests.request(method, url, headers=dict(headers or {}), **given)
    return answer_of(response, asked, time.monotonic() - started)


def answer_of(response: requests.Response, asked: float, seconds: float) -> Answer:
    """What a response says; it was asked for at ``asked`` of this machine's clock, and took ``seconds``."""
    skew = None
    if date := response.headers.get("Date"):
        # Dates are cut to the second: the middle of it is the best guess.
        skew = parsedate_to_datetime(date).timestamp() + 0.5 - (asked + seconds / 2)
    return Answer(response.status_code, response.text, seconds, skew)


def why_none(error: BaseException) -> str | None:
    """Why no answer came, for people; None for errors that are no failure to reach a server."""
    causes = list(chain(error))
    for cause in causes:
        if isinstance(cause, ConnectionRefusedError):
            return "it refuses connections: nothing listens there"
        if isinstance(cause, socket.gaierror) or type(cause).__name__ == "NameResolutionError":
            return "there is no host of that name"
        if isinstance(cause, ssl.SSLCertVerificationError):
            return f"its certificate is not trusted here ({cause.verify_message})"
        if isinstance(cause, ssl.SSLError):
            return f"TLS fails ({cause.reason or cause})"
    for cause in causes:
        if isinstance(cause, (requests.Timeout, TimeoutError, urllib3.exceptions.TimeoutError)):
            return "it does not answer in time"
        if isinstance(cause, (requests.ConnectionError, ConnectionError)):
            return "the connection breaks"
    return None


def clock(server: str, skew: float | None) -> list[Finding]:
    """What the difference between a server's clock and ours means; nothing where the server does not tell its time."""
    if skew is None:
        return []
    place = "clock"
    if abs(skew) <= _AGREEING_SECONDS:
        return [fine(place, f"that of {server} agrees within {_AGREEING_SECONDS:.0f} s")]
    said = f"that of {server} is {abs(skew):,.0f} s {'ahead of' if skew > 0 else 'behind'} this machine's"
    remedy = "set both by NTP (`timedatectl set-ntp true`, chrony)"
    limit = _MOST_SECONDS.get(server, 3600.0)
    if abs(skew) >= limit:
        return [wrong(place, f"{said}, and from {limit:,.0f} s on requests are refused", remedy)]
    return [warning(place, f"{said}: watchers take over each other's claims by their clocks", remedy)]


def versions(place: str, address: str, answer: Answer, ours: str) -> Finding:
    """What a server's answer to the question for its version means for a client of version ``ours``."""
    theirs = answer.text.strip().strip('"')
    said = f"{theirs} answers at {address} in {1000 * answer.seconds:.0f} ms"
    if theirs.split(".")[0] != ours.split(".")[0]:
        return wrong(place, f"{said}; this client is {ours}", "install the same major version on both")
    if theirs.split(".")[:2] != ours.split(".")[:2]:
        return warning(place, f"{said}; this client is {ours}", "install the same version on both")
    return fine(place, said)


def host_and_port(url: str) -> tuple[str, int]:
    """Of an address; the port of its scheme where it names none.

    Raises:
        ValueError: there is no host in it, or the port is no number.
    """
    parts = urlsplit(url if "://" in url else f"//{url}")
    if not parts.hostname:
        raise ValueError(f"there is no host in {url!r}")
    return parts.hostname, parts.port or {"https": 443, "http": 80}.get(parts.scheme, 8786)
