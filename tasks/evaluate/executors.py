"""Where the pieces of an evaluation are worked on: in this process, or by Dask; and who hears how far it is."""

from __future__ import annotations

import logging
import pickle
import tempfile
import time
import traceback
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from queue import Empty, Queue
from typing import Any, Generic, TypeVar

from distributed import CancelledError, Client, Future, KilledWorker, get_worker, performance_report
from mlflow.environment_variables import MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING
from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor

from congruence.kernels.errors import CongruenceError
from congruence.tasks.dask.clusters import dask_client, scheduler_address
from congruence.tasks.dask.gpus import devices_in_words, worker_devices
from congruence.tasks.data.settings import Shard
from congruence.tasks.mlflow.connection import connect, tracking_address
from congruence.tasks.runtime.errors import KEPT, ClusterError, SplitChangedError, mask_text
from congruence.tasks.runtime.lines import Advance, Lines, fields_of_lines, listen, log_fields, use_json_lines
from congruence.tasks.settings.parts import ClusterSettings
from congruence.tasks.settings.sections import TrackingSettings

T = TypeVar("T")
R = TypeVar("R")

logger = logging.getLogger(__name__)
MAX_GROUPS = 200
GROUP_ROWS = 2**15
GROUPS_PER_SLOT = 8
"""However few the rows: workers end together to an eighth of their work, and progress is seen."""
_OF_THE_RUN = (ClusterError, CancelledError, KilledWorker, OSError, SplitChangedError)
_LOOK_SECONDS = 5.0
WITHOUT_WORKERS_SECONDS = 300.0
"""How long work waits for a worker: a nanny or an operator starts one again in less."""
_STEP_SECONDS = 5.0
"""A worker's step is announced: shorter ones are over before anybody wonders."""
_LINES = "congruence-lines"
REPORT_FILE = "dask-report.html"
_Ended = tuple[R | None, Exception | None]
"""What a piece of work gave, and what it raised."""


@dataclass(frozen=True)
class Done(Generic[T, R]):
    """A piece of work that has ended: what it gave, or what it raised."""

    item: T
    value: R | None = None
    error: Exception | None = None

    def result(self) -> R:
        """Returns what it gave, or raises what it raised."""
        if self.error is not None:
            raise self.error
        return self.value  # type: ignore[return-value]

    def failure(self, label: str, asked: str = "") -> str | None:
        """Returns why a version's piece of work failed, in words without secrets; None where it did not.

        That of a worker that dies (its machine was taken away, its memory ran out beside other work) is not the
        version's: Dask gives its work to another one, ``distributed.scheduler.allowed-failures`` times.

        Args:
            label: of the version.
            asked: what it was asked for, as in "predict rows 0 to 99", where what kills every worker that takes the
                piece is the version's own failure.

        Raises:
            ClusterError, OSError, ...: the cluster, a disk or a server is gone, or a file of the split is another one,
                which is no version's failure.
        """
        if asked and isinstance(self.error, KilledWorker):
            return (
                f"{label}: killed {self.error.allowed_failures + 1} workers, all that were to {asked}; it needs more "
                "memory than a worker has: give workers more, or make shard_rows of the split smaller"
            )
        if isinstance(self.error, _OF_THE_RUN):
            raise self.error
        return None if self.error is None else reason(self.error)


def reason(error: BaseException) -> str:
    """An error in one line: our own as they are, others with their type."""
    text = str(error) if isinstance(error, CongruenceError) else f"{type(error).__name__}: {error}"
    return mask_text(text)


class LocalExecutor:
    """Carries out pieces of work that do not depend on each other: in this process, one after another."""

    client: Client | None = None
    """Of the Dask cluster that does the work."""

    @property
    def slots(self) -> int:
        """How many pieces are worked on at a time."""
        return 1

    def under_way(self) -> str:
        """What there is to say of the pieces under way, "" for nothing."""
        return ""

    def map(
        self,
        work: Callable[[T], R],
        items: Sequence[T],
        *,
        name: str,  # noqa: ARG002
        retries: int = 0,
        fields: Callable[[T], Mapping[str, str]] | None = None,
    ) -> Iterator[Done[T, R]]:
        """Yields what ``work`` gives for each item, in the order in which they end.

        Args:
            work: a function that can be sent to another process.
            items: what it is given, one at a time.
            name: of the work, in Dask's dashboard and in log lines.
            retries: how often a piece that raises is tried again.
            fields: what the lines that a piece logs say of it.
        """
        for item in items:
            with log_fields(**({} if fields is None else fields(item))):
                ended = _attempt(work, item, retries)
            yield Done(item, *ended)


class DaskExecutor(LocalExecutor):
    """Has the workers of a cluster do the work, and waits as long as there are some.

    Args:
        client: of the cluster.
        say: takes lines for people.
    """

    def __init__(self, client: Client, say: Callable[[str], None]) -> None:
        self.client: Client = client
        self._say = say

    @property
    def slots(self) -> int:
        """Threads of all workers."""
        return sum(self.client.nthreads().values())

    def map(
        self,
        work: Callable[[T], R],
        items: Sequence[T],
        *,
        name: str,
        retries: int = 0,
        fields: Callable[[T], Mapping[str, str]] | None = None,
    ) -> Iterator[Done[T, R]]:
        """See LocalExecutor; pieces of a worker that dies are done by another one."""
        lost: float | None = None
        ended: Queue[Future[_Ended[R]]] = Queue()
        asked: dict[object, tuple[T, Future[_Ended[R]]]] = {}
        for item in items:
            known = {**fields_of_lines(), **({} if fields is None else fields(item))}
            key = f"{name.replace(' ', '-')}-{uuid.uuid4().hex}"
            future = self.client.submit(_carry_out, work, item, name, retries, known, key=key, pure=False)
            asked[key] = item, future
            future.add_done_callback(ended.put)
        while asked:
            try:
                future = ended.get(timeout=_LOOK_SECONDS)
            except Empty:
                lost = self._without_workers(lost)
                continue
            item, _ = asked.pop(future.key)
            try:
                done = Done(item, *future.result())
            except Exception as error:  # of the cluster: others are given as values
                done = Done(item, error=error)
            yield done

    def _without_workers(self, since: float | None) -> float | None:
        """Since when there has been no worker, None while there is one; to be asked again with the answer.

        Raises:
            ClusterError: for longer than WITHOUT_WORKERS_SECONDS.
        """
        if self.client.nthreads():
            return None
        if since is None:
            self._say(f"No workers connected; waiting up to {WITHOUT_WORKERS_SECONDS:.0f} s.")
            return time.monotonic()
        if time.monotonic() - since > WITHOUT_WORKERS_SECONDS:
            raise ClusterError(
                f"the Dask scheduler at {scheduler_address(self.client)} has had no worker for "
                f"{WITHOUT_WORKERS_SECONDS:.0f} s; start some with 'dask worker' and see the logs of those that ended; "
                f"{KEPT}"
            )
        return since

    def under_way(self) -> str:
        """How many tasks the cluster has done and has under way, in words; "" where it does not answer.

        Of a long piece of work that gives work to the others, as a solve does, this moves while nothing else does.
        """
        try:
            done, under_way = self.client.run_on_scheduler(_counted)
        except Exception:  # a word for people: no reason to end a run
            return ""
        return f"{done:,} tasks done, {under_way:,} under way"


@contextmanager
def dask_executor(settings: ClusterSettings, say: Callable[[str], None]) -> Iterator[DaskExecutor]:
    """An executor on the configured cluster, of whose workers the lines are said; see ``dask_client``."""
    with dask_client(settings, say) as client:
        if settings.has_cards_of_its_own and (devices := devices_in_words(worker_devices(client, settings))):
            say(devices)
        client.subscribe_topic(_LINES, lambda event: say(event[1]))
        try:
            yield DaskExecutor(client, say)
        finally:
            client.unsubscribe_topic(_LINES)


def tell(line: str) -> None:
    """Say a line from a worker: it is shown where the executor is."""
    get_worker().log_event(_LINES, line)


def groups_of_shards(shards: Sequence[Shard], slots: int, times: int = 1) -> list[list[Shard]]:
    """Shards in groups of some 32,768 rows of quick work, smaller ones where that leaves a slot fewer than eight.

    Args:
        shards: in split order.
        slots: of the executor.
        times: how often all shards are worked on, by a version each.
    """
    rows = sum(shard.rows for shard in shards) * times
    return in_groups(shards, max(rows // GROUP_ROWS, GROUPS_PER_SLOT * slots), times)


def in_groups(work: Sequence[T], groups: int = MAX_GROUPS, times: int = 1) -> list[list[T]]:
    """``work`` in order, in groups of one size, so many at most ``times`` over."""
    size = max(1, -(-len(work) * times // max(1, groups)))
    return [list(work[start : start + size]) for start in range(0, len(work), size)]


def _attempt(work: Callable[[T], R], item: T, retries: int) -> _Ended[R]:
    for left in reversed(range(retries + 1)):
        try:
            return work(item), None
        except Exception as error:
            if left == 0 or isinstance(error, SplitChangedError):  # a file that was replaced stays replaced
                return None, error
    raise AssertionError("no attempt was made")


def _carry_out(work: Callable[[T], R], item: T, name: str, retries: int, fields: Mapping[str, str]) -> _Ended[R]:
    """On a worker. Dask would log what is raised, and lose the client's future of what cannot be unpickled."""
    _begin_worker()
    started = time.monotonic()
    with log_fields(**fields):
        value, error = _attempt(work, item, retries)
        seconds = time.monotonic() - started
        logger.info("%s %s in %.1f s", name, "done" if error is None else "failed", seconds)
    return value, None if error is None else _sendable(error)


def _sendable(error: Exception) -> Exception:
    """``error`` with its traceback as a note, or its text where it cannot be sent as it is."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return CongruenceError(reason(error))
    if not isinstance(error, CongruenceError):
        error.add_note(mask_text("".join(traceback.format_exception(error))))
    return error


@cache
def _begin_worker() -> None:
    """What a worker's process does once: its lines are JSON where they are to be, and its long steps are heard."""
    use_json_lines()
    listen(_step_lines)


def _step_lines(title: str, total: int, unit: str) -> Advance | None:
    """What a long step on a worker tells of itself."""
    try:
        worker = get_worker()
    except ValueError:  # no worker: a plain call
        return None
    return Lines(title, total, unit, lambda line: worker.log_event(_LINES, line), shortest=_STEP_SECONDS).advance


def _counted(dask_scheduler: Any) -> tuple[int, int]:
    done = under_way = 0
    for prefix in dask_scheduler.task_prefixes.values():
        states = prefix.state_counts
        done += states["memory"]
        under_way += sum(group.states["processing"] for group in prefix.groups)
    return done, under_way


@dataclass(frozen=True)
class Observer:
    """Hears of an evaluation; one that is made without anything keeps it to itself.

    Attributes:
        say: is given lines for people.
        progress: is given what is done, how many units that is, their ``unit`` in the plural, how many were ``found``
            done before, what else there is to say of the work (``detail``), and how many units are worked on
            ``at_once``; inside, its value is called with the number of units just done.
        stage: carries out a stage (index, check, embed, predict, solve or score) of a split, and returns what it gave.
    """

    say: Callable[[str], object] = lambda _line: None
    progress: Callable[..., AbstractContextManager[Advance]] = lambda *_, **__: nullcontext(lambda _done: None)
    stage: Callable[[str, str, Callable[[], Any]], Any] = lambda _name, _split, work: work()


@contextmanager
def recorded(run_id: str, client: Client | None, settings: TrackingSettings) -> Iterator[None]:
    """What this machine and a cluster do inside is logged to a run that lasts, where that is asked for.

    MLflow logs the machine's use (``system/...``) where its own switch says so: the variable
    MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING, or ``mlflow.enable_system_metrics_logging()``. Dask's report of all work of
    the cluster becomes an artifact where the settings say so; one that cannot be made costs a warning, and nothing of
    the evaluation.
    """
    with ExitStack() as stack:
        if MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING.get():  # type: ignore[no-untyped-call]
            where = tracking_address(settings)
            monitor = SystemMetricsMonitor(run_id, resume_logging=True, tracking_uri=where)  # type: ignore[no-untyped-call]
            monitor.start()  # type: ignore[no-untyped-call]
            stack.callback(monitor.finish)
        if client is not None and settings.performance_report:
            file = Path(stack.enter_context(tempfile.TemporaryDirectory())) / REPORT_FILE
            stack.enter_context(client.as_current())
            report = performance_report(filename=str(file), mode="inline")  # read where no network is
            report.__enter__()

            def end() -> None:
                try:
                    report.__exit__(None, None, None)
                    connect(settings).log_artifact(run_id, str(file))
                except Exception as error:
                    logger.warning(
                        "Dask's performance report was not made (%s); is Bokeh installed where the scheduler runs?",
                        mask_text(str(error)),
                    )

            stack.callback(end)
        yield
