"""Landmarks, the leading spectrum of a Gram matrix on them, and smoothing in its leading directions.

RPCholesky (Chen et al. 2024, "Randomly pivoted Cholesky") draws landmarks by the residual diagonal, so that clusters,
outliers and duplicates are each covered once. It runs on a uniform subset of ten candidates a landmark, at least 5,000:
its cost does not grow with n.

Kernel ridge smoothing needs few directions of K ~ U diag(e) U': those with e_j of the order of n lambda or more. Null
draws by the thousand and a search over ridges are cheap in them. As an *answer* this would be an approximation; as a
statistic that is computed alike on observed and simulated targets it is as good as any other.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import scipy.linalg

from congruence.kernels.arrays import Array
from congruence.kernels.engine.system import (
    TILE_ROWS,
    System,
    TileMaker,
    TilePoints,
    kept_directions,
    squares_at,
    tile_slices,
)
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.kernel_functions import Kernel
from congruence.kernels.rng import stream
from congruence.kernels.threads import map_on_threads

CANDIDATES_PER_LANDMARK = 10
MIN_CANDIDATES = 5000
LEADING = 400  # landmarks that show the directions a smoother with a noise shift keeps
ROUNDING = {8: 1e-10, 4: 1e-6}  # by the bytes of a number: eigenvalues below this share of the largest are rounding


def candidate_rows(n: int, count: int, rng: np.random.Generator) -> Array:
    """Returns sorted numbers of the rows among which ``count`` landmarks are chosen, uniform over n."""
    return np.sort(rng.choice(n, min(n, max(MIN_CANDIDATES, CANDIDATES_PER_LANDMARK * count)), replace=False))


def choose_landmarks(x: Array, kernel: Kernel, count: int, seed: int = 0) -> Array:
    """Returns sorted row numbers of at most ``count`` landmarks of x (n, d); fewer where others would add nothing.

    Raises:
        InvalidInputError: ``count`` below 1.
    """
    if count < 1:
        raise InvalidInputError(f"landmarks: {count} were asked for; give at least 1")
    rng, count = stream(seed, "landmarks"), min(count, len(x))
    if count == len(x):
        return np.arange(len(x))
    candidates = candidate_rows(len(x), count, rng)
    return np.sort(candidates[rpcholesky(x[candidates], kernel, count, rng)])


def rpcholesky(x: Array, kernel: Kernel, count: int, rng: np.random.Generator) -> Array:
    """Returns rows of x that are pivots: drawn in blocks, each thinned by a pivoted Cholesky of its corner.

    What is left of a point is judged by its own k(x, x): beside one long input all others would look like rounding.
    """
    center = kernel.center(x)
    points = x if center is None else x - center
    residual = np.asarray(kernel.diagonal(points), dtype=np.float64)
    rounding = 1e-10 if x.dtype.itemsize > 4 else 1e-6  # above that of the entries
    own = residual.copy()
    factor = np.empty((len(x), count), dtype=x.dtype)
    pivots = np.zeros(0, dtype=np.int64)
    block = max(1, count // 10)
    while len(pivots) < count:
        live = np.flatnonzero(residual > rounding * own)
        size = min(block, count - len(pivots), len(live))
        if size == 0:
            break
        drawn = rng.choice(live, size, replace=False, p=residual[live] / residual[live].sum())
        columns = np.asarray(kernel(points, points[drawn]), dtype=np.float64)
        known = factor[:, : len(pivots)]
        columns -= known @ known[drawn].T
        kept, corner = _independent(columns[drawn], own[drawn], 10 * rounding)
        if len(kept) == 0:
            residual[drawn] = 0.0
            continue
        drawn, columns = drawn[kept], columns[:, kept]
        columns = scipy.linalg.solve_triangular(corner, columns.T, lower=True, overwrite_b=True).T
        factor[:, len(pivots) : len(pivots) + len(drawn)] = columns
        pivots = np.concatenate([pivots, drawn])
        residual = np.maximum(residual - np.einsum("ij,ij->i", columns, columns), 0.0)
        residual[drawn] = 0.0
        residual[residual < 100 * rounding * own] = 0.0  # duplicates of a pivot, up to rounding
    return pivots


def _independent(corner: Array, own: Array, tolerance: float) -> tuple[Array, Array]:
    """Returns rows of a residual corner that are not spanned by the others of the same block, and its factor there.

    ``own``: k(x, x) of the rows, to which ``tolerance`` is relative.
    """
    roots = np.sqrt(own)
    factor, pivots, rank, _ = scipy.linalg.lapack.dpstrf(corner / np.outer(roots, roots), tol=tolerance, lower=1)
    kept = np.asarray(pivots[:rank] - 1)
    return kept, np.tril(factor[:rank, :rank]) * roots[kept][:, None]


def typical_eigenvalue(kernel: Kernel, landmarks: Array, n: int) -> float:
    """Returns n times the median of k(x, x) over landmarks, which stand for the n rows."""
    return n * float(np.median(kernel.diagonal(landmarks)))


def positive_diagonal(gram: Array) -> Array:
    """Returns k(x, x) of a Gram matrix, with the largest one where it is 0: what rounding in a row is relative to."""
    diagonal = np.diagonal(gram)
    return np.where(diagonal > 0.0, diagonal, np.max(diagonal, initial=0.0) or 1.0)


def directions_of_sums(kernel: Kernel, landmarks: Array, gram: Array, n: int) -> tuple[Array, Array]:
    """Returns ``landmark_directions`` of the columns C, (n, m), of which only C'C is known.

    ``landmarks``: (m, d), centred.
    """
    corner = np.asarray(kernel(landmarks), dtype=np.float64)
    return landmark_directions(corner, gram, landmarks.dtype, typical_eigenvalue(kernel, landmarks, n))


def landmark_directions(corner: Array, gram: Array, dtype: Any, largest: float) -> tuple[Array, Array]:
    """Returns a basis (m, k) with U = C basis, and the eigenvalues (k,) of K ~ U diag(e) U', from W and C'C.

    Args:
        corner: W, (m, m).
        gram: C'C, (m, m).
        dtype: of the arithmetic that made them.
        largest: an eigenvalue that is surely no rounding, see ``typical_eigenvalue``.
    """
    # Single precision leaves the corner with eigenvalues of either sign around zero: drop them before they are divided.
    # Scaled to a unit diagonal, so that beside one long input all others are not taken for rounding.
    roots = np.sqrt(positive_diagonal(corner))
    scale, axes = scipy.linalg.eigh(corner / np.outer(roots, roots))
    rounding = ROUNDING[np.dtype(dtype).itemsize]
    usable = scale > rounding * scale[-1]
    whitening = axes[:, usable] / roots[:, None] / np.sqrt(scale[usable])
    eigenvalues, rotation = scipy.linalg.eigh(whitening.T @ gram @ whitening)
    order = np.flatnonzero(eigenvalues > rounding * min(eigenvalues[-1], largest))[::-1]
    return whitening @ (rotation[:, order] / np.sqrt(eigenvalues[order])), eigenvalues[order]


@dataclass(frozen=True)
class Spectrum:
    """K ~ U diag(eigenvalues) U' with U = k(x, landmarks) basis; exact where every row is a landmark.

    Attributes:
        kernel: of the inputs.
        center: subtracted from inputs before the kernel sees them; None for nothing.
        landmarks: (m, d), centred.
        basis: (m, k).
        eigenvalues: e, decreasing, (k,).
        shift: n lambda.
    """

    kernel: Kernel
    center: Array | None = field(repr=False)
    landmarks: Array = field(repr=False)
    basis: Array = field(repr=False)
    eigenvalues: Array = field(repr=False)
    shift: float

    @classmethod
    def of(cls, system: System) -> Spectrum:
        """Returns that of a prepared system."""
        inputs = system.inputs
        leading = np.ascontiguousarray(inputs.landmarks[inputs.leading])
        return cls(inputs.kernel, inputs.center, leading, system.basis, system.eigenvalues, inputs.shift)

    @property
    def filters(self) -> Array:
        """e / (e + n lambda): how much of each direction the conditional mean embedding keeps, (k,)."""
        return np.asarray(self.eigenvalues / (self.eigenvalues + self.shift))

    @property
    def kept(self) -> int:
        """Leading directions that the embedding keeps at least 1 % of."""
        return kept_directions(self.filters)

    def columns(self, x: Array) -> Array:
        """Returns k(x, landmarks) at inputs (r, d), (r, m)."""
        points = x if self.center is None else x - self.center.astype(x.dtype)
        maker, others = TileMaker(self.kernel, int(x.shape[1])), TilePoints(self.landmarks.astype(x.dtype))
        return np.asarray(maker.tile(TilePoints(points), slice(0, len(x)), others, others.all))

    def vectors(self, x: Array, keep: int | None = None) -> Array:
        """Returns U at inputs (r, d), by Nystrom's extension beyond the rows it is of, (r, keep)."""
        basis = np.ascontiguousarray(self.basis[:, : self.kept if keep is None else keep])
        some = tile_slices(slice(0, len(x)), TILE_ROWS)
        if not some:
            return np.zeros((0, basis.shape[1]))
        return np.concatenate(map_on_threads(lambda rows: self.columns(x[rows]) @ basis.astype(x.dtype), some))

    def smoother(self, x: Array, query: Array | None = None, weights: Array | None = None) -> SpectralSmoother:
        """Returns the smoother from the rows x to themselves, or to query points, in the directions it keeps."""
        vectors = self.vectors(x).astype(np.float32)
        at_query = vectors if query is None else self.vectors(query).astype(np.float32)
        return SpectralSmoother(vectors, self.filters[: self.kept].astype(np.float32), at_query, weights)


def input_spectrum(x: Array, kernel: Kernel, regularization: float, *, seed: int = 0) -> Spectrum:
    """Returns the leading spectrum of K for inputs x (n, d), on at most ``LEADING`` landmarks."""
    n, center = len(x), kernel.center(x)
    moved = x if center is None else x - center.astype(x.dtype)
    chosen = np.ascontiguousarray(moved[choose_landmarks(moved, kernel, LEADING, seed)])
    nothing = np.zeros((len(chosen), 0))
    known = Spectrum(kernel, None, chosen, nothing, np.zeros(0), n * regularization)

    def gram(rows: slice) -> Array:
        columns = known.columns(moved[rows]).astype(np.float64)
        return np.asarray(columns.T @ columns)

    total = sum(map_on_threads(gram, tile_slices(slice(0, n), 4 * TILE_ROWS)))
    corner = np.asarray(kernel(chosen), dtype=np.float64)
    basis, eigenvalues = landmark_directions(corner, np.asarray(total), x.dtype, typical_eigenvalue(kernel, moved, n))
    return replace(known, center=center, basis=basis, eigenvalues=eigenvalues)


@dataclass(frozen=True)
class SpectralSmoother:
    """k(x)' A^-1 B in the leading directions: two thin products per block of right-hand sides, in single precision.

    ``weights`` (m,), of mean 1, are what each point counts in means over them; None where they count equally.
    """

    analysis: Array = field(repr=False)
    filters: Array = field(repr=False)
    synthesis: Array = field(repr=False)
    weights: Array | None = field(default=None, repr=False)

    def leading(self, count: int) -> SpectralSmoother:
        """Returns the smoother in the first ``count`` directions alone."""
        if count >= len(self.filters):
            return self
        analysis = np.ascontiguousarray(self.analysis[:, :count])
        shared = self.synthesis is self.analysis
        synthesis = analysis if shared else np.ascontiguousarray(self.synthesis[:, :count])
        return SpectralSmoother(analysis, self.filters[:count], synthesis, self.weights)

    def coefficients(self, rhs: Array) -> Array:
        """Returns what the smoother keeps of right-hand sides (n, c) along each direction, (k, c)."""
        return np.asarray(self.filters[:, None] * (self.analysis.T @ rhs))

    def __call__(self, rhs: Array) -> Array:
        """Returns (m, c) for right-hand sides (n, c)."""
        return np.asarray(self.synthesis @ self.coefficients(rhs))

    def at(self, vectors: Array) -> SpectralSmoother:
        """Returns the smoother at other points, from U there, (m, k): the moment is that of the analysis."""
        varied = replace(self, synthesis=vectors)
        vars(varied)["moment"] = self.moment
        return varied

    @cached_property
    def moment(self) -> Array:
        """U'U of the reference rows, (k, k): the identity up to the rounding of single precision."""
        return np.asarray(self.analysis.T @ self.analysis)

    @cached_property
    def sum_of_squares(self) -> Array:
        """``squared_weights`` of variances of 1, (m,): the same for every version of a split."""
        return self._squared_weights(self.moment)

    def squared_weights(self, variance: Array) -> Array:
        """Returns sum_i L_ji^2 v_i of this smoother L, (m,), for v (n,): 2 (n + m) k^2 operations, no (m, n) array."""
        return self._squared_weights(self.analysis.T @ (self.analysis * variance.astype(self.analysis.dtype)[:, None]))

    def _squared_weights(self, weighted: Array) -> Array:
        return squares_at(self.synthesis, self.filters[:, None] * weighted * self.filters)
