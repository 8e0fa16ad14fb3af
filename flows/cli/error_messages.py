"""Errors of other packages that a person can fix: a disk, a file, a Prefect server."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from congruence.kernels.errors import CongruenceError
from congruence.tasks.runtime.errors import ClusterError, SurroundingsError, chain, trouble

API = "PREFECT_API_URL"


def explained(error: BaseException) -> CongruenceError | None:
    """``error`` where it is one of ours, else ours in its place; None for what nobody foresaw."""
    if isinstance(error, CongruenceError):
        return error
    if not isinstance(error, Exception):
        return None
    if (message := trouble(error)) is not None:
        return SurroundingsError(message)
    causes = [cause for cause in chain(error) if _of_prefect(cause)]
    if any(_is_unknown_login(cause) for cause in causes):
        return ClusterError(
            f"the Prefect server at {_address()} rejected the credentials; set PREFECT_API_AUTH_STRING (user:password) "
            "or PREFECT_API_KEY to one that it knows"
        )
    if causes:
        return ClusterError(
            f"the Prefect server at {_address()} was lost, or cannot do its work ({_in_a_line(error)}); see its log "
            "and its disk, start it again where that is yours to do, or unset PREFECT_API_URL to run without it; "
            "finished work is saved; run the same command to resume"
        )
    return None


@contextmanager
def explaining() -> Iterator[None]:
    """Raises ours in place of the errors inside that can be explained."""
    try:
        yield
    except Exception as error:
        ours = explained(error)
        if ours is None or ours is error:
            raise
        raise ours from error


def _of_prefect(error: BaseException) -> bool:
    """Whether a request to the Prefect server failed: others that speak HTTP fail with the same types."""
    if type(error).__module__.partition(".")[0] not in ("httpx", "httpcore", "prefect"):
        return isinstance(error, RuntimeError) and str(error).startswith("Failed to reach API at")
    try:
        url = str(error.request.url)  # type: ignore[attr-defined]
    except (AttributeError, RuntimeError):
        return False
    return bool(_address()) and url.startswith(_address())


def _is_unknown_login(error: BaseException) -> bool:
    return getattr(getattr(error, "response", None), "status_code", None) in (401, 403)


def _address() -> str:
    if given := os.environ.get(API):
        return given
    from prefect.settings import PREFECT_API_URL

    return PREFECT_API_URL.value() or ""


def _in_a_line(error: BaseException) -> str:
    text = str(error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0][:150]}" if text else type(error).__name__
