"""The valid rows of a split by addresses: their holder reads embeddings, targets and predictions itself.

What travels between processes is this: where the split lies, where its embeddings are kept and where each version's
predictions are. Nothing is opened before it is asked for, and a process opens each thing once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from congruence.kernels.arrays import Array, require_weights
from congruence.kernels.dependence.blocks import RowDependence
from congruence.kernels.distributions import Distribution
from congruence.tasks.contract.loading import contract_digest
from congruence.tasks.data.settings import SampleDesign, Shard
from congruence.tasks.data.split import Split
from congruence.tasks.models.predictions import (
    NotPredictedError,
    PredictionAddress,
    forget,
    object_name,
    read_predictions,
)
from congruence.tasks.models.worker import ServedVersion, predict_shards, refused_in_shards, stored_predictions
from congruence.tasks.store.embeddings import EmbeddingStore, open_store_cached
from congruence.tasks.store.objects import StoreAddress

BLOCK_ROWS = 2**16
FEWEST_ROWS = 2**11  # of a block, below which reading it and adding it up would show
BLOCKS = 16  # of a short split: enough for some workers to end together


@dataclass(frozen=True)
class EvaluatedRows:
    """A split with its embeddings and predictions.

    Attributes:
        split: the split.
        address: where its embeddings are kept.
        served: the versions whose predictions are kept or can be made, by label.
        left_out: rows that are not evaluated though they may have an embedding, and why, by row of the split.
    """

    split: Split = field(repr=False)
    address: StoreAddress
    served: dict[str, ServedVersion] = field(default_factory=dict)
    left_out: Mapping[int, str] = field(default_factory=dict)

    @property
    def store(self) -> EmbeddingStore:
        """The embeddings, opened once per process."""
        return open_store_cached(self.address, self.split)

    @cached_property
    def valid(self) -> Array:
        """Which rows of the split are evaluated, (rows,)."""
        valid = np.asarray(self.store.valid())
        valid[list(self.left_out)] = False
        return valid

    def reasons(self) -> dict[int, str]:
        """Why, for each row that is not evaluated, by row of the split."""
        return {**self.left_out, **self.store.reasons()}

    def embeddings(self) -> Array:
        """Of the valid rows, as the encoder gave them, (v, d)."""
        return np.asarray(self.store.read()[self.valid])

    def embeddings_of(self, chosen: Array) -> Array:
        """Of some of the valid rows, by their numbers among these in increasing order, (k, d), read block by block."""
        ends = np.cumsum(self.sizes)
        parts = [np.empty((0, self.store.dimension), dtype=np.float32)]
        for block, (size, end) in enumerate(zip(self.sizes, ends.tolist(), strict=True)):
            here = chosen[np.searchsorted(chosen, end - size) : np.searchsorted(chosen, end)]
            if len(here):
                parts.append(self.inputs(block)[here - (end - size)])
        return np.concatenate(parts)

    def dependence(self) -> RowDependence | None:
        """Which of the valid rows may depend on each other; None where the split names neither groups nor time."""
        design = self.design()
        return RowDependence.of(int(self.valid.sum()), groups=design.groups, time=design.time)

    def predict(self, version: str, shards: Sequence[Shard]) -> int:
        """Have a version predict the valid rows of ``shards`` into the store, where they are not kept yet."""
        masks = [self._mask(shard) for shard in shards]
        return predict_shards(self._address(version), self.served[version], self.split, shards, masks)

    def refused(self, version: str, shards: Sequence[Shard]) -> dict[int, str]:
        """The valid rows of ``shards`` that a version gives no prediction for, and why, by row of the split."""
        served = self.served[version]
        return refused_in_shards(served, self.split, shards, [self._mask(shard) for shard in shards])

    def all_predictive(self, version: str) -> Distribution:
        """The predictions of a version at the valid rows."""
        return self._predictive(version, self.split.shards)

    def forget(self, version: str) -> None:
        """Remove the kept predictions of a version for these rows, so that the model is asked again."""
        if self.served[version].stored is None:
            forget(self._address(version), self._objects_of(self.split.shards))

    def of_versions(self, versions: Sequence[str]) -> EvaluatedRows:
        """These rows with the predictions of some versions alone: all that a task on them needs."""
        served = {version: self.served[version] for version in versions}
        return EvaluatedRows(self.split, self.address, served, self.left_out)

    @cached_property
    def blocks(self) -> list[list[Shard]]:
        """Neighbouring shards, in groups of up to 65,536 rows with at least one valid one."""
        largest = int(np.clip(sum(shard.rows for shard in self.split.shards) // BLOCKS, FEWEST_ROWS, BLOCK_ROWS))
        groups: list[list[Shard]] = []
        held = 0
        for shard in self.split.shards:
            if not groups or held + shard.rows > largest:
                groups.append([])
                held = 0
            groups[-1].append(shard)
            held += shard.rows
        return [group for group in groups if self.valid[group[0].start : group[-1].stop].any()]

    @cached_property
    def sizes(self) -> list[int]:
        """Valid rows of each block."""
        return [int(self.valid[self._rows_of(block)].sum()) for block in range(len(self.blocks))]

    def inputs(self, block: int) -> Array:
        """Embeddings of the valid rows of a block, (rows, d), as the encoder gave them."""
        rows = self._rows_of(block)
        return np.asarray(self.store.read(rows)[self.valid[rows]])

    def targets(self, block: int | None = None) -> Array:
        """Of the valid rows, or of those of a block, (rows,) or (rows, q)."""
        shards = () if block is None else self.blocks[block]
        return np.asarray(self.split.targets(*shards)[self.valid[self._rows_of(block)]])

    def design(self, block: int | None = None) -> SampleDesign:
        """Groups, times, weights and exposures of the valid rows, or of those of a block, (rows,) each."""
        shards = None if block is None else self.blocks[block]
        return self.split.design(shards).rows(self.valid[self._rows_of(block)])

    def weights(self, block: int) -> Array | None:
        """What each valid row of a block counts in means, (rows,), of mean 1 over all valid rows; None for equal."""
        if self.split.settings.weight is None:
            return None
        weight = self.design(block).weight
        return None if weight is None else weight / self._mean_weight

    @cached_property
    def _mean_weight(self) -> float:
        weight = self.design().weight
        return 1.0 if weight is None else float(np.mean(require_weights(weight, len(weight))))

    def row_dependence(self, block: int) -> RowDependence | None:
        """Which of the valid rows of a block may depend on each other."""
        design = self.design(block)
        return RowDependence.of(self.sizes[block], groups=design.groups, time=design.time)

    def keys(self, block: int | None = None) -> Array:
        """Numbers that stand for the keys of the valid rows, or of those of a block: scores are randomised by them."""
        if block is None:  # texts of all rows at once would take more memory than all that is made of them
            return np.concatenate([self.keys(each) for each in range(len(self.blocks))])
        rows = self._rows_of(block)
        return self.split.key_numbers(rows.start, rows.stop)[self.valid[rows]]

    def predictive(self, block: int, version: str) -> Distribution:
        """What a version predicts for the valid rows of a block."""
        return self._predictive(version, self.blocks[block])

    def __getstate__(self) -> dict[str, object]:
        """Without what was read."""
        return {name: value for name, value in self.__dict__.items() if name not in ("valid", "blocks", "sizes")}

    def _rows_of(self, block: int | None) -> slice:
        """Of the split, or of a block of it: valid ones or not."""
        shards = self.split.shards if block is None else self.blocks[block]
        return slice(shards[0].start, shards[-1].stop)

    def _mask(self, shard: Shard) -> Array:
        return self.valid[shard.start : shard.stop]

    def _address(self, version: str) -> PredictionAddress:
        """Where the predictions of a version are kept: beside the embeddings, by the contract that they are read by."""
        served, store = self.served[version], self.address
        inputs = served.inputs or self.split.settings.model_input_columns
        contract = contract_digest(served.contract, inputs, served.settings.isolation)
        return PredictionAddress.of(store.uri, served.version, contract, store.options)

    def _objects_of(self, shards: Sequence[Shard]) -> list[str]:
        """The names of the predictions for the valid rows of shards."""
        masks = ((shard, self._mask(shard)) for shard in shards)
        return [object_name(self.split, shard, mask) for shard, mask in masks if mask.any()]

    def _predictive(self, version: str, shards: Sequence[Shard]) -> Distribution:
        """Read; what is missing, as after a clean-up, is predicted again."""
        if self.served[version].stored is not None:
            masks = [self._mask(shard) for shard in shards]
            return stored_predictions(self.served[version], self.split, shards, masks)
        address, names = self._address(version), self._objects_of(shards)
        try:
            return read_predictions(address, names)
        except NotPredictedError:
            self.predict(version, shards)
            return read_predictions(address, names)
