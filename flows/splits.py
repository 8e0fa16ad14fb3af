"""Opening what an evaluation file names: its splits, with their plans kept, and its encoder, fitted where need be."""

from __future__ import annotations

from pathlib import Path

from congruence.tasks.embeddings.standardisation import with_statistics
from congruence.tasks.models.evaluated_rows import EvaluatedRows
from congruence.tasks.settings.digest import contract_digest
from congruence.tasks.settings.evaluation import EvaluationSettings
from congruence.tasks.sources import Split, SplitSettings, open_split


def open_planned(split: SplitSettings, settings: EvaluationSettings) -> Split:
    """The split, with its plan kept in the home folder: a later run only looks at the state of the files."""
    return open_split(split, settings.home_folder / "plans", settings.home_folder / "unpacked")


def with_fitted_encoder(settings: EvaluationSettings) -> EvaluationSettings:
    """The settings with the statistics of tabular features fitted to ``statistics_split`` where they are not given.

    To be asked once for a whole evaluation: settings that name fewer splits might be fitted to another one.
    """
    if not settings.encoder.needs_statistics:
        return settings
    split = open_planned(settings.statistics_split, settings)
    encoder = with_statistics(settings.encoder, split, settings.home_folder / "statistics")
    return settings.model_copy(update={"encoder": encoder})


def rows_of(settings: EvaluationSettings, split: Split) -> EvaluatedRows:
    """The addresses of a split's embeddings and predictions under these settings."""
    return EvaluatedRows(
        split,
        settings.encoder,
        store_uri(settings),
        settings.store,
        settings.predictions,
        _predictions_folder(settings, split),
    )


def store_uri(settings: EvaluationSettings) -> str:
    """Where embeddings and measurements are kept."""
    return settings.store.uri or str(settings.home_folder / "embeddings")


def _predictions_folder(settings: EvaluationSettings, split: Split) -> Path:
    """Where predictions are kept: they are of what the models were given and of how their output was read."""
    contract = contract_digest(settings.predictions, split.settings)
    return settings.home_folder / "predictions" / f"{split.digest[:16]}-{contract}"
