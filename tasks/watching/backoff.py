"""When a failed evaluation is tried again."""

from __future__ import annotations

from congruence.tasks.mlflow.version_tags import Failure
from congruence.tasks.watching.settings import WatchSettings


def is_due(failure: Failure | None, settings: WatchSettings, *, now: float) -> bool:
    """Whether an evaluation may be tried at ``now`` (seconds since 1970): waits double from failure to failure."""
    if failure is None:
        return True
    doublings = min(failure.attempts - 1, 60)
    return now >= failure.time + min(settings.retry_after * 2.0**doublings, settings.retry_at_most)
