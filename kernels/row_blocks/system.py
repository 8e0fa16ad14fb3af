"""The system of a split in blocks: its landmarks, and the factor and spectrum made of C'C.

Landmarks are chosen among a uniform sample of rows, as ``gram.landmarks`` does; the system of the split is then m x m.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import scipy.linalg

from congruence.kernels.arrays import Array
from congruence.kernels.block_sums import BlockSums
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.gram.columns import thinning_step
from congruence.kernels.gram.landmarks import LEADING, candidate_rows, rpcholesky
from congruence.kernels.gram.operator import RegularizedGram
from congruence.kernels.gram.rounding import LONGEST
from congruence.kernels.gram.spectrum import MIN_FILTER, landmark_directions, typical_eigenvalue
from congruence.kernels.protocol.protocol import EvaluationProtocol
from congruence.kernels.row_blocks.inputs import BlockDirections, BlockInputs, RowSample
from congruence.kernels.solvers.low_rank import inner_factor
from congruence.kernels.streams import stream


@dataclass(frozen=True)
class BlockSystem:
    """The prepared system of a split in blocks: what ``PreparedCongruence`` is to a split in memory.

    Attributes:
        inputs: what blocks know.
        factor: lower Cholesky factor of mu W + C'C, (m, m).
        gram: C'C, (m, m).
        spread: U'U, (k, k), the identity up to rounding.
        kernel_maximum: of k(x, x).
        mean_diagonal: of k(x, x).
        checked: inputs at which products of single precision are compared with those of double, (s, d), uncentred.
        checked_roots: sqrt(k(x, x)) there.
        complete: whether there are no others.
        eigenvalues, coordinates: of the whole spectrum and its C basis, for a ridge of the targets' own.
        targets: C'[1, y].
    """

    inputs: BlockDirections
    factor: Array = field(repr=False)
    gram: Array = field(repr=False)
    kernel_maximum: float
    mean_diagonal: float
    checked: Array = field(repr=False)
    checked_roots: Array = field(repr=False)
    complete: bool
    eigenvalues: Array = field(repr=False)
    coordinates: Array = field(repr=False)
    targets: Array = field(repr=False)

    @property
    def spread(self) -> Array:
        """U'U."""
        return np.asarray(self.inputs.basis.T @ self.gram @ self.inputs.basis)

    def weights(self, projections: Array) -> Array:
        """(mu W + C'C)^-1 C'B, (m, c), from C'B: the smoothed right-hand sides are C times it."""
        return np.asarray(scipy.linalg.cho_solve((self.factor, True), projections, check_finite=False))


def chosen_inputs(
    protocol: EvaluationProtocol, sample: RowSample, rows: Array, n: int, landmarks: int, seed: int
) -> tuple[BlockInputs, Array]:
    """What blocks know for the pass over C'C, and the inputs (s, d) of the sample's checked rows.

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
    factor, _ = inner_factor(corner, gram, inputs.shift, lambda: f"k(x, x) up to {maximum:.3g}")
    step = thinning_step(len(corner), LEADING)
    largest = typical_eigenvalue(inputs.kernel, inputs.landmarks, n)
    few = np.s_[::step, ::step]
    basis, eigenvalues = landmark_directions(corner[few].copy(), gram[few].copy(), inputs.dtype, largest)
    filters = eigenvalues / (eigenvalues + inputs.shift)
    keep = max(1, int(np.count_nonzero(filters >= MIN_FILTER)))
    coordinates = np.zeros((len(corner), len(eigenvalues)))
    coordinates[::step] = basis
    longest = _longest(sums.rows("longest"))
    checked_inputs = np.concatenate([longest[:, 3:].astype(checked.dtype), checked])
    positions = np.concatenate([longest[:, 0].astype(np.intp), checked_positions])
    _, first_of = np.unique(positions, return_index=True)
    points = checked_inputs[first_of]
    moved = points if inputs.center is None else points - inputs.center.astype(points.dtype)
    return BlockSystem(
        inputs.with_directions(coordinates[:, :keep], filters[:keep].astype(np.float32)),
        factor,
        gram,
        maximum,
        sums.added["diagonal"] / n,
        points,
        np.sqrt(np.asarray(inputs.kernel.diagonal(moved), dtype=np.float64)),
        len(points) == n,
        eigenvalues,
        coordinates,
        sums.added["targets"],
    )


def _longest(rows: Array) -> Array:
    """Of the longest rows of all blocks (position, |x|^2, k(x, x), x), the longest of the split, half by each."""
    half = min(LONGEST // 2, len(rows))
    by_norm, by_diagonal = (np.argpartition(rows[:, column], -half)[-half:] for column in (1, 2))
    return np.asarray(rows[np.union1d(by_norm, by_diagonal)])
