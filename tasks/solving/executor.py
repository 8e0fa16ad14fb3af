"""Where calls are made that need nothing of each other: here, one after another, or by whichever worker is free."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar

from distributed import Client, get_worker, wait
from distributed.comm.addressing import get_address_host

from congruence.kernels.threads import share_of_cores
from congruence.tasks.solving.least_busy import LeastBusy

Result = TypeVar("Result")
Name = TypeVar("Name")


class Executor(Protocol):
    """Makes calls. What ``share`` and ``begin`` return stands for their outcome in the arguments of other calls."""

    def share(self, value: Any) -> Any:
        """A stand-in for ``value``, however many calls take it."""

    def begin(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Begin ``function(*arguments)``; a stand-in for its result."""

    def result(self, begun: Any) -> Any:
        """The result of a call, or its exception raised."""

    def results(self, begun: Mapping[Name, Any]) -> dict[Name, Any]:
        """Of all calls, once all have ended; of those that failed the first one's exception is raised."""


class _Here(Executor):
    """One call after another in this process (see Executor)."""

    def share(self, value: Any) -> Any:
        return value

    def begin(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return function(*arguments)

    def result(self, begun: Any) -> Any:
        return begun

    def results(self, begun: Mapping[Name, Any]) -> dict[Name, Any]:
        return dict(begun)


HERE: Executor = _Here()


class WorkerExecutor(Executor):
    """Executor as tasks of a cluster, from one of its workers: what is shared stays there and is fetched by the others.

    A call may use the cores of its host that its neighbours leave: all cores over the threads of all workers there,
    and no more than OMP_NUM_THREADS, which is 1 in the workers of clusters that we start.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._workers = LeastBusy(client)

    def share(self, value: Any) -> Any:
        return self._client.scatter([value], hash=False)[0]

    def begin(self, function: Callable[..., Any], *arguments: Any) -> Any:
        worker = self._workers.worker()
        return self._workers.submit(worker, _beside_others, function, self._threads_by_host(), *arguments)

    def result(self, begun: Any) -> Any:
        return begun.result()

    def results(self, begun: Mapping[Name, Any]) -> dict[Name, Any]:
        wait(list(begun.values()))
        return {name: future.result() for name, future in begun.items()}

    def _threads_by_host(self) -> dict[str, int]:
        """The threads of all workers on each host."""
        threads: dict[str, int] = {}
        for worker in self._client.scheduler_info(n_workers=-1)["workers"].values():
            threads[worker["host"]] = threads.get(worker["host"], 0) + int(worker["nthreads"])
        return threads


def _beside_others(function: Callable[..., Any], threads_by_host: dict[str, int], *arguments: Any) -> Any:
    with share_of_cores(threads_by_host.get(get_address_host(get_worker().address), 1)):
        return function(*arguments)
