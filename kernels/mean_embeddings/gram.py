"""The Gram matrix of the errors, H_ij = <D_i, D_j> with D_i = k_Y(y_i, .) - E k_Y(Y_i, .), in closed form.

A target is a point, and normals, ensembles and their mixtures are weighted points and normals: D_i is a signed mixture
of both, and H a sum of kernel values and Gaussian integrals. No features of bounded rank are needed, so vector targets
and targets far apart are as exact as scalars; a factor H = Delta Delta' gives coordinates of rank at most n.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import scipy.linalg

from congruence.kernels.arrays import Array, row_slices
from congruence.kernels.distributions import Deterministic, Distribution, Mixture, MultivariateNormal, Normal, Samples
from congruence.kernels.distributions.gaussian_expectations import (
    gaussian_expectation,
    has_gaussian_expectation,
    point_values,
)
from congruence.kernels.errors import BudgetError, InvalidInputError
from congruence.kernels.kernel_functions import Kernel
from congruence.kernels.mean_embeddings.base import EmbeddedErrors, FeatureError
from congruence.kernels.streams import stream
from congruence.kernels.threads import map_on_threads

FACTORED_ROWS = 4096  # up to here H is made whole and factored: 134 MB
LANDMARKS = 1024
PAIR_BUDGET = 3_000_000_000  # kernel values per Gram matrix: about a minute on two cores
NEGLIGIBLE = 1e-9  # missed share of a row that needs no closer look
TOLERANCE = 1e-11  # of the largest H_ii that a factor may miss of any row
_BLOCK_ENTRIES = 250_000  # a block and its scratch stay in a core's cache
_ROUNDING = 32.0 * np.finfo(np.float64).eps
_SAMPLED_MARGIN = 1.25
_CHECKED_ROWS = 2048
_TRIED_ROWS = 256
REFUSED_SHARE = 0.05


@dataclass(frozen=True)
class _Atoms:
    """C weighted components per row: points, or normals with independent components where ``variance`` is given."""

    weights: Array  # (n, C)
    loc: Array  # (n, C, q)
    variance: Array | None = None  # (n, C, q)

    def __getitem__(self, rows: Array | slice) -> _Atoms:
        return _Atoms(self.weights[rows], self.loc[rows], None if self.variance is None else self.variance[rows])

    @property
    def per_row(self) -> int:
        return int(self.weights.shape[1])


@dataclass(frozen=True)
class ErrorGram:
    """H by blocks, for errors that are signed mixtures of points and normals (``of``)."""

    kernel: Kernel
    parts: tuple[_Atoms, ...] = field(repr=False)

    @classmethod
    def of(cls, y: Array, predictive: Distribution, kernel: Kernel) -> ErrorGram | None:
        """H for targets y (n,) or (n, q); None for families or kernels without a closed form."""
        atoms = _atoms(predictive)
        if atoms is None or (any(part.variance is not None for part in atoms) and not has_gaussian_expectation(kernel)):
            return None
        targets = y.reshape(len(y), 1, -1)
        signed = [_Atoms(np.ones((len(y), 1)), targets), *(replace(part, weights=-part.weights) for part in atoms)]
        # Distances of numbers far from the origin would lose their digits; kernels of products keep theirs.
        center = np.median(targets, axis=0) if kernel.is_stationary else np.zeros_like(targets[0])
        return cls(kernel, tuple(replace(part, loc=part.loc - center) for part in _merged(signed)))

    @classmethod
    def of_normals(cls, kernel: Kernel, y: Array, loc: Array, variance: Array) -> ErrorGram:
        """H for targets y and laws N(loc, diag(variance)), all (n, q), as they stand."""
        one = np.ones((len(y), 1))
        return cls(kernel, (_Atoms(one, y[:, None]), _Atoms(-one, loc[:, None], variance[:, None])))

    def __len__(self) -> int:
        return len(self.parts[0].weights)

    @property
    def pairs_per_entry(self) -> int:
        """Kernel values that one entry of H takes."""
        return sum(part.per_row for part in self.parts) ** 2

    def restricted(self, rows: Array) -> ErrorGram:
        """H[rows, rows] as an operator."""
        return replace(self, parts=tuple(part[rows] for part in self.parts))

    def block(self, rows: Array, columns: Array) -> Array:
        """H[rows, columns], made in blocks on every core."""
        size = np.sqrt(_BLOCK_ENTRIES / self.pairs_per_entry)
        left, right = row_slices(len(rows), size), row_slices(len(columns), size)
        mirrored = rows is columns
        result = np.empty((len(rows), len(columns)))

        def fill(a: slice) -> None:
            own = self.restricted(rows[a])
            for b in right:
                if not (mirrored and b.start < a.start):
                    result[a, b] = own.products(self.restricted(columns[b]))

        map_on_threads(fill, left)
        if mirrored:
            for a in left:
                result[a.stop :, a] = result[a, a.stop :].T
        return result

    def products(self, other: ErrorGram) -> Array:
        """<D_i, D'_j> for all rows of this and of another, (n, m)."""
        total = np.zeros((len(self), len(other)))
        for a in self.parts:
            for b in other.parts:
                total += _products(self.kernel, a, b)
        return total

    def diagonal(self) -> Array:
        """|D_i|^2, (n,)."""
        result = np.zeros(len(self))
        for first, a in enumerate(self.parts):
            for second, b in enumerate(self.parts[: first + 1]):
                result += (1.0 if second == first else 2.0) * _own_products(self.kernel, a, b)
        return result

    def squared_mean_norms(self) -> Array:
        """|E k_Y(Y_i, .)|^2, (n,)."""
        target, *rest = self.parts
        if target.per_row > 1:
            rest = [_Atoms(target.weights[:, 1:], target.loc[:, 1:]), *rest]
        return replace(self, parts=tuple(rest)).diagonal()

    def takes_at_most(self, values: int = PAIR_BUDGET) -> bool:
        """Whether ``error_coordinates`` would take at most so many kernel values."""
        n = len(self)
        entries = n * (n + 1) // 2 if n <= FACTORED_ROWS else n * LANDMARKS
        return entries * self.pairs_per_entry <= values

    def missed_share(self, delta: Array) -> tuple[float, float]:
        """sum_i |D_i|^2 - |Delta_i|^2 for projections Delta (n, r), and sum_i |D_i|^2."""
        whole = float(np.sum(self.diagonal()))
        return max(whole - float(np.sum(delta**2)), 0.0), whole

    def missed_by(self, delta: Array, seed: int = 0) -> FeatureError:
        """What coordinates Delta (n, r) of orthogonal projections of the errors leave out.

        H_ii - |Delta_i|^2 is exact, but a bound from it alone takes the missed parts for parallel. Where that matters,
        the spectral norm of the rest is read off the rows that miss most and random others: the largest eigenvalue of
        a random principal submatrix exceeds, in expectation, its share of the whole one's. It gets a margin of a
        quarter.
        """
        n = len(self)
        diagonal = self.diagonal()
        missed = np.maximum(diagonal - np.einsum("ij,ij->i", delta, delta), 0.0)
        proven = FeatureError(missed)
        if np.max(missed) <= NEGLIGIBLE * np.max(diagonal):
            return proven
        order = np.argsort(missed)
        count = min(n, _CHECKED_ROWS, int(np.sqrt(PAIR_BUDGET / self.pairs_per_entry)))
        rest, worst = order[: n - count // 8], order[n - count // 8 :]
        rows = np.sort(stream(seed, "checked errors").choice(rest, min(len(rest), count), replace=False))
        # Of a positive semi-definite matrix in two blocks, the norm is at most the sum of theirs.
        scale = 1.0 if len(rows) == len(rest) else _SAMPLED_MARGIN * len(rest) / len(rows)
        norm = self._norm_beyond(delta, worst) + scale * self._norm_beyond(delta, rows)
        if norm >= proven.norm:
            return proven
        return FeatureError(np.zeros(n), norm, kind="bound" if len(rows) == len(rest) else "sampled")

    def _norm_beyond(self, delta: Array, rows: Array) -> float:
        """Spectral norm of H - Delta Delta' on some rows."""
        rest = self.block(rows, rows) - delta[rows] @ delta[rows].T
        last = len(rows) - 1
        return max(float(scipy.linalg.eigh(rest, eigvals_only=True, subset_by_index=[last, last])[0]), 0.0)


def error_coordinates(gram: ErrorGram, seed: int = 0) -> EmbeddedErrors:
    """Coordinates of the errors: a pivoted Cholesky factor of H, or, above 4,096 rows, projections on 1,024 errors.

    Raises:
        BudgetError: 1,024 errors miss more than a twentieth of the others.
    """
    n = len(gram)
    everything = np.arange(n)
    if n <= FACTORED_ROWS:
        whole = gram.block(everything, everything)
        np.fill_diagonal(whole, gram.diagonal())  # distances of a point to itself round to a little above 0
        delta, missed = factored(whole)
        return EmbeddedErrors(delta, gram.squared_mean_norms(), FeatureError(missed))
    landmarks = _landmarks(gram, stream(seed, "landmark errors"))
    factor = lower_factor(gram.block(landmarks, landmarks))
    _require_reached(gram, landmarks[factor.pivots], factor.lower)
    columns = gram.block(landmarks[factor.pivots], everything)
    delta = np.ascontiguousarray(scipy.linalg.solve_triangular(factor.lower, columns, lower=True).T)
    return EmbeddedErrors(delta, gram.squared_mean_norms(), gram.missed_by(delta, seed))


def require_share(missed: float, rows: int, rank: int) -> None:
    """Raise BudgetError where coordinates miss more than a twentieth of the squared errors."""
    if missed > REFUSED_SHARE:
        raise BudgetError(
            f"{rows} errors in the output kernel's space: {rank} coordinates miss {100.0 * missed:.2g} % of them, the "
            f"limit is {100.0 * REFUSED_SHARE:.0f} %. Evaluate a sample of at most {FACTORED_ROWS} reference rows, "
            "where all are exact (fewer for large ensembles), or use a wider output kernel"
        )


def _require_reached(gram: ErrorGram, pivots: Array, lower: Array) -> None:
    """Raise BudgetError before the work where some random rows already tell."""
    rows = stream(0, "tried errors").choice(len(gram), _TRIED_ROWS, replace=False)
    tried = scipy.linalg.solve_triangular(lower, gram.block(pivots, rows), lower=True)
    whole = float(np.sum(gram.restricted(rows).diagonal()))
    require_share(1.0 - float(np.sum(tried**2)) / whole, len(gram), len(pivots))


def factored(gram: Array) -> tuple[Array, Array]:
    """Delta (n, r) with Delta Delta' = ``gram`` (n, n), which is overwritten, and what each row misses, (n,)."""
    diagonal = np.diagonal(gram).copy()
    factor = lower_factor(gram)
    delta = np.empty(factor.whole.shape)
    delta[factor.order] = factor.whole
    missed = np.maximum(diagonal - np.einsum("ij,ij->i", delta, delta), 0.0)
    return delta, missed + _ROUNDING * float(np.max(diagonal))


def point_coordinates(kernel: Kernel, y: Array) -> tuple[Array, Array]:
    """psi (n, r) with psi psi' = [k(y_i, y_j)] for points y (n,) or (n, q), and what each row misses, (n,)."""
    points = y.reshape(len(y), -1)
    points = points - np.median(points, axis=0) if kernel.is_stationary else points
    return factored(point_values(kernel, points, points))


@dataclass(frozen=True)
class PivotedFactor:
    """``whole`` (n, r) with gram[order][:, order] = whole whole', lower triangular in its first r rows."""

    whole: Array
    order: Array

    @property
    def pivots(self) -> Array:
        """The rows that the factor interpolates, (r,)."""
        return self.order[: self.whole.shape[1]]

    @property
    def lower(self) -> Array:
        """The Cholesky factor of the pivots, (r, r)."""
        return self.whole[: self.whole.shape[1]]


def lower_factor(gram: Array) -> PivotedFactor:
    """The pivoted Cholesky factor of a Gram matrix (n, n), overwritten, until no diagonal entry is above 1e-11 of it.

    Raises:
        InvalidInputError: NaN or infinite entries.
    """
    if not np.isfinite(gram).all():
        raise InvalidInputError(
            "the Gram matrix of the output kernel overflows on these targets and predictions; rescale them to a spread "
            "near 1, or use a stationary output kernel (RBF)"
        )
    limit = max(TOLERANCE * float(np.max(np.diagonal(gram))), np.finfo(np.float64).tiny)
    # LAPACK works on columns: the matrix is symmetric, so its transpose is the one it wants.
    factor, order, rank, status = scipy.linalg.lapack.dpstrf(gram.T, tol=limit, lower=1, overwrite_a=1)
    rank = int(rank) if status > 0 else len(gram)
    return PivotedFactor(np.tril(factor)[:, :rank], order.astype(np.intp) - 1)


def _landmarks(gram: ErrorGram, rng: np.random.Generator) -> Array:
    """Rows that reach far and random ones: pivoting drops those that others cover."""
    n = len(gram)
    far = np.argsort(_spread(gram))[-(LANDMARKS // 4) :]
    rest = np.setdiff1d(np.arange(n), far)
    return np.concatenate([far, rng.choice(rest, LANDMARKS - len(far), replace=False)])


def _spread(gram: ErrorGram) -> Array:
    """The longest distance of a row's components from the common center."""
    spread = np.zeros(len(gram))
    for part in gram.parts:
        reach = np.sum(part.loc**2, axis=2) + (0.0 if part.variance is None else np.sum(part.variance, axis=2))
        spread = np.maximum(spread, np.max(reach, axis=1))
    return spread


def _atoms(law: Distribution) -> list[_Atoms] | None:
    n = len(law)
    if isinstance(law, Deterministic):
        return [_Atoms(np.ones((n, 1)), law.value.reshape(n, 1, -1))]
    if isinstance(law, Samples):
        size = law.values.shape[1]
        return [_Atoms(np.full((n, size), 1.0 / size), law.values.reshape(n, size, -1))]
    if isinstance(law, (Normal, MultivariateNormal)):
        return [_Atoms(np.ones((n, 1)), law.loc.reshape(n, 1, -1), law.scale.reshape(n, 1, -1) ** 2)]
    if isinstance(law, Mixture):
        components: list[_Atoms] = []
        for k, component in enumerate(law.components):
            atoms = _atoms(component)
            if atoms is None:
                return None
            components += [replace(part, weights=law.weights[:, k, None] * part.weights) for part in atoms]
        return components
    return None


def _merged(parts: list[_Atoms]) -> list[_Atoms]:
    """All points in one part, the target first, and all normals in another."""
    points = [part for part in parts if part.variance is None]
    normals = [part for part in parts if part.variance is not None]
    merged = [_Atoms(np.hstack([p.weights for p in points]), np.concatenate([p.loc for p in points], axis=1))]
    if normals:
        variance = np.concatenate([part.variance for part in normals if part.variance is not None], axis=1)
        loc = np.concatenate([part.loc for part in normals], axis=1)
        merged.append(_Atoms(np.hstack([part.weights for part in normals]), loc, variance))
    return merged


def _values(kernel: Kernel, a: _Atoms, b: _Atoms) -> Array:
    q = a.loc.shape[2]
    loc, others = a.loc.reshape(-1, q), b.loc.reshape(-1, q)
    if a.variance is None and b.variance is None:
        return point_values(kernel, loc, others)
    variance = np.zeros_like(loc) if a.variance is None else a.variance.reshape(-1, q)
    other_variance = np.zeros_like(others) if b.variance is None else b.variance.reshape(-1, q)
    return gaussian_expectation(kernel, loc, variance, others, other_variance)


def _products(kernel: Kernel, a: _Atoms, b: _Atoms) -> Array:
    values = _values(kernel, a, b)
    if a.per_row == b.per_row == 1:
        values *= a.weights
        values *= b.weights.T
        return values
    values = values.reshape(len(a.weights), a.per_row, len(b.weights), b.per_row)
    return np.asarray(np.einsum("ijb,jb->ij", np.einsum("iajb,ia->ijb", values, a.weights), b.weights))


def _own_products(kernel: Kernel, a: _Atoms, b: _Atoms) -> Array:
    # A few rows at once: most of a small block is waste, but a call costs more than it.
    parts = row_slices(len(a.weights), 16 // max(a.per_row, b.per_row))
    return np.concatenate([np.diagonal(_products(kernel, a[rows], b[rows])) for rows in parts])
