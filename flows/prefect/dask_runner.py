"""Where a flow's tasks run: on the workers of a Dask cluster that is there already."""

from __future__ import annotations

from typing import Any

from distributed import Client
from prefect_dask.task_runners import DaskTaskRunner

from congruence.flows.cli.terminated import flow_of_a_command
from congruence.tasks.dask.clusters import scheduler_address


def on_workers_of(client: Client) -> Any:
    """The ``task_runner`` of a flow whose tasks run on the workers that ``client`` knows."""
    return _OnWorkers(address=scheduler_address(client))


class _OnWorkers(DaskTaskRunner):
    """Prefect enters it where its own handler of SIGTERM is in its place, and leaves it before that goes."""

    def __enter__(self) -> _OnWorkers:
        super().__enter__()  # type: ignore[no-untyped-call]
        self._exit_stack.enter_context(flow_of_a_command())
        return self
