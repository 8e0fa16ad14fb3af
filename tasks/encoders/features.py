"""Tabular features as they are, standardised: the encoder of data that needs none."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from congruence.tasks.encoders.base import Encoder, InputKind, text_digest
from congruence.tasks.encoders.errors import InvalidRow
from congruence.tasks.encoders.settings import EncoderSettings


class FeatureEncoder(Encoder):
    """(features - mean) / scale, feature by feature; rows are 1-D arrays of numbers, see ``EncoderSettings.missing``.

    Attributes:
        features: how many there are; ``dimension`` is twice that with indicators of the missing ones.
    """

    input_kind: InputKind = "features"

    def __init__(self, settings: EncoderSettings) -> None:
        known = (settings.dimension, settings.mean and len(settings.mean), settings.scale and len(settings.scale))
        self.features = next(int(size) for size in known if size)
        self.takes_missing = settings.takes_missing
        self._indicates = settings.missing == "indicator"
        self.dimension = self.features * (2 if self._indicates else 1)
        self._mean = np.asarray(settings.mean or np.zeros(self.features), dtype=np.float64)
        self._scale = np.asarray(settings.scale or np.ones(self.features), dtype=np.float64)
        self.batch_size = settings.given_batch_size or 4096
        self.preprocessing_digest = text_digest(
            "standardisation",
            [float(m).hex() for m in self._mean],
            [float(s).hex() for s in self._scale],
            *([f"missing {settings.missing}"] if settings.takes_missing else []),
        )
        self.id = f"identity:{self.dimension}"

    def preprocess(self, raw: Any) -> NDArray[np.float64]:
        """The standardised row; InvalidRow where it has another length or a value that cannot be used."""
        try:
            row = np.asarray(raw, dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise InvalidRow(f"the features are not numbers: {error}") from error
        if row.shape != (self.features,):
            raise InvalidRow(f"the features have shape {row.shape}; expected ({self.features},)")
        wrong = np.flatnonzero(np.isinf(row) if self.takes_missing else ~np.isfinite(row))
        if wrong.size:
            more = f" and {wrong.size - 1} more" if wrong.size > 1 else ""
            raise InvalidRow(f"feature {wrong[0]} is {row[wrong[0]]}{more}")
        return self._standardised(row)

    def encode(self, batch: list[Any]) -> NDArray[np.float32]:
        """The rows as one array; a number too large for float32 becomes infinite."""
        with np.errstate(over="ignore"):
            return np.asarray(batch, dtype=np.float32).reshape(len(batch), self.dimension)

    def encode_matrix(self, rows: NDArray[np.float64]) -> NDArray[np.float32]:
        """Many raw rows at once, to the same bytes as one by one; not finite where `preprocess` refuses the row."""
        if rows.shape[1] != self.features:
            return np.full((len(rows), self.dimension), np.nan, dtype=np.float32)
        with np.errstate(over="ignore", invalid="ignore"):
            return np.asarray(self._standardised(rows), dtype=np.float32)

    def _standardised(self, rows: NDArray[np.float64]) -> NDArray[np.float64]:
        """Of (..., features); the mean, which is 0 here, stands in for what is missing."""
        values = np.asarray((rows - self._mean) / self._scale)
        if not self.takes_missing:
            return values
        absent = np.isnan(rows)
        values[absent] = 0.0
        return np.concatenate([values, absent.astype(np.float64)], axis=-1) if self._indicates else values
