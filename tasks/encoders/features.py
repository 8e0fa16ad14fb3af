"""Tabular features as they are, standardised: the encoder of data that needs none."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from congruence.tasks.encoders.base import Encoder, InputKind, text_digest
from congruence.tasks.encoders.errors import InvalidRow
from congruence.tasks.encoders.settings import EncoderSettings


class FeatureEncoder(Encoder):
    """(features - mean) / scale, feature by feature; rows are 1-D arrays of finite numbers."""

    input_kind: InputKind = "features"

    def __init__(self, settings: EncoderSettings) -> None:
        known = (settings.dimension, settings.mean and len(settings.mean), settings.scale and len(settings.scale))
        self.dimension = next(int(size) for size in known if size)
        self._mean = np.asarray(settings.mean or np.zeros(self.dimension), dtype=np.float64)
        self._scale = np.asarray(settings.scale or np.ones(self.dimension), dtype=np.float64)
        self.batch_size = settings.given_batch_size or 4096
        self.preprocessing_digest = text_digest(
            "standardisation", [float(m).hex() for m in self._mean], [float(s).hex() for s in self._scale]
        )
        self.id = f"identity:{self.dimension}"

    def preprocess(self, raw: Any) -> NDArray[np.float64]:
        """The standardised row; InvalidRow where it has another length or a value that is no finite number."""
        try:
            row = np.asarray(raw, dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise InvalidRow(f"the features are not numbers: {error}") from error
        if row.shape != (self.dimension,):
            raise InvalidRow(f"the features have shape {row.shape}; expected ({self.dimension},)")
        wrong = np.flatnonzero(~np.isfinite(row))
        if wrong.size:
            more = f" and {wrong.size - 1} more" if wrong.size > 1 else ""
            raise InvalidRow(f"feature {wrong[0]} is {row[wrong[0]]}{more}")
        return np.asarray((row - self._mean) / self._scale)

    def encode(self, batch: list[Any]) -> NDArray[np.float32]:
        """The rows as one array; a number too large for float32 becomes infinite."""
        with np.errstate(over="ignore"):
            return np.asarray(batch, dtype=np.float32).reshape(len(batch), self.dimension)

    def encode_matrix(self, rows: NDArray[np.float64]) -> NDArray[np.float32]:
        """Many raw rows at once, to the same bytes as one by one; not finite where `preprocess` refuses the row."""
        if rows.shape[1] != self.dimension:
            return np.full((len(rows), self.dimension), np.nan, dtype=np.float32)
        with np.errstate(over="ignore", invalid="ignore"):
            return np.asarray((rows - self._mean) / self._scale, dtype=np.float32)
