"""Dask's own report of what its workers did, as a page beside the system metrics of an evaluation."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from congruence.tasks.mlflow.connection import connect
from congruence.tasks.mlflow.settings import TrackingSettings
from congruence.tasks.runtime.errors import SettingsError
from congruence.tasks.runtime.masking import mask_text

if TYPE_CHECKING:
    from distributed import Client

FILE = "dask-report.html"


def require_drawable(settings: TrackingSettings) -> None:
    """Refuse to begin where a report is asked for and Bokeh, by which Dask draws it, is not installed.

    Raises:
        SettingsError: names the package.
    """
    if settings.performance_report and find_spec("bokeh") is None:
        raise SettingsError(
            "tracking.performance_report: Dask draws it with Bokeh, which is not installed; install it here and where "
            "the scheduler runs (pip install -c constraints.txt bokeh), or leave the key out"
        )


@contextmanager
def performance_report(
    client: Client, run_id: str | None, settings: TrackingSettings, announce: Callable[[str], None]
) -> Iterator[None]:
    """Log ``dask-report.html`` of what happens inside to a run, where ``settings`` ask for it.

    It tells of all work of the cluster, that of other evaluations on it too. A report that cannot be made costs a line,
    and nothing of the evaluation.

    Args:
        client: of the cluster.
        run_id: the run of the system metrics; without one there is no report.
        settings: where it is.
        announce: takes a line for the person who waits.
    """
    if not settings.performance_report or run_id is None:
        yield
        return
    import distributed  # not at the start: a run is refused without it

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / FILE
        # With its scripts in it: the page is read where no network is.
        report = distributed.performance_report(filename=str(file), mode="inline")
        with _told(announce), client.as_current():
            report.__enter__()
        try:
            yield
        finally:
            with _told(announce), client.as_current():
                report.__exit__(None, None, None)
                connect(settings).log_artifact(run_id, str(file))


@contextmanager
def _told(announce: Callable[[str], None]) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        said = mask_text(f"{type(error).__name__}: {error}").splitlines()[0][:200]
        announce(f"Dask's performance report was not made ({said}); is Bokeh installed where the scheduler runs?")
