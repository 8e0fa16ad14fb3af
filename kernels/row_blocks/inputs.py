"""What a pass over a split in blocks knows of its inputs, and what every block makes of its own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from congruence.kernels.arrays import Array
from congruence.kernels.block_sums import BlockSums
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.gram.landmarks import candidate_rows
from congruence.kernels.gram.rounding import CHECKED_BYTES, CHECKED_POINTS, LONGEST
from congruence.kernels.gram.thin_products import padded_columns
from congruence.kernels.gram.tiles import TileMaker, TilePoints, tile_slices
from congruence.kernels.kernel_functions import CENTER_ROWS, Kernel
from congruence.kernels.protocol.protocol import EvaluationProtocol
from congruence.kernels.row_blocks.rows import BlockRows, Pass, RowBlocks
from congruence.kernels.solvers.base import residual_rows
from congruence.kernels.streams import stream

TILE_ROWS = 1024
SUMMED_ROWS = 4096
"""Of a tile where sums of hundreds of codes are added, which take as long for a few rows as for many. Not where what is
added is solved for: the more rows of single precision in one product, the larger its rounding, and the certificate."""
RESIDUAL_ROWS = 1024


@dataclass(frozen=True)
class RowSample:
    """Rows of x that every block gives away once, by their positions in the split: constant in number.

    Attributes:
        candidates: among which landmarks are chosen.
        center: evenly spaced, of which ``Kernel.center`` is read.
        residual: on which the residual of the answer is read.
        checked: at which products of single precision are compared with those of double.
    """

    candidates: Array = field(repr=False)
    center: Array = field(repr=False)
    residual: Array = field(repr=False)
    checked: Array = field(repr=False)

    @classmethod
    def draw(cls, n: int, landmarks: int, seed: int) -> RowSample:
        """The positions for n rows."""
        checked = max(LONGEST, min(CHECKED_POINTS, CHECKED_BYTES // (8 * n))) - LONGEST
        return cls(
            candidate_rows(n, min(landmarks, n), stream(seed, "landmarks")),
            np.arange(n)[:: max(1, n // CENTER_ROWS)] if n <= CENTER_ROWS else np.arange(0, n, n // CENTER_ROWS),
            residual_rows(n, RESIDUAL_ROWS, seed),
            np.sort(stream(0, "checked points", n, n).choice(n, min(checked, n), replace=False)),
        )

    @property
    def positions(self) -> Array:
        """All of them, sorted."""
        return np.unique(np.concatenate([self.candidates, self.center, self.residual, self.checked]))


def protocol_inputs(protocol: EvaluationProtocol, inputs: Array, first: int, dtype: Any) -> Array:
    """x (n, d) of a block that begins at row ``first``: checked, in ``dtype``, as the protocol wants them.

    Raises:
        InvalidInputError: a row that is not finite, or all zeros where directions are asked for; named by its number.
    """
    x = np.asarray(inputs, dtype=dtype)
    bad = ~np.isfinite(x).all(axis=1)
    if bad.any():
        raise InvalidInputError(
            f"embeddings: row {first + int(np.argmax(bad))} is not finite ({int(bad.sum())} of the {len(x)} rows from "
            f"row {first} on are not); mark such rows invalid, or embed them again"
        )
    if protocol.normalize and len(x):
        zero = ~x.any(axis=1)
        if zero.any():
            raise InvalidInputError(
                f"embeddings: row {first + int(np.argmax(zero))} is all zeros and has no direction; protocol "
                f"'{protocol.name}' needs unit norm. Mark the row invalid, or use protocol 'preprint'"
            )
        return np.asarray(protocol.apply(x))
    return x


@dataclass(frozen=True)
class BlockInputs:
    """What every block needs to know of the others' inputs.

    Attributes:
        kernel: k_X.
        protocol: brings embeddings to the kernel's inputs.
        dtype: of the arithmetic inside a tile.
        center: subtracted from all inputs; None for none.
        landmarks: (m, d), centred.
        residual: inputs on which the residual is read, (s, d), centred.
        n: rows of the split.
        regularization: lambda.
    """

    kernel: Kernel
    protocol: EvaluationProtocol
    dtype: Any
    center: Array | None = field(repr=False)
    landmarks: Array = field(repr=False)
    residual: Array = field(repr=False)
    n: int
    regularization: float

    @property
    def shift(self) -> float:
        """n lambda."""
        return self.n * self.regularization

    def points(self, inputs: Array, first: int) -> tuple[TilePoints, Array]:
        """The centred inputs of a block that begins at row ``first``, and the inputs before they were."""
        x = protocol_inputs(self.protocol, inputs, first, self.dtype)
        return TilePoints(x if self.center is None else x - self.center.astype(x.dtype)), x

    def columns(self, points: TilePoints, tile_rows: int = TILE_ROWS) -> Iterator[tuple[slice, Array]]:
        """Rows, and C there, tile by tile; a tile's memory is used again."""
        others = TilePoints(self.landmarks)
        maker = TileMaker(self.kernel, int(self.landmarks.shape[1]))
        everyone = slice(0, len(self.landmarks))
        for rows in tile_slices(slice(0, len(points.x)), tile_rows):
            yield rows, maker.tile(points, rows, others, everyone)

    def with_directions(self, basis: Array, filters: Array) -> BlockDirections:
        """The same once the leading directions are known."""
        own = {each.name: getattr(self, each.name) for each in fields(self)}
        return BlockDirections(**own, basis=basis, filters=filters)


@dataclass(frozen=True)
class BlockDirections(BlockInputs):
    """The inputs' side with the leading directions of K.

    Attributes:
        basis: U = C basis, (m, k).
        filters: e / (e + n lambda), (k,).
    """

    basis: Array = field(repr=False)
    filters: Array = field(repr=False)

    def tiles(self, points: TilePoints, tile_rows: int = TILE_ROWS) -> Iterator[tuple[slice, Array, Array]]:
        """Rows, C there and U there, tile by tile; a tile's memory is used again."""
        basis = padded_columns(self.basis, points.x)
        for rows, columns in self.columns(points, tile_rows):
            yield rows, columns, (columns @ basis)[:, : self.basis.shape[1]].astype(np.float32, copy=False)


def inputs_pass(block: BlockRows[RowBlocks], system: BlockInputs) -> Pass:
    """The pass over the inputs alone: C'C, C'[1, y], and what is known of k(x, x)."""
    sums, targets, first = BlockSums(), block.targets(), block.first
    points, x = system.points(block.inputs(), first)
    for rows, columns in system.columns(points):
        # float64 throughout: the small matrix built from C'C has the squared condition number of C.
        exact = columns.astype(np.float64)
        sums.add("gram", exact.T @ exact)
        y = targets[rows].reshape(len(exact), -1)
        sums.add("targets", exact.T @ np.column_stack([np.ones(len(exact)), y]))
    if len(x):
        diagonal = np.asarray(system.kernel.diagonal(points.x), dtype=np.float64)
        sums.add("diagonal", float(np.sum(diagonal)))
        sums.raise_to("diagonal", float(np.max(diagonal)))
        # The longest rows of the split are among the longest of every block.
        norms = np.asarray(points.norms, dtype=np.float64)
        half = min(LONGEST // 2, len(x))
        longest = np.union1d(np.argpartition(norms, -half)[-half:], np.argpartition(diagonal, -half)[-half:])
        sums.keep("longest", np.column_stack([first + longest, norms[longest], diagonal[longest], x[longest]]))
    return {"": sums}
