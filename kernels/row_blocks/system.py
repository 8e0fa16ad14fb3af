"""The inputs' side of a split in blocks: sampled rows, landmarks, C'C, and the factor and spectrum made of them.

Landmarks are chosen among a uniform sample of rows, as ``gram.landmarks`` does; the system of the split is then m x m.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import scipy.linalg

from congruence.kernels.arrays import Array
from congruence.kernels.errors import ConvergenceError, InvalidInputError
from congruence.kernels.gram.columns import LandmarkColumns
from congruence.kernels.gram.landmarks import LEADING, candidate_rows, rpcholesky
from congruence.kernels.gram.operator import RegularizedGram
from congruence.kernels.gram.rounding import CHECKED_BYTES, CHECKED_POINTS, LONGEST
from congruence.kernels.gram.spectrum import MIN_FILTER, landmark_spectrum
from congruence.kernels.gram.thin_products import padded_columns, transposed_product
from congruence.kernels.gram.tiles import TileMaker, TilePoints, tile_slices
from congruence.kernels.kernel_functions import CENTER_ROWS, Kernel
from congruence.kernels.protocol.protocol import EvaluationProtocol
from congruence.kernels.row_blocks.sums import BlockSums, chosen_in
from congruence.kernels.solvers.base import residual_rows
from congruence.kernels.solvers.low_rank import SCALE_FEATURES, inner_factor
from congruence.kernels.streams import stream

TILE_ROWS = 1024
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


def sampled_rows(x: Array, first: int, positions: Array) -> BlockSums:
    """The rows of a block that ``positions`` name."""
    sums = BlockSums()
    sums.keep("inputs", x[chosen_in(positions, first, len(x))])
    return sums


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
        basis: U = C basis, (m, k), once it is known.
        filters: e / (e + n lambda), (k,).
        weights: of landmarks that a pass multiplies C with, see the passes.
    """

    kernel: Kernel
    protocol: EvaluationProtocol
    dtype: Any
    center: Array | None = field(repr=False)
    landmarks: Array = field(repr=False)
    residual: Array = field(repr=False)
    n: int
    regularization: float
    basis: Array | None = field(default=None, repr=False)
    filters: Array | None = field(default=None, repr=False)

    @property
    def shift(self) -> float:
        """n lambda."""
        return self.n * self.regularization

    def points(self, inputs: Array, first: int) -> tuple[TilePoints, Array]:
        """The centred inputs of a block that begins at row ``first``, and the inputs before they were."""
        x = protocol_inputs(self.protocol, inputs, first, self.dtype)
        return TilePoints(x if self.center is None else x - self.center.astype(x.dtype)), x

    def tiles(self, points: TilePoints) -> Iterator[tuple[slice, Array, Array | None]]:
        """Rows, C there and U there, tile by tile; a tile's memory is used again."""
        others = TilePoints(self.landmarks)
        maker = TileMaker(self.kernel, int(self.landmarks.shape[1]))
        everyone = slice(0, len(self.landmarks))
        for rows in tile_slices(slice(0, len(points.x)), TILE_ROWS):
            columns = maker.tile(points, rows, others, everyone)
            yield rows, columns, None if self.basis is None else self._vectors(columns)

    def _vectors(self, columns: Array) -> Array:
        assert self.basis is not None
        return np.asarray(product(columns, self.basis), dtype=np.float32)


def product(block: Array, weights: Array) -> Array:
    """block weights, in the precision of the block."""
    return np.asarray((block @ padded_columns(weights, block))[:, : weights.shape[1]], dtype=np.float64)


def projected(block: Array, v: Array) -> Array:
    """block' v, in the precision of the block."""
    return np.asarray(transposed_product(block, padded_columns(v, block))[:, : v.shape[1]], dtype=np.float64)


def input_sums(system: BlockInputs, inputs: Array, targets: Array, first: int) -> BlockSums:
    """C'C, C'[1, y], and what is known of k(x, x), over the rows of a block that begins at row ``first``."""
    sums = BlockSums()
    points, x = system.points(inputs, first)
    for rows, columns, _ in system.tiles(points):
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
    return sums


@dataclass(frozen=True)
class BlockSystem:
    """The prepared system of a split in blocks: what ``PreparedCongruence`` is to a split in memory.

    Attributes:
        inputs: what blocks are told.
        factor: lower Cholesky factor of mu W + C'C, (m, m).
        gram: C'C, (m, m).
        spread: U'U, (k, k), the identity up to rounding.
        kernel_maximum: of k(x, x).
        mean_diagonal: of k(x, x).
        checked: inputs at which products of single precision are compared with those of double, (s, d), uncentred.
        checked_roots: sqrt(k(x, x)) there.
        complete: whether there are no others.
        rounding: ``Kernel.rounding`` of all inputs.
        eigenvalues, coordinates: of the whole spectrum and its C basis, for a ridge of the targets' own.
        targets: C'[1, y].
    """

    inputs: BlockInputs
    factor: Array = field(repr=False)
    gram: Array = field(repr=False)
    kernel_maximum: float
    mean_diagonal: float
    checked: Array = field(repr=False)
    checked_roots: Array = field(repr=False)
    complete: bool
    rounding: float
    eigenvalues: Array = field(repr=False)
    coordinates: Array = field(repr=False)
    targets: Array = field(repr=False)

    @property
    def spread(self) -> Array:
        """U'U."""
        assert self.inputs.basis is not None
        return np.asarray(self.inputs.basis.T @ self.gram @ self.inputs.basis)

    def weights(self, projections: Array) -> Array:
        """(mu W + C'C)^-1 C'B, (m, c), from C'B: the smoothed right-hand sides are C times it."""
        return np.asarray(scipy.linalg.cho_solve((self.factor, True), projections, check_finite=False))


def chosen_inputs(
    protocol: EvaluationProtocol, sample: RowSample, rows: Array, n: int, landmarks: int, seed: int
) -> tuple[BlockInputs, Array]:
    """What blocks are told for the pass over C'C, and the inputs (s, d) of the sample's checked rows.

    Args:
        protocol: kernel and lambda.
        sample: positions of ``rows``.
        rows: inputs of ``sample.positions``, as ``protocol_inputs`` gives them.
        n: rows of the split.
        landmarks: how many, at most.
        seed: of their choice.
    """
    kernel = protocol.input_kernel

    def of(positions: Array) -> Array:
        return np.asarray(rows[np.searchsorted(sample.positions, positions)])

    with np.errstate(over="ignore"):
        center = kernel.center(of(sample.center))
    moved = rows if center is None else rows - center.astype(rows.dtype)
    candidates = moved[np.searchsorted(sample.positions, sample.candidates)]
    rng = stream(seed, "landmarks")
    count = min(landmarks, n)
    if count == n:
        chosen = np.arange(n)
    else:
        candidate_rows(n, count, rng)  # the stream goes on where the choice of candidates left it
        few = RegularizedGram(candidates, kernel, protocol.regularization)
        chosen = np.sort(rpcholesky(few, np.arange(len(candidates)), count, rng))
    inputs = BlockInputs(
        kernel,
        protocol,
        np.dtype(rows.dtype),
        center,
        np.ascontiguousarray(candidates[chosen]),
        moved[np.searchsorted(sample.positions, sample.residual)],
        n,
        protocol.regularization,
    )
    return inputs, of(sample.checked)


def solved_system(inputs: BlockInputs, sums: BlockSums, checked: Array, checked_positions: Array) -> BlockSystem:
    """The factor and the leading spectrum from C'C.

    Raises:
        InvalidInputError: k(x, x) is too large for the arithmetic.
        ConvergenceError: the kernel is not positive definite, or lambda is below rounding.
    """
    n = inputs.n
    maximum = sums.largest["diagonal"]
    limit = float(np.finfo(inputs.dtype).max) / n
    if not maximum <= limit:
        raise InvalidInputError(
            f"embeddings: k(x, x) reaches {maximum:.3g} under {type(inputs.kernel).__name__}, and {inputs.dtype} sums "
            f"{n:,} values of at most {limit:.3g}; scale the features (each to a standard deviation of 1, or every row "
            "to norm 1)"
        )
    corner = np.asarray(inputs.kernel(inputs.landmarks), dtype=np.float64)
    gram = sums.added["gram"]
    factor, _ = inner_factor(corner, gram, inputs.shift)
    if factor is None:
        raise ConvergenceError(
            f"the Nystrom approximation on {len(corner)} landmarks is not positive definite (n lambda = "
            f"{inputs.shift:.3g}, k(x, x) up to {maximum:.3g}): the input kernel is not positive definite, or lambda "
            f"is below rounding; {SCALE_FEATURES}, use a larger regularization, or float64 inputs"
        )
    few = RegularizedGram(inputs.landmarks, inputs.kernel, inputs.regularization)
    whole = LandmarkColumns(np.arange(len(corner)), UnreadColumns(), corner, gram).thinned(LEADING)  # type: ignore[arg-type]
    spectrum = landmark_spectrum(ScaledLandmarks(few, n), whole)  # type: ignore[arg-type]
    filters = spectrum.eigenvalues / (spectrum.eigenvalues + inputs.shift)
    keep = max(1, int(np.count_nonzero(filters >= MIN_FILTER)))
    coordinates = np.zeros((len(corner), len(spectrum.eigenvalues)))
    coordinates[whole.indices] = spectrum.basis
    longest = _longest(sums.rows("longest"))
    checked_inputs = np.concatenate([longest[:, 3:].astype(checked.dtype), checked])
    positions = np.concatenate([longest[:, 0].astype(np.intp), checked_positions])
    _, first_of = np.unique(positions, return_index=True)
    points = checked_inputs[first_of]
    moved = points if inputs.center is None else points - inputs.center.astype(points.dtype)
    return BlockSystem(
        replace(inputs, basis=coordinates[:, :keep], filters=filters[:keep].astype(np.float32)),
        factor,
        gram,
        maximum,
        sums.added["diagonal"] / n,
        points,
        np.sqrt(np.asarray(inputs.kernel.diagonal(moved), dtype=np.float64)),
        len(points) == n,
        inputs.kernel.rounding(moved),
        spectrum.eigenvalues,
        coordinates,
        sums.added["targets"],
    )


def _longest(rows: Array) -> Array:
    """Of the longest rows of all blocks (position, |x|^2, k(x, x), x), the longest of the split, half by each."""
    half = min(LONGEST // 2, len(rows))
    by_norm, by_diagonal = (np.argpartition(rows[:, column], -half)[-half:] for column in (1, 2))
    return np.asarray(rows[np.union1d(by_norm, by_diagonal)])


class UnreadColumns:
    """Columns whose sums are known: nothing else is asked of them."""

    def thinned(self, step: int) -> UnreadColumns:  # noqa: ARG002
        """See GramColumns."""
        return self


@dataclass(frozen=True)
class ScaledLandmarks:
    """The landmarks standing for n rows: their k(x, x) is that of a typical one."""

    landmarks: RegularizedGram
    n: int

    @property
    def dtype(self) -> Any:
        """Of the arithmetic."""
        return self.landmarks.dtype

    def gram_diagonal(self) -> Array:
        """k(x, x) of the landmarks."""
        return self.landmarks.gram_diagonal()
