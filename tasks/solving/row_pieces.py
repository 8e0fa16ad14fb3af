"""Some rows of x under their numbers in the whole: what a task sees of x where no worker holds a copy of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from congruence.kernels.gram.tiles import TilePoints


class RowPieces:
    """Pieces of an array of n rows, cut by slices of the whole as the array itself would be.

    Args:
        places: which rows each piece holds.
        pieces: one array for each.
        shape: of the whole.
        dtype: of its numbers.
    """

    def __init__(self, places: Sequence[slice], pieces: Sequence[Any], shape: tuple[int, ...], dtype: Any) -> None:
        self._held = list(zip(places, pieces, strict=True))
        self.shape, self.dtype = shape, dtype

    def __getitem__(self, rows: slice) -> Any:
        for place, piece in self._held:
            if place.start <= rows.start and rows.stop <= place.stop:
                return piece[rows.start - place.start : rows.stop - place.start]
        raise IndexError(f"rows {rows.start} to {rows.stop} were not placed beside this task")


class PiecePoints:
    """Points of which some rows are here, for what cuts tiles from ``TilePoints``."""

    def __init__(
        self, places: Sequence[slice], points: Sequence[TilePoints], shape: tuple[int, int], dtype: Any
    ) -> None:
        self.x = RowPieces(places, [each.x for each in points], shape, np.dtype(dtype))
        self._of_norms = places, points

    @property
    def norms(self) -> RowPieces:
        """|x_i|^2."""
        places, points = self._of_norms
        return RowPieces(places, [each.norms for each in points], self.x.shape[:1], self.x.dtype)
