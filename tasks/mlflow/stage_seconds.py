"""How long each stage of an evaluation took, as metrics ``seconds_<stage>`` of the run of its system metrics."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from mlflow.entities import Metric

from congruence.tasks.mlflow.connection import connect
from congruence.tasks.mlflow.finished import SECONDS
from congruence.tasks.mlflow.settings import TrackingSettings
from congruence.tasks.runtime.json_logging import log_fields

logger = logging.getLogger(__name__)

Timed = Callable[[str], AbstractContextManager[None]]


@contextmanager
def stage_seconds(run_id: str | None, settings: TrackingSettings) -> Iterator[Timed]:
    """Gives what times a stage: ``with timed("embed"): ...``; entered again, its seconds are added.

    They are logged to the run at the end, if there is one, those of a stage that failed too. Log lines inside a stage
    name it.
    """
    seconds: dict[str, float] = {}

    @contextmanager
    def timed(stage: str) -> Iterator[None]:
        started = time.monotonic()
        try:
            with log_fields(stage=stage):
                yield
        finally:
            seconds[stage] = seconds.get(stage, 0.0) + time.monotonic() - started

    try:
        yield timed
    finally:
        if run_id is not None and seconds:
            now = int(time.time() * 1000)
            metrics = [Metric(SECONDS + stage, value, now, 0) for stage, value in seconds.items()]
            try:
                connect(settings).log_batch(run_id, metrics)
            except Exception:  # MLflow is away: the stages of the evaluation say so, and its end waits for it
                logger.warning("the seconds of the stages were not logged: MLflow did not take them")
