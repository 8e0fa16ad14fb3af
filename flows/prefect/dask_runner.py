"""Where a flow's tasks run: on the workers of a Dask cluster that is there already."""

from __future__ import annotations

from typing import Any

from distributed import Client
from prefect_dask.task_runners import DaskTaskRunner

from congruence.tasks.dask.clusters import scheduler_address


def on_workers_of(client: Client) -> Any:
    """The ``task_runner`` of a flow whose tasks run on the workers that ``client`` knows."""
    return DaskTaskRunner(address=scheduler_address(client))
