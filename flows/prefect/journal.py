"""Flow runs in the journal of what is open: should their process die, another one marks them as crashed."""

from __future__ import annotations

from typing import Any

from prefect import Flow
from prefect.client.schemas.objects import FlowRun, State
from prefect.runtime import flow_run
from prefect.settings import PREFECT_API_URL

from congruence.tasks.runtime.run_journal import EMBEDDED, closed, opened

_embedded: set[str] = set()


def note_embedded(url: str) -> None:
    """The server at that address is this process's own, and ends with it."""
    _embedded.add(url)


def _server() -> str:
    url = PREFECT_API_URL.value() or ""
    return EMBEDDED if url in _embedded else url


def note_open(ran: Flow[..., Any], run: FlowRun, state: State[Any]) -> None:  # noqa: ARG001
    """Prefect's hook on a run that begins."""
    opened("flow_run", _server(), str(run.id))


def note_under_way() -> None:
    """The flow run that is under way: one of a deployment began before its process kept a journal."""
    if flow_run.id is not None:
        opened("flow_run", _server(), str(flow_run.id))


def note_closed(ran: Flow[..., Any], run: FlowRun, state: State[Any]) -> None:  # noqa: ARG001
    """Prefect's hook on a run that ends."""
    closed("flow_run", _server(), str(run.id))


JOURNALED: Any = {
    "on_running": [note_open],
    "on_completion": [note_closed],
    "on_failure": [note_closed],
    "on_crashed": [note_closed],
    "on_cancellation": [note_closed],
}
"""Keywords of ``flow``."""
