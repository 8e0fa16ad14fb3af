"""Waiting for tasks on Dask workers, as long as there are workers; and the lines that they have for people."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from queue import Empty, Queue
from typing import Any, TypeVar

from distributed import Client, get_worker
from prefect.context import FlowRunContext
from prefect.futures import PrefectFuture
from prefect_dask.task_runners import DaskTaskRunner

from congruence.flows.cli.console import say
from congruence.flows.cli.progress import Lines
from congruence.flows.evaluation.stages.failures import why
from congruence.flows.prefect.log_filters import settle
from congruence.tasks.dask.clusters import Workers, scheduler_address
from congruence.tasks.runtime.steps import Advance, listen

R = TypeVar("R")

settle()
listen(lambda title, total, unit: _lines(title, total, unit))
_LOOK_SECONDS = 5.0
_LINES = "congruence-lines"
_STEP_SECONDS = 5.0
"""A worker's step is announced: shorter ones are over before anybody wonders."""


def as_completed(futures: list[PrefectFuture[R]]) -> Iterator[PrefectFuture[R]]:
    """This flow's tasks as they end, well or not, as long as there are workers to do them."""
    workers = Workers(flow_client(), say)
    done: Queue[PrefectFuture[R]] = Queue()
    for future in futures:
        future.add_done_callback(done.put)
    waiting = len(futures)
    while waiting:
        try:
            future = done.get(timeout=_LOOK_SECONDS)
        except Empty:
            workers.require()
            continue
        waiting -= 1
        yield future


def divided(
    futures: Mapping[PrefectFuture[R], str], advance: Callable[[int], object]
) -> tuple[dict[str, R], dict[str, str]]:
    """What a task of each version gave, and why those of others failed, by label; see ``why``."""
    given: dict[str, R] = {}
    failures: dict[str, str] = {}
    for future in as_completed(list(futures)):
        if (reason := why(future)) is not None:
            failures[futures[future]] = reason
        else:
            given[futures[future]] = future.result()
        advance(1)
    return given, failures


def on_workers_of(client: Client) -> Any:
    """The ``task_runner`` of a flow whose tasks run on the workers that ``client`` knows."""
    return DaskTaskRunner(address=scheduler_address(client))


def flow_client() -> Client:
    """The Dask client of the flow that is running."""
    context = FlowRunContext.get()
    assert context is not None
    assert isinstance(context.task_runner, DaskTaskRunner)
    return context.task_runner.client


def tasks_at_once() -> int:
    """How many tasks the workers of the running flow take at a time."""
    return sum(flow_client().nthreads().values())


def tasks_under_way() -> str:
    """How many tasks the cluster of the running flow has done and has under way, in words; "" where it does not answer.

    Of a long task that gives work to the others, as a solve does, this moves while nothing else is to be seen.
    """
    try:
        done, under_way = flow_client().run_on_scheduler(_counted)
    except Exception:  # a word for people: no reason to end a run
        return ""
    return f"{done:,} tasks done, {under_way:,} under way"


def _counted(dask_scheduler: Any) -> tuple[int, int]:
    done = under_way = 0
    for prefix in dask_scheduler.task_prefixes.values():
        states = prefix.state_counts
        done += states["memory"]
        under_way += sum(group.states["processing"] for group in prefix.groups)
    return done, under_way


def tell(line: str) -> None:
    """Say a line from a worker: it is shown where the flow runs."""
    get_worker().log_event(_LINES, line)


def _lines(title: str, total: int, unit: str) -> Advance | None:
    """What a long step on a worker tells of itself."""
    try:
        worker = get_worker()
    except ValueError:  # no worker: a plain call
        return None
    return Lines(title, total, unit, out=lambda line: worker.log_event(_LINES, line), shortest=_STEP_SECONDS).advance


@contextmanager
def worker_messages(client: Client) -> Iterator[None]:
    """Shows the lines that workers ``tell``."""
    client.subscribe_topic(_LINES, _show)
    try:
        yield
    finally:
        client.unsubscribe_topic(_LINES)


def _show(event: tuple[float, str]) -> None:
    say(event[1])
