"""The splits of an evaluation, with their kept indexes, and its MLflow; no server."""

from __future__ import annotations

from functools import reduce
from operator import add

from congruence.kernels.errors import InvalidInputError
from congruence.tasks.data.settings import SplitSettings
from congruence.tasks.data.split import Split, open_split
from congruence.tasks.encoders.features import statistics
from congruence.tasks.runtime.errors import SplitError
from congruence.tasks.runtime.files import tracking_uri
from congruence.tasks.settings.evaluation import EvaluationSettings
from congruence.tasks.settings.sections import EncoderSettings


def open_planned(split: SplitSettings, settings: EvaluationSettings) -> Split:
    """The split, with its plan kept in the home folder: a later run only looks at the state of the files."""
    return open_split(split, settings.plans_folder)


def require_splits(settings: EvaluationSettings) -> None:
    """Open every split once, for what files and columns alone can be wrong in: before MLflow is loaded, or a server.

    Raises:
        CongruenceError: a split that is not there, cannot be read, or lacks a column.
    """
    for split in settings.splits:
        open_planned(split, settings)


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


def with_statistics(settings: EncoderSettings, *splits: Split) -> EncoderSettings:
    """The settings with mean and scale of the valid rows of ``splits`` where they are not given.

    They enter the encoder's preprocessing digest, so that embeddings by other statistics never meet these.

    Raises:
        SplitError: no row of the splits can be used.
    """
    if not settings.needs_statistics:
        return settings
    moments = [each.facts.present if settings.takes_missing else each.facts.complete for each in splits]
    known = [each for each in moments if each is not None]
    found = reduce(add, known) if known else None
    try:
        mean, scale = statistics(found, settings.dimension)
    except InvalidInputError as error:
        raise SplitError(f"split {splits[0].name!r}: {error}") from error
    return settings.model_copy(update={"mean": mean, "scale": scale})


def require_features(split: Split, dimension: int, fitted_on: str) -> None:
    """Raise SplitError where the rows of ``split`` have another number of features than ``dimension``.

    ``fitted_on`` names the split that statistics are fitted to where they are not given.
    """
    found = split.facts.present
    size = dimension if found is None else len(found.count)
    if size != dimension:
        raise SplitError(
            f"split {split.name!r}: its rows have {size} features, but the encoder standardises {dimension} (those of "
            f"encoder.mean, scale and dimension, else of split {fitted_on!r}); name the same columns as input in every "
            "split"
        )


def for_workers(settings: EvaluationSettings) -> EvaluationSettings:
    """The settings with what depends on this process's folder and environment written out: home and MLflow's server."""
    tracking = settings.tracking.model_copy(update={"uri": settings.tracking.uri or tracking_uri(settings.home_folder)})
    return settings.model_copy(update={"home": settings.home_folder, "tracking": tracking})


def use_tracking(settings: EvaluationSettings) -> None:
    """Point this process's MLflow at the servers of ``settings``."""
    from congruence.tasks.mlflow.connection import use_tracking as point_at  # MLflow takes a second to load

    point_at(for_workers(settings).tracking)
