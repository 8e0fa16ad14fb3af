"""Where the stages leave their work for each other."""

from __future__ import annotations

from congruence.tasks.data.split import Split
from congruence.tasks.embeddings.worker import open_store
from congruence.tasks.encoders.loading import asking_encoder
from congruence.tasks.models.evaluated_rows import EvaluatedRows
from congruence.tasks.settings.evaluation import EvaluationSettings


def rows_of(settings: EvaluationSettings, split: Split) -> EvaluatedRows:
    """The addresses of a split's embeddings under these settings; their store is made where there is none."""
    encoder = asking_encoder(settings.encoder)
    return EvaluatedRows(split, open_store(store_uri(settings), settings.store, split, encoder).address)


def store_uri(settings: EvaluationSettings) -> str:
    """Where embeddings, predictions and measurements are kept."""
    return settings.store.uri or str(settings.home_folder / "embeddings")


def local_stores(settings: EvaluationSettings) -> list[str]:
    """The store's folder, where it is one on this machine."""
    uri = store_uri(settings)
    return [] if "://" in uri else [uri]
