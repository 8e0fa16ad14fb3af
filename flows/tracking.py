"""Which MLflow a command speaks to: the settings' server, else the environment's, else the one in the home folder."""

from __future__ import annotations

from congruence.flows.environment import tracking_uri
from congruence.tasks.settings.evaluation import EvaluationSettings


def use_tracking(settings: EvaluationSettings) -> None:
    """Point this process's MLflow at the servers of ``settings``."""
    import mlflow  # not at the start: it takes a second

    mlflow.set_tracking_uri(settings.tracking.uri or tracking_uri(settings.home_folder))
    if settings.tracking.registry_uri:
        mlflow.set_registry_uri(settings.tracking.registry_uri)
