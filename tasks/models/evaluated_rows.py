"""The valid rows of a split by addresses: whoever holds them reads embeddings, targets and predictions for himself.

What travels between processes is this: where the split lies, where its embeddings are kept and where each version's
predictions are. Nothing is opened before it is asked for, and a process opens each thing once.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import numpy as np

from congruence.kernels.arrays import Array
from congruence.kernels.distributions import Distribution
from congruence.tasks.contract import PredictiveModel, load_predictive_model
from congruence.tasks.contract.settings import PredictionSettings
from congruence.tasks.embeddings.store import EmbeddingStore
from congruence.tasks.embeddings.worker import open_store, warm_encoder
from congruence.tasks.encoders import EncoderSettings
from congruence.tasks.models.predictions import _path as shard_path
from congruence.tasks.models.predictions import _predict_shard as predict_shard
from congruence.tasks.models.predictions import concatenate
from congruence.tasks.models.registry import ModelVersion
from congruence.tasks.settings.evaluation import StoreSettings
from congruence.tasks.sources import Shard, Split


@dataclass(frozen=True)
class EvaluatedRows:
    """A split with its embeddings and predictions.

    Attributes:
        split: the split.
        encoder: whose embeddings.
        store_uri: where they are kept.
        store_settings: how.
        contract: how the models' output is read, None for what they say themselves.
        predictions: the folder of all versions' predictions on this split.
    """

    split: Split = field(repr=False)
    encoder: EncoderSettings
    store_uri: str
    store_settings: StoreSettings
    contract: PredictionSettings | None
    predictions: Path

    @property
    def store(self) -> EmbeddingStore:
        """The embeddings, opened once per process."""
        encoder = warm_encoder(self.encoder.model_dump_json(exclude_unset=True))
        return open_store(self.store_uri, self.store_settings, self.split, encoder)

    def valid(self) -> Array:
        """Which rows of the split are evaluated, (rows,)."""
        return self.store.valid()

    def embeddings(self) -> Array:
        """Of the valid rows, as the encoder gave them, (v, d)."""
        store = self.store
        return np.asarray(store.read()[store.valid()])

    def targets(self) -> Array:
        """Of the valid rows, (v,) or (v, q)."""
        return np.concatenate([self.split.targets(shard) for shard in self.split.shards])[self.valid()]

    def predict(self, version: ModelVersion, shards: list[Shard]) -> int:
        """Predict the valid rows of ``shards`` by one version and keep it; their number."""
        valid_rows, store = 0, self.store
        for shard in shards:
            mask = store.valid(slice(shard.start, shard.stop))
            if mask.any():
                self._part(version, shard, mask)
                valid_rows += int(mask.sum())
        return valid_rows

    def predictive(self, version: ModelVersion) -> Distribution:
        """The predictions of one version at the valid rows; what is missing or damaged is predicted now."""
        store = self.store
        masks = [(shard, store.valid(slice(shard.start, shard.stop))) for shard in self.split.shards]
        return concatenate([self._part(version, shard, mask) for shard, mask in masks if mask.any()])

    def forget(self, version: ModelVersion) -> None:
        """Remove the kept predictions of a version, so that the model is asked again."""
        shutil.rmtree(self._folder(version), ignore_errors=True)

    def model(self, version: ModelVersion) -> PredictiveModel:
        """The version, loaded once per process."""
        return warm_model(version.uri, None if self.contract is None else self.contract.model_dump_json())

    def _part(self, version: ModelVersion, shard: Shard, mask: Array) -> Distribution:
        folder = self._folder(version)
        folder.mkdir(parents=True, exist_ok=True)
        return predict_shard(self.model(version), self.split, shard, mask, shard_path(folder, shard, mask))

    def _folder(self, version: ModelVersion) -> Path:
        return self.predictions / (version.model_id or version.label).replace("/", "-")


@lru_cache(maxsize=4)
def warm_model(uri: str, contract: str | None) -> PredictiveModel:
    """The version at ``uri``, loaded once per process."""
    settings = None if contract is None else PredictionSettings.model_validate_json(contract)
    return load_predictive_model(uri, settings)
