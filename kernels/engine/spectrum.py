"""The leading spectrum of a Gram matrix on landmarks, and smoothing in its leading directions.

Kernel ridge smoothing needs few directions of K ~ U diag(e) U': those with e_j of the order of n lambda or more. Null
draws by the thousand and a search over ridges are cheap in them. As an *answer* this would be an approximation; as a
statistic that is computed alike on observed and simulated targets it is as good as any other.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from congruence.kernels.arrays import Array
from congruence.kernels.engine.landmarks import LEADING, choose_landmarks, landmark_directions, typical_eigenvalue
from congruence.kernels.engine.system import (
    TILE_ROWS,
    System,
    TileMaker,
    TilePoints,
    kept_directions,
    squares_at,
    tile_slices,
)
from congruence.kernels.kernel_functions import Kernel
from congruence.kernels.threads import map_on_threads


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
