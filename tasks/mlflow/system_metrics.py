"""CPU, memory, disk, network and GPU use of this machine and of every worker while versions are evaluated.

The versions of a split are measured together, so they share one run, in an experiment of its own: in the versions' runs
these numbers would come first on every page that compares them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial

from distributed import Client
from mlflow import MlflowClient
from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor

from congruence.tasks.mlflow.connection import active_run, connect, experiment_id, tracking_address, with_retries
from congruence.tasks.mlflow.identity import PREFIX
from congruence.tasks.mlflow.links import run_place
from congruence.tasks.mlflow.runs import MACHINE_PLACE, MACHINE_RUN, SOURCE
from congruence.tasks.mlflow.settings import TrackingSettings
from congruence.tasks.mlflow.views import prepare_experiment
from congruence.tasks.mlflow.worker_metrics import worker_metrics

INTERVAL = 10.0
_LOGGER = "mlflow.system_metrics.system_metrics_monitor"


class _Monitor(SystemMetricsMonitor):
    """MLflow's monitor, which gives up when the server does not answer once: this one goes on at its return."""

    def monitor(self) -> None:
        while not self._shutdown_event.is_set():
            super().monitor()  # type: ignore[no-untyped-call]
            self._shutdown_event.wait(self.sampling_interval)


@contextmanager
def system_metrics(
    run_ids: Sequence[str],
    settings: TrackingSettings,
    *,
    client: Client | None = None,
    interval: float = INTERVAL,
) -> Iterator[str | None]:
    """Log ``system/...`` metrics while the block runs, and give the id of the run that has them.

    Args:
        run_ids: the (open) evaluations that are being made; the run is named in their tags. Taken up again, they go on
            with the run that they had.
        settings: where evaluations are logged.
        client: of the Dask cluster that works, for ``system/worker-N/...``; by default this machine's alone are logged.
        interval: seconds between two measurements.
    """
    if not run_ids:
        yield None
        return
    server = connect(settings)
    status = "FAILED"
    machine = with_retries(
        "opening the run of system metrics", lambda: _machine_run(server, run_ids, settings), settings
    )
    try:
        workers = nullcontext() if client is None else worker_metrics(client, machine, settings, interval)
        with _monitored(machine, settings, interval), workers:
            yield machine
        status = "FINISHED"
    finally:
        ended = partial(server.set_terminated, machine, status)
        with_retries("closing the run of system metrics", ended, settings)


@contextmanager
def _monitored(machine: str, settings: TrackingSettings, interval: float) -> Iterator[None]:
    # It says what it cannot send with the server's whole address, and the steps of the evaluation say it too.
    logging.getLogger(_LOGGER).setLevel(logging.CRITICAL)
    monitor = _Monitor(  # type: ignore[no-untyped-call]
        machine, sampling_interval=interval, resume_logging=True, tracking_uri=tracking_address(settings)
    )
    try:
        monitor.start()  # type: ignore[no-untyped-call]
        yield
    finally:
        monitor.finish()  # type: ignore[no-untyped-call]


def _machine_run(client: MlflowClient, run_ids: Sequence[str], settings: TrackingSettings) -> str:
    runs = [client.get_run(run_id) for run_id in run_ids]
    named = {run.data.tags.get(MACHINE_RUN) for run in runs}
    earlier = [run for each in named - {None} if (run := active_run(client, str(each))) is not None]
    if len(named) == len(earlier) == 1:
        found = str(earlier[0].info.run_id)
        client.update_run(found, status="RUNNING")
        return found
    for left in earlier:  # by a process that died with other versions in its hands
        if left.info.status == "RUNNING":
            client.set_terminated(left.info.run_id, "KILLED")
    split = client.get_experiment(runs[0].info.experiment_id).name
    experiment = experiment_id(client, f"{split}/machine", settings)
    prepare_experiment(client, experiment, "machine", settings)
    name = str(runs[0].info.run_name) + (f" and {len(runs) - 1} more" if len(runs) > 1 else "")
    made = client.create_run(experiment, run_name=name, tags={**SOURCE, PREFIX + "kind": "machine"})
    machine = str(made.info.run_id)
    try:
        for run_id in run_ids:
            client.set_tag(run_id, MACHINE_RUN, machine)
            client.set_tag(run_id, MACHINE_PLACE, run_place(settings, experiment, machine))
    except BaseException:  # nobody else knows of the run yet
        client.set_terminated(machine, "FAILED")
        raise
    return machine
