"""The inputs of a model's frame as a protocol's kernel reads them: embedded as the labelled split was."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from congruence.kernels.arrays import Array
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.protocol import EXACT, PREPRINT
from congruence.tasks.encoders.base import Encoder, InvalidRow
from congruence.tasks.runtime.errors import ContractError

_BLOCK = 4096


@dataclass(frozen=True)
class Embedding:
    """How inputs become points of the kernel.

    Attributes:
        columns: of the frame, that the encoder reads.
        encoder: loaded.
        dtype: in which embeddings are kept: what is lost there is lost here.
        normalize: to unit norm.
    """

    columns: Sequence[str]
    encoder: Encoder
    dtype: str = "float32"
    normalize: bool = True

    def __call__(self, frame: pd.DataFrame) -> Array:
        """(rows, d) in float64.

        Raises:
            ContractError: an input that cannot be embedded, by row and reason.
        """
        points = np.empty((len(frame), self.encoder.dimension))
        raw = raw_inputs(frame, self.columns, self.encoder.input_kind)
        for start in range(0, len(frame), _BLOCK):
            rows = slice(start, start + _BLOCK)
            points[rows] = self._embedded(raw[rows], start).astype(self.dtype)
        wrong = np.flatnonzero(~np.isfinite(points).all(axis=1))
        if wrong.size:
            raise ContractError(f"row {wrong[0]}: its embedding is not finite; leave such inputs out")
        try:
            return np.asarray((EXACT if self.normalize else PREPRINT).apply(points))
        except InvalidInputError as error:
            raise ContractError(str(error)) from error

    def _embedded(self, raw: Sequence[Any] | Array, start: int) -> Array:
        ready = []
        for row, value in enumerate(raw):
            try:
                ready.append(self.encoder.preprocess(value))
            except InvalidRow as invalid:
                raise ContractError(f"row {start + row}: {invalid.reason}; leave such inputs out") from invalid
        size = self.encoder.batch_size
        parts = [self.encoder.encode(ready[first : first + size]) for first in range(0, len(ready), size)]
        return np.concatenate(parts) if parts else np.empty((0, self.encoder.dimension))


def raw_inputs(frame: pd.DataFrame, columns: Sequence[str], kind: str) -> Sequence[Any] | Array:
    """What the encoder is given for each row: bytes, a text, or a vector of features.

    Raises:
        ContractError: a column that the frame lacks, or numbers that are none.
    """
    missing = [name for name in columns if name not in frame.columns]
    if missing:
        raise ContractError(f"input column {missing[0]!r}, which the correction depends on, is not in the frame")
    if kind != "features":
        return frame[columns[0]].tolist()
    if len(columns) > 1 or pd.api.types.is_numeric_dtype(frame[columns[0]].dtype):
        return np.asarray(frame[list(columns)].to_numpy(dtype=np.float64))
    return frame[columns[0]].tolist()
