"""What of the settings depends on this process, written out for processes elsewhere."""

from __future__ import annotations

from congruence.flows.environment import tracking_uri
from congruence.tasks.settings.evaluation import EvaluationSettings


def for_workers(settings: EvaluationSettings) -> EvaluationSettings:
    """The settings with what depends on this process's folder and environment written out."""
    tracking = settings.tracking.model_copy(update={"uri": settings.tracking.uri or tracking_uri(settings.home_folder)})
    return settings.model_copy(update={"home": settings.home_folder, "tracking": tracking})
