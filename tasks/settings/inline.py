"""What settings may not say that came with a run's parameters, from anyone who reaches the scheduler's page."""

from __future__ import annotations

from typing import Any

from congruence.tasks.runtime.errors import SettingsError
from congruence.tasks.settings.evaluation import EvaluationSettings
from congruence.tasks.settings.home import default_home

_SAFE_CLUSTERS = ("threads", "local", "cuda")


def require_inert(settings: EvaluationSettings) -> None:
    """Refuse inline settings that would choose what code runs on the worker.

    A custom encoder is code. So is a registry, whose models are loaded, and a home folder other than the worker's own,
    which may hold one; and a cluster that somebody else names, whose scheduler, class or image the worker would trust.
    They belong into an evaluation file on the worker, which only those can write who may log in there.

    Raises:
        SettingsError: names every such key.
    """
    tracking = settings.tracking
    found: dict[str, Any] = {
        "encoder.kind: custom": settings.encoder.kind == "custom",
        f"cluster.kind: {settings.cluster.kind}": settings.cluster.kind not in _SAFE_CLUSTERS,
        "tracking.uri": tracking.uri,
        "tracking.registry_uri": tracking.registry_uri,
        "home": settings.home_folder != default_home(),
    }
    named = [key for key, given in found.items() if given]
    if named:
        raise SettingsError(
            f"settings: {', '.join(named)} cannot be given with a run, since it chooses what runs on the worker; write "
            "it into an evaluation file on the worker, and give the run file: its path"
        )
