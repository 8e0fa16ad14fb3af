"""What an evaluation took of the machine, where that is asked for: MLflow's system metrics and Dask's own report."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import distributed
from mlflow.environment_variables import MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING
from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor

from congruence.tasks.mlflow.connection import connect, tracking_address
from congruence.tasks.mlflow.settings import TrackingSettings
from congruence.tasks.runtime.masking import mask_text

REPORT_FILE = "dask-report.html"
log = logging.getLogger(__name__)


@contextmanager
def system_metrics(run_id: str, settings: TrackingSettings) -> Iterator[None]:
    """MLflow logs this machine's use to a run (``system/...``) while the block and the run last.

    It does where MLflow's own switch asks for it: ``mlflow.enable_system_metrics_logging()``, or the variable
    MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING.
    """
    if not MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING.get():  # type: ignore[no-untyped-call]
        yield
        return
    where = tracking_address(settings)
    monitor = SystemMetricsMonitor(run_id, resume_logging=True, tracking_uri=where)  # type: ignore[no-untyped-call]
    monitor.start()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        monitor.finish()  # type: ignore[no-untyped-call]


@contextmanager
def performance_report(client: distributed.Client, run_id: str, settings: TrackingSettings) -> Iterator[None]:
    """Dask's report of all work of the cluster inside becomes an artifact of a run, where the settings ask for it.

    A report that cannot be made costs a warning, and nothing of the evaluation.
    """
    if not settings.performance_report:
        yield
        return
    with tempfile.TemporaryDirectory() as folder, client.as_current():
        file = Path(folder) / REPORT_FILE
        report = distributed.performance_report(filename=str(file), mode="inline")  # read where no network is
        report.__enter__()
        try:
            yield
        finally:
            try:
                report.__exit__(None, None, None)
                connect(settings).log_artifact(run_id, str(file))
            except Exception as error:
                log.warning("Dask's performance report was not made (%s); is Bokeh installed where the scheduler runs?",
                            mask_text(str(error)))  # fmt: skip
