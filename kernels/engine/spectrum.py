"""Tiles of a Gram matrix, landmarks, the leading spectrum on them, and smoothing in its leading directions.

Most kernels are an elementwise function of x.z' and of the squared norms. Here that function runs in place on a tile
small enough to stay in cache, so that a tile costs little more than its matrix product; kernels of another shape (L1
distances, sums, products) are called as they are.

A product with r columns costs the reading of the tile as long as r is small, and OpenBLAS reads it fastest where r
fills its registers (a multiple of 8: 13 columns cost more than 16) and the transposed product is asked for as V'T.

RPCholesky (Chen et al. 2024, "Randomly pivoted Cholesky") draws landmarks by the residual diagonal, so that clusters,
outliers and duplicates are each covered once. It runs on a uniform subset of ten candidates a landmark, at least 5,000:
its cost does not grow with n.

Kernel ridge smoothing needs few directions of K ~ U diag(e) U': those with e_j of the order of n lambda or more. Null
draws by the thousand and a search over ridges are cheap in them. As an *answer* this would be an approximation; as a
statistic that is computed alike on observed and simulated targets it is as good as any other.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import scipy.linalg

from congruence.kernels.arrays import Array, array_namespace, to_numpy
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.kernel_functions import Kernel
from congruence.kernels.product_forms import Side
from congruence.kernels.rng import stream
from congruence.kernels.threads import map_on_threads

FINISHED_ROWS = 128  # rows that f is applied to at once: they and their scratch stay in a core's own cache
WIDTH = 8  # columns that BLAS kernels for AVX2 and AVX-512 take at once, in single precision


@dataclass(frozen=True)
class TilePoints:
    """Points (n, d) with their squared norms, from which tiles are cut."""

    x: Any = field(repr=False)

    @cached_property
    def norms(self) -> Any:
        """|x_i|^2, (n,)."""
        return array_namespace(self.x).einsum("ij,ij->i", self.x, self.x)

    @property
    def all(self) -> slice:
        """All of them."""
        return slice(0, int(self.x.shape[0]))


@dataclass
class TileMaker:
    """Makes tiles one after the other in the same memory: one maker per thread.

    Args:
        kernel: the input kernel.
        dimension: number of features d.
    """

    kernel: Kernel
    dimension: int
    _buffers: dict[str, Any] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        self._form = self.kernel.product_form(self.dimension)

    def tile(self, points: TilePoints, rows: slice, others: TilePoints, columns: slice) -> Any:
        """Returns [k(x_i, z_j)] for i in rows, j in columns; overwritten by the next call."""
        left = points.x[rows]
        block = self._made(points, rows, others, columns)
        if points is others and rows == columns:
            # Rounding leaves |x - x|^2 near 1e-7 in float32, and a kernel of the distance itself near its root.
            array_namespace(left).einsum("ii->i", block)[...] = self.kernel.diagonal(left)
        return block

    def _made(self, points: TilePoints, rows: slice, others: TilePoints, columns: slice) -> Any:
        left, right, form = points.x[rows], others.x[columns], self._form
        if form is None:
            return self.kernel(left, right)
        xp = array_namespace(left)
        block = self._buffer("block", (left.shape[0], right.shape[0]), left)
        xp.matmul(left * left.dtype.type(form.scale), right.T, out=block)
        norms = (points.norms[rows], others.norms[columns]) if form.uses_norms else (None, None)
        at_once = FINISHED_ROWS if xp is np else len(block)
        for part in tile_slices(slice(0, len(block)), at_once):
            scratch = self._buffer("scratch", block[part].shape, block)
            left_norms = None if norms[0] is None else norms[0][part]
            form.finish(block[part], scratch, Side(left[part], left_norms), Side(right, norms[1]))
        return block

    def _buffer(self, name: str, shape: tuple[int, int], like: Any) -> Any:
        xp = array_namespace(like)
        size = shape[0] * shape[1]
        held = self._buffers.get(name)
        if held is None or held.size < size or held.dtype != like.dtype:
            held = self._buffers[name] = xp.empty(size, dtype=like.dtype)
        return held[:size].reshape(shape)


def tile_slices(rows: slice, tile_rows: int) -> list[slice]:
    """Returns ``rows`` cut into tiles of at most ``tile_rows``."""
    return [slice(s, min(s + tile_rows, rows.stop)) for s in range(rows.start, rows.stop, tile_rows)]


def padded_columns(v: Array, like: Any) -> Any:
    """Returns v (n, r) where ``like`` is and in its dtype, in host memory with zero columns up to a multiple of 8.

    A single column stays one: its product is another, faster routine.
    """
    xp, r = array_namespace(like), v.shape[1]
    if xp is not np or r == 1 or r % WIDTH == 0:
        return xp.asarray(v, dtype=like.dtype)
    padded = np.zeros((len(v), -(-r // WIDTH) * WIDTH), dtype=like.dtype)
    padded[:, :r] = v
    return padded


def product(block: Any, weights: Array) -> Array:
    """Returns block weights, computed where the block is and in its precision, in host memory."""
    return to_numpy((block @ padded_columns(weights, block))[:, : weights.shape[1]]).astype(np.float64, copy=False)


def projected(block: Any, v: Array) -> Array:
    """Returns block' v, computed where the block is and in its precision, in host memory."""
    return to_numpy((padded_columns(v, block).T @ block).T[:, : v.shape[1]]).astype(np.float64, copy=False)


def weighted_squares(vectors: Array, weights: Array | None = None) -> Array:
    """Returns U' diag(w) U, (k, k), of U (n, k) and w >= 0 (n,), in the precision of U; U'U without weights.

    As the product of one array with itself, of which BLAS computes half.
    """
    scaled = vectors if weights is None else vectors * np.sqrt(weights).astype(vectors.dtype)[:, None]
    return np.asarray(scaled.T @ scaled, dtype=np.float64)


def squares_at(vectors: Array, inner: Array) -> Array:
    """Returns U_j' M U_j for every row of U (m, k) and M (k, k), (m,)."""
    return np.asarray(np.einsum("jk,jk->j", vectors @ inner.astype(vectors.dtype), vectors), dtype=np.float64)


CANDIDATES_PER_LANDMARK = 10
MIN_CANDIDATES = 5000
LEADING = 400  # landmarks that show the directions a smoother with a noise shift keeps
ROUNDING = {8: 1e-10, 4: 1e-6}  # by the bytes of a number: eigenvalues below this share of the largest are rounding
MIN_FILTER = 1e-2
TILE_ROWS = 1024


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

    @property
    def filters(self) -> Array:
        """e / (e + n lambda): how much of each direction the conditional mean embedding keeps, (k,)."""
        return np.asarray(self.eigenvalues / (self.eigenvalues + self.shift))

    @property
    def kept(self) -> int:
        """Leading directions that the embedding keeps at least 1 % of."""
        return max(1, int(np.count_nonzero(self.filters >= MIN_FILTER)))

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


def input_spectrum(
    x: Array, kernel: Kernel, regularization: float, landmarks: int = LEADING, *, seed: int = 0
) -> Spectrum:
    """Returns the leading spectrum of K for inputs x (n, d), on at most ``landmarks`` of them."""
    n, center = len(x), kernel.center(x)
    moved = x if center is None else x - center.astype(x.dtype)
    chosen = np.ascontiguousarray(moved[choose_landmarks(moved, kernel, landmarks, seed)])
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


def target_filters(
    eigenvalues: Array, coefficients: Array, total: float, n: int, largest: float
) -> tuple[Array, float]:
    """Returns ``validated_filters`` of centred targets and the freedom left, from U' of them, (k, q).

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
    """Returns filters e / (e + ridge), (k,), of the ridge that generalised cross-validation chooses, and its freedom.

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
    """Returns e / (n lambda) from the filters e / (e + n lambda) of a smoother, (k,)."""
    kept = filters.astype(np.float64)
    return np.asarray(kept / np.maximum(1.0 - kept, np.finfo(np.float64).eps))
