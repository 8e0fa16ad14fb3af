"""An announced version becomes an event on a real Prefect server, for deployments to be triggered by."""

from __future__ import annotations

import asyncio
import time

import pytest
from prefect.client.orchestration import get_client
from prefect.events import Event
from prefect.events.filters import EventFilter, EventNameFilter
from prefect.events.worker import EventsWorker

from congruence.tasks.watching.webhook import EVENT, NewVersion, emit_new_version


async def _events() -> list[Event]:
    async with get_client() as client:
        page = await client.read_events(filter=EventFilter(event=EventNameFilter(name=[EVENT])), limit=10)
    return list(page.events)


@pytest.mark.usefixtures("prefect_server")
def test_an_announced_version_is_an_event_once() -> None:
    announced = NewVersion("angle", "3", "models:/m-1", "delivery-1", {"team": "a"})
    for _ in range(2):
        emit_new_version(announced)
    EventsWorker.drain_all(timeout=20)
    limit = time.monotonic() + 60
    while not (found := asyncio.run(_events())):
        assert time.monotonic() < limit, "the event did not arrive"
        time.sleep(0.5)
    assert [event.payload["model"] for event in found] == ["models:/angle/3"]
    assert found[0].resource["prefect.resource.id"] == "mlflow.model-version.angle.3"
