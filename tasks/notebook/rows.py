"""Rows in memory as scores and the report read those of a split."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from congruence.kernels.arrays import Array
from congruence.kernels.dependence.blocks import RowDependence
from congruence.kernels.distributions import Distribution
from congruence.kernels.rng import hashed_keys
from congruence.tasks.data.settings import SplitSettings
from congruence.tasks.data.shards import SampleDesign, Shard
from congruence.tasks.encoders.features import FeatureEncoder


class MemorySplit:
    """Labelled rows in memory, as scores read a split (``tasks.scores.points.SplitRows``)."""

    key_column = "row"
    period = ""

    def __init__(
        self, settings: SplitSettings, table: pd.DataFrame, design: SampleDesign, keys: pd.Series[Any] | None = None
    ) -> None:
        self.settings, self.name, self.rows = settings, settings.name, len(table)
        self._table, self._design = table, design
        self.keys = pd.Series(np.arange(len(table)).astype(str), dtype=object) if keys is None else keys

    @cached_property
    def digest(self) -> str:
        """Of all that the rows hold."""
        found = hashlib.sha256(repr([str(name) for name in self._table]).encode())
        for name in self._table:
            column = self._table[name]
            plain = column if column.dtype.kind in "biufM" else column.map(repr).astype(object)
            found.update(pd.util.hash_pandas_object(plain, index=False).to_numpy().tobytes())
        for values in vars(self._design).values():
            found.update(b"-" if values is None else np.ascontiguousarray(values).tobytes())
        return found.hexdigest()

    def frame(self, shard: Shard, columns: Sequence[str] | None = None) -> pd.DataFrame:
        """These columns of some rows."""
        table = self._table.iloc[shard.start : shard.stop]
        return table if columns is None else table[list(columns)]

    def key_values(self, shard: Shard) -> pd.Series[Any]:
        """What some rows are called."""
        return self.keys.iloc[shard.start : shard.stop]

    def design(self) -> SampleDesign:
        """Groups, times and weights of all rows."""
        return self._design


@dataclass(frozen=True)
class MemoryRows:
    """The rows that are evaluated (``tasks.scores.points.ScoredRows``).

    Attributes:
        split: all rows.
        encoder: what makes inputs of their columns.
        inputs: X as it was given, without the targets: what a model is asked with.
        valid: which rows are evaluated.
        notes: what was done to the columns and rows, in sentences.
        predictions: what versions predict at the valid rows, by label.
    """

    split: MemorySplit
    encoder: FeatureEncoder
    inputs: Any = field(repr=False)
    valid: Array = field(repr=False)
    x: Array = field(repr=False)
    y: Array = field(repr=False)
    left_out: Mapping[int, str] = field(default_factory=dict, repr=False)
    notes: tuple[str, ...] = ()
    predictions: Mapping[str, Distribution] = field(default_factory=dict, repr=False)

    def of(self, predictions: Mapping[str, Distribution]) -> MemoryRows:
        """The same rows with these predictions."""
        return replace(self, predictions=predictions)

    def asked(self) -> Any:
        """The inputs of the valid rows, as a model takes them."""
        if self.valid.all():
            return self.inputs
        return self.inputs.loc[self.valid] if isinstance(self.inputs, pd.DataFrame) else self.inputs[self.valid]

    def reasons(self) -> dict[int, str]:
        """Why, for each row that is left out."""
        return dict(self.left_out)

    def embeddings(self) -> Array:
        """Of the valid rows, (v, d)."""
        return self.x

    def embeddings_of(self, chosen: Array) -> Array:
        """Of some of the valid rows, (k, d)."""
        return np.asarray(self.x[chosen])

    def targets(self) -> Array:
        """Of the valid rows, (v,) or (v, q)."""
        return self.y

    def all_predictive(self, version: str) -> Distribution:
        """What a version predicts at the valid rows."""
        return self.predictions[version]

    def keys(self) -> Array:
        """Numbers that stand for what the valid rows are called, by which the pipeline draws for them, too."""
        return hashed_keys(self.split.keys.to_numpy()[self.valid])

    def design(self) -> SampleDesign:
        """Groups, times and weights of the valid rows."""
        return self.split.design().rows(self.valid)

    def dependence(self) -> RowDependence | None:
        """Which of the valid rows may depend on each other."""
        design = self.design()
        return RowDependence.of(int(self.valid.sum()), groups=design.groups, time=design.time)
