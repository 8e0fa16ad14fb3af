"""How many evaluations are in a stage at once, over all that a Prefect server knows: a limit on the stage's tag."""

from __future__ import annotations

import contextvars
import threading
import time
from collections.abc import Iterator

import pytest
from prefect import flow
from prefect.client.orchestration import get_client

from congruence.flows.evaluate import STAGES

TAG = "congruence-predict"


@pytest.fixture
def one_at_a_time(prefect_server: None) -> Iterator[None]:
    with get_client(sync_client=True) as client:
        client.create_concurrency_limit(tag=TAG, concurrency_limit=1)
        yield
        client.delete_concurrency_limit_by_tag(tag=TAG)


@pytest.mark.usefixtures("one_at_a_time")
def test_a_limit_on_the_tag_of_a_stage_is_kept() -> None:
    spans: list[tuple[float, float]] = []
    # The slot is taken before the second asks: two that ask at once are Prefect's own affair, and its SQLite's.
    held = threading.Event()

    def check(waits: bool) -> None:
        if waits:
            assert held.wait(timeout=60)

    def predict() -> None:
        held.set()
        began = time.monotonic()
        time.sleep(1.0)
        spans.append((began, time.monotonic()))

    @flow(name="of a test")
    def an_evaluation(waits: bool) -> None:
        STAGES.stage("check", "circle", lambda: check(waits))
        STAGES.stage("predict", "circle", predict)

    both = [
        threading.Thread(target=contextvars.copy_context().run, args=(an_evaluation, waits)) for waits in (False, True)
    ]
    for each in both:
        each.start()
    for each in both:
        each.join(timeout=100)
    first, second = sorted(spans)
    assert second[0] >= first[1]
