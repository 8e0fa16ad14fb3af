"""What an evaluation works on and in: its splits with their kept indexes, its store, and its MLflow; no server."""

from __future__ import annotations

from pathlib import Path

from congruence.tasks.data.settings import SplitSettings
from congruence.tasks.data.split import Split, open_split
from congruence.tasks.embeddings.standardisation import with_statistics
from congruence.tasks.runtime.files import tracking_uri
from congruence.tasks.settings.evaluation import EvaluationSettings


def open_planned(split: SplitSettings, settings: EvaluationSettings) -> Split:
    """The split, with its plan kept in the home folder: a later run only looks at the state of the files."""
    return open_split(split, plans_folder(settings))


def require_splits(settings: EvaluationSettings) -> None:
    """Open every split once, for what files and columns alone can be wrong in: before MLflow is loaded, or a server.

    Raises:
        CongruenceError: a split that is not there, cannot be read, or lacks a column.
    """
    for split in settings.splits:
        open_planned(split, settings)


def plans_folder(settings: EvaluationSettings) -> Path:
    """Where the indexes of splits are kept; workers that see the folder share the work on it."""
    return settings.home_folder / "plans"


def store_uri(settings: EvaluationSettings) -> str:
    """Where embeddings, predictions and measurements are kept."""
    return settings.store.uri or str(settings.home_folder / "embeddings")


def local_folders(settings: EvaluationSettings) -> list[str]:
    """The home folder, and the store's where that is on this machine: what a run has in use."""
    uri = store_uri(settings)
    return [str(settings.home_folder), *([] if "://" in uri else [uri])]


def with_fitted_encoder(settings: EvaluationSettings) -> EvaluationSettings:
    """The settings with the statistics of tabular features, of ``statistics_split`` where they are not given.

    Of stored predictions they are those of the rows of all versions. To be asked once for a whole evaluation: settings
    that name fewer splits might be fitted to another one.
    """
    if not settings.encoder.needs_statistics:
        return settings
    stored = any(split.stored for split in settings.splits)
    splits = settings.splits if stored else [settings.statistics_split]
    opened = (open_planned(split, settings) for split in splits)
    return settings.model_copy(update={"encoder": with_statistics(settings.encoder, *opened)})


def for_workers(settings: EvaluationSettings) -> EvaluationSettings:
    """The settings with what depends on this process's folder and environment written out: home and MLflow's server."""
    tracking = settings.tracking.model_copy(update={"uri": settings.tracking.uri or tracking_uri(settings.home_folder)})
    return settings.model_copy(update={"home": settings.home_folder, "tracking": tracking})


def use_tracking(settings: EvaluationSettings) -> None:
    """Point this process's MLflow at the servers of ``settings``."""
    from congruence.tasks.mlflow.connection import use_tracking as point_at  # MLflow takes a second to load

    point_at(for_workers(settings).tracking)
