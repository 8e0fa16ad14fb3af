"""The leading spectrum of a Gram matrix from landmarks: K ~ U diag(e) U', and what follows from it without a solve.

Kernel ridge smoothing needs few directions: those with e_j of the order of n lambda or more. Null draws by the
thousand and a search over ridges are cheap in them. As an *answer* to A Z = B this would be an approximation; as a
statistic that is computed alike on observed and simulated targets it is as good as any other.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import scipy.linalg

from congruence.kernels.arrays import Array, array_namespace
from congruence.kernels.gram.columns import GramColumns, LandmarkColumns, positive_diagonal
from congruence.kernels.gram.landmarks import LEADING, Choice, choose_landmarks
from congruence.kernels.gram.operator import RegularizedGram
from congruence.kernels.gram.thin_products import squares_at
from congruence.kernels.kernel_functions import Kernel

ROUNDING = {8: 1e-10, 4: 1e-6}  # by the bytes of a number: eigenvalues below this share of the largest are rounding
MIN_FILTER = 1e-2


@dataclass(frozen=True)
class GramSpectrum:
    """K ~ U diag(eigenvalues) U' with U = C basis, C = K[:, landmarks]; exact where every point is a landmark.

    Attributes:
        operator: whose Gram matrix K this is.
        indices: row numbers of the m landmarks.
        columns: C.
        basis: (m, k).
        eigenvalues: e, decreasing, (k,).
    """

    operator: RegularizedGram
    indices: Array = field(repr=False)
    columns: GramColumns = field(repr=False)
    basis: Array = field(repr=False)
    eigenvalues: Array = field(repr=False)

    @property
    def filters(self) -> Array:
        """e / (e + n lambda): how much of each direction the conditional mean embedding keeps, (k,)."""
        return np.asarray(self.eigenvalues / (self.eigenvalues + self.operator.shift))

    def coefficients(self, v: Array) -> Array:
        """U'v, (k, r)."""
        return np.asarray(self.basis.T @ self.columns.transposed_matmul(v))

    def vectors(self, keep: int) -> Array:
        """The first ``keep`` columns of U, (n, keep)."""
        vectors: Array = self.columns.matmul(np.ascontiguousarray(self.basis[:, :keep]))
        return vectors

    def vectors_at(self, query: Any, keep: int) -> Array:
        """Nystrom's extension of them to query points, (m, keep)."""
        return self.operator.restricted(self.indices).cross(query, self.basis[:, :keep])


def gram_spectrum(
    operator: RegularizedGram, landmarks: int = LEADING, *, choice: Choice = "rpcholesky", seed: int = 0
) -> GramSpectrum:
    """The spectrum of K on at most ``landmarks`` landmarks: n m (d + m) operations."""
    indices = choose_landmarks(operator, landmarks, choice, seed)
    return landmark_spectrum(operator, LandmarkColumns.of(operator.columns(indices), indices))


def landmark_spectrum(operator: RegularizedGram, landmarks: LandmarkColumns) -> GramSpectrum:
    """The spectrum of K on landmarks whose columns there are: m^3 operations."""
    basis, eigenvalues = landmark_directions(landmarks.corner, landmarks.gram, operator.dtype, _typical_scale(operator))
    return GramSpectrum(operator, landmarks.indices, landmarks.columns, basis, eigenvalues)


def directions_of_sums(kernel: Kernel, landmarks: Array, gram: Array, n: int) -> tuple[Array, Array]:
    """``landmark_directions`` where of the columns C, (n, m), only C'C is known; ``landmarks``: (m, d), centred."""
    corner = np.asarray(kernel(landmarks), dtype=np.float64)
    return landmark_directions(corner, gram, landmarks.dtype, typical_eigenvalue(kernel, landmarks, n))


def typical_eigenvalue(kernel: Kernel, landmarks: Array, n: int) -> float:
    """n times the median of k(x, x) over landmarks, which stand for the n rows."""
    return n * float(np.median(kernel.diagonal(landmarks)))


def landmark_directions(corner: Array, gram: Array, dtype: Any, largest: float) -> tuple[Array, Array]:
    """(m, k) and (k,): a basis with U = C basis, and the eigenvalues of K ~ U diag(e) U', from W and C'C.

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
    basis = whitening @ (rotation[:, order] / np.sqrt(eigenvalues[order]))
    return basis, eigenvalues[order]


def _typical_scale(operator: RegularizedGram) -> float:
    """n times the median of k(x, x): the largest eigenvalue if all inputs were one typical one."""
    return operator.n * float(np.median(operator.gram_diagonal()))


@dataclass(frozen=True)
class SpectralSmoother:
    """k(x)' A^-1 B in the leading directions: two thin products per block of right-hand sides, in single precision.

    ``weights`` (m,), of mean 1, are what each point counts in means over them; None where they count equally.
    """

    analysis: Any = field(repr=False)
    filters: Any = field(repr=False)
    synthesis: Any = field(repr=False)
    weights: Array | None = field(default=None, repr=False)

    def leading(self, count: int) -> SpectralSmoother:
        """The smoother in the first ``count`` directions alone."""
        if count >= len(self.filters):
            return self
        xp = array_namespace(self.analysis)
        analysis = xp.ascontiguousarray(self.analysis[:, :count])
        shared = self.synthesis is self.analysis
        synthesis = analysis if shared else xp.ascontiguousarray(self.synthesis[:, :count])
        return SpectralSmoother(analysis, self.filters[:count], synthesis, self.weights)

    def coefficients(self, rhs: Any) -> Any:
        """What the smoother keeps of right-hand sides (n, c) along each direction, (k, c)."""
        return self.filters[:, None] * (self.analysis.T @ rhs)

    def __call__(self, rhs: Any) -> Any:
        """(m, c) for right-hand sides (n, c)."""
        return self.synthesis @ self.coefficients(rhs)

    def at(self, vectors: Array) -> SpectralSmoother:
        """The smoother at other points, from U there, (m, k): the moment is that of the analysis, which is the same."""
        varied = replace(self, synthesis=vectors)
        vars(varied)["moment"] = self.moment
        return varied

    @cached_property
    def moment(self) -> Any:
        """U'U of the reference rows, (k, k): the identity up to the rounding of single precision."""
        return self.analysis.T @ self.analysis

    @cached_property
    def sum_of_squares(self) -> Array:
        """``squared_weights`` of variances of 1, (m,): the same for every version of a split."""
        return self._squared_weights(self.moment)

    def squared_weights(self, variance: Array) -> Array:
        """sum_i L_ji^2 v_i of this smoother L, (m,), for v (n,): 2 (n + m) k^2 operations and no (m, n) array."""
        return self._squared_weights(self.analysis.T @ (self.analysis * variance.astype(self.analysis.dtype)[:, None]))

    def _squared_weights(self, weighted: Any) -> Array:
        return squares_at(self.synthesis, self.filters[:, None] * weighted * self.filters)


def spectral_smoother(spectrum: GramSpectrum, query: Any | None = None) -> SpectralSmoother:
    """The smoother at query points, by default the reference points, in the directions it keeps at least 1 % of."""
    filters = spectrum.filters
    keep = max(1, int(np.count_nonzero(filters >= MIN_FILTER)))
    vectors = spectrum.vectors(keep).astype(np.float32)
    at_query = vectors if query is None else spectrum.vectors_at(query, keep).astype(np.float32)
    return SpectralSmoother(vectors, filters[:keep].astype(np.float32), at_query)


def residual_variance(spectrum: GramSpectrum, y: Array) -> float:
    """Variance of y given x, by kernel ridge regression whose ridge minimises generalised cross-validation.

    Residual sum of squares over n - tr S (Craven and Wahba 1979; Wahba 1990, equation 4.9.1), over columns of y summed.
    The metric's own lambda would leave much of the regression function in the residual: it shrinks on purpose.
    """
    targets = y[:, None] if y.ndim == 1 else y
    n = len(targets)
    centred = targets - targets.mean(axis=0)
    total = float(np.sum(centred**2))
    coefficients = spectrum.coefficients(centred)
    largest = min(float(spectrum.eigenvalues[0]), _typical_scale(spectrum.operator))
    chosen, freedom_left = target_filters(spectrum.eigenvalues, coefficients, total, n, largest)
    # In single precision U is orthonormal only roughly: the sum of squares is read off the residual itself.
    fitted = spectrum.columns.matmul(spectrum.basis @ (chosen[:, None] * coefficients))
    return float(np.sum((centred - fitted) ** 2)) / freedom_left


def target_filters(
    eigenvalues: Array, coefficients: Array, total: float, n: int, largest: float
) -> tuple[Array, float]:
    """``validated_filters`` of targets, centred, and the degrees of freedom left, from U' of them, (k, q).

    ``largest``: what ridges are tried relative to.
    """
    ridges, energy = largest * np.geomspace(1e-10, 1e2, 49), np.sum(coefficients**2, axis=1)
    return validated_filters(eigenvalues, ridges, energy, total, n, constants=1.0, least=0.1)


def validated_filters(
    eigenvalues: Array,
    ridges: Iterable[float],
    energy: Array,
    total: float,
    n: int,
    *,
    constants: float = 0.0,
    inflation: float = 1.0,
    least: float,
) -> tuple[Array, float]:
    """Filters e / (e + ridge), (k,), of the ridge that generalised cross-validation chooses, and the freedom it leaves.

    Args:
        eigenvalues: e, (k,).
        ridges: in the order that decides between equal ones; infinity for no fit.
        energy: sums of squares of U' of the values, (k,).
        total: sum of squares of the values.
        n: rows.
        constants: degrees of freedom of what was subtracted from the values.
        inflation: of the degrees of freedom that a fit takes.
        least: share of n that a fit must leave.
    """
    free = n - inflation * constants
    best, chosen, left = np.inf, np.zeros_like(eigenvalues), free
    for ridge in ridges:
        filters = eigenvalues / (eigenvalues + ridge)
        freedom = free - inflation * float(np.sum(filters))
        if freedom < least * n:
            continue
        score = max(total - float(np.sum((2.0 * filters - filters**2) * energy)), 0.0) / freedom**2
        if score < best:
            best, chosen, left = score, filters, freedom
    return chosen, left


def relative_eigenvalues(filters: Array) -> Array:
    """e / (n lambda) from the filters e / (e + n lambda) of a smoother, (k,)."""
    kept = filters.astype(np.float64)
    return np.asarray(kept / np.maximum(1.0 - kept, np.finfo(np.float64).eps))
