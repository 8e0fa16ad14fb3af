"""CPU, memory, disk, network and GPU use of this machine, written to the runs of evaluations that are being made."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import mlflow
from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor

from congruence.tasks.tracking.settings import TrackingSettings

INTERVAL = 10.0


_LOGGER = "mlflow.system_metrics.system_metrics_monitor"


class _Monitor(SystemMetricsMonitor):
    """MLflow's monitor, which gives up when the server does not answer once: this one goes on at its return."""

    def monitor(self) -> None:
        while not self._shutdown_event.is_set():
            super().monitor()  # type: ignore[no-untyped-call]
            self._shutdown_event.wait(self.sampling_interval)


@contextmanager
def system_metrics(run_ids: Sequence[str], settings: TrackingSettings, *, interval: float = INTERVAL) -> Iterator[None]:
    """Log ``system/...`` metrics to each of the (open) runs every ``interval`` seconds while the block runs.

    A run that is taken up again goes on where its metrics stopped. See ``open_run`` for runs opened before the work.
    """
    # It says what it cannot send with the server's whole address, and the steps of the evaluation say it too.
    logging.getLogger(_LOGGER).setLevel(logging.CRITICAL)
    with ExitStack() as stack:
        for run_id in run_ids:
            monitor = _Monitor(  # type: ignore[no-untyped-call]
                run_id,
                sampling_interval=interval,
                resume_logging=True,
                tracking_uri=settings.uri or mlflow.get_tracking_uri(),
            )
            monitor.start()  # type: ignore[no-untyped-call]
            stack.callback(monitor.finish)
        yield
