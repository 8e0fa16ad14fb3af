"""Which MLflow a command speaks to: the settings' server, else the environment's, else the one in the home folder."""

from __future__ import annotations

from congruence.flows.cli.environment import tracking_uri
from congruence.tasks.settings.evaluation import EvaluationSettings


def for_workers(settings: EvaluationSettings) -> EvaluationSettings:
    """The settings with what depends on this process's folder and environment written out."""
    tracking = settings.tracking.model_copy(update={"uri": settings.tracking.uri or tracking_uri(settings.home_folder)})
    return settings.model_copy(update={"home": settings.home_folder, "tracking": tracking})


def use_tracking(settings: EvaluationSettings) -> None:
    """Point this process's MLflow at the servers of ``settings``."""
    from congruence.tasks.mlflow.connection import use_tracking as point_at  # MLflow takes a second to load

    point_at(for_workers(settings).tracking)
