"""The regularised system of a split as passes use it: tiles of its Gram matrix, its factor, and bounds on its answers.

With m landmarks, C = K[:, landmarks] and W their corner, the answer is e = C (mu W + C'C)^-1 C'Delta, mu = n lambda,
which touches rows only in sums over them. Where every row is a landmark it is K (K + mu I)^-1 Delta: the matrix itself
is then factored, and the smoothed errors are Delta - mu Z. Reference rows that count with weights w of mean 1 give the
system S K S + mu I with S = diag(sqrt w): a point that occurs w times gives the same conditional means.

Most kernels are an elementwise function of x.z' and of the squared norms. Here that function runs in place on a tile
small enough to stay in cache, so that a tile costs little more than its matrix product; kernels of another shape (L1
distances, sums, products) are called as they are.

A product with r columns costs the reading of the tile as long as r is small, and OpenBLAS reads it fastest where r
fills its registers (a multiple of 8: 13 columns cost more than 16) and the transposed product is asked for as V'T.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, Protocol

import numpy as np
import scipy.linalg

from congruence.kernels.arrays import Array, array_namespace, on_card, to_numpy
from congruence.kernels.engine.blocks import BlockRows
from congruence.kernels.engine.results import ErrorBounds
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.kernel_functions import Kernel, Side
from congruence.kernels.protocol import EvaluationProtocol

FINISHED_ROWS = 128  # rows that f is applied to at once: they and their scratch stay in a core's own cache
WIDTH = 8  # columns that BLAS kernels for AVX2 and AVX-512 take at once, in single precision
MIN_FILTER = 1e-2
TILE_ROWS = 1024


@dataclass(frozen=True)
class TilePoints:
    """Points (n, d) with their squared norms, from which tiles are cut; ``first``: the number of the first one."""

    x: Any = field(repr=False)
    first: int = 0

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


def protocol_inputs(protocol: EvaluationProtocol, inputs: Array, first: int, dtype: Any) -> Array:
    """Returns x (n, d) of a block that begins at row ``first``: checked, in ``dtype``, as the protocol wants them.

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
class SystemInputs:
    """What every block needs to know of the others' inputs.

    Attributes:
        protocol: kernel and lambda, and how embeddings become the kernel's inputs.
        dtype: of the arithmetic inside a tile.
        center: subtracted from all inputs; None for none.
        landmarks: (m, d), centred: of an exact system all rows.
        leading: numbers of the landmarks that show the leading directions, (l,).
        residual: inputs on which the residual is read, in double precision, (s, d), centred.
        n: reference rows.
        is_exact: whether all rows are landmarks.
        roots: s of the reference rows, (n,); None where they count equally.
        basis: U = K[:, leading landmarks] basis, (l, k), once it is known.
        filters: e / (e + n lambda), (k,).
        gpu: whether tiles are made, and multiplied, on the card of the process that has the block.
        asked: how many landmarks were asked for: with the precision, it tells one system of a split from another.
        kept: tiles of k_X between passes, for all systems of a split; None where each pass makes its own, since they
            are large, or other processes have the blocks.
    """

    protocol: EvaluationProtocol
    dtype: Any
    center: Array | None = field(repr=False)
    landmarks: Array = field(repr=False)
    leading: Array = field(repr=False)
    residual: Array = field(repr=False)
    n: int
    is_exact: bool
    roots: Array | None = field(default=None, repr=False)
    basis: Array = field(default_factory=lambda: np.empty((0, 0)), repr=False)
    filters: Array = field(default_factory=lambda: np.empty(0), repr=False)
    gpu: bool = False
    asked: int = 0
    kept: dict[tuple[int, ...], Array] | None = field(default=None, repr=False, compare=False)

    @property
    def kernel(self) -> Kernel:
        """k_X."""
        return self.protocol.input_kernel

    @property
    def shift(self) -> float:
        """n lambda."""
        return self.n * self.protocol.regularization

    def of_leading(self) -> SystemInputs:
        """Returns what passes need that use the leading directions alone: of an exact system, landmarks are many."""
        if not self.is_exact:
            return self
        few = np.ascontiguousarray(self.landmarks[self.leading])
        return replace(self, landmarks=few, leading=np.arange(len(few)))

    def placed(self, array: Array) -> Any:
        """Returns ``array`` where tiles are made."""
        return on_card(array) if self.gpu else array

    def points(self, rows: BlockRows) -> tuple[TilePoints, Array]:
        """Returns the centred inputs of a block where tiles are made, and the same in double precision here."""
        x = protocol_inputs(self.protocol, rows.inputs(), rows.first, self.dtype)
        double = x.astype(np.float64)
        if self.center is None:
            return TilePoints(self.placed(x), rows.first), double
        return TilePoints(self.placed(x - self.center.astype(x.dtype)), rows.first), double - self.center

    def tiles(
        self, points: TilePoints, tile_rows: int = TILE_ROWS, *, whole: bool = True
    ) -> Iterator[tuple[slice, Any, Array]]:
        """Yields rows, K[rows, landmarks] (leading ones alone without ``whole``) and U there; memory is used again.

        The columns are where tiles are made; U, which many small sums read, is in host memory.
        """
        some = None if whole else self.leading
        others = TilePoints(self.placed(self.landmarks if some is None else self.landmarks[some].copy()))
        basis = self.basis.astype(points.x.dtype)
        everyone, directions = len(self.leading) == len(others.x), self.placed(basis)
        maker = TileMaker(self.kernel, int(self.landmarks.shape[1]))
        for rows in tile_slices(points.all, tile_rows):
            make = partial(maker.tile, points, rows, others, others.all)
            columns = make() if some is not None else self.between_passes(self.asked, points.first, rows, make)
            leading = columns if everyone or not basis.size else columns[:, self.leading]
            vectors = to_numpy(leading @ directions) if basis.size else np.empty((len(columns), 0))
            yield rows, columns, vectors.astype(np.float32, copy=False)

    def between_passes(self, asked: int, first: int, rows: slice, make: Callable[[], Any]) -> Any:
        """Returns a tile of rows of the block from row ``first`` on, as an earlier pass made it where tiles are kept.

        ``asked``: landmarks that were asked for; 0 for a tile that does not depend on them.
        """
        if self.kept is None:
            return make()
        place = asked, self.dtype.itemsize, first + rows.start, first + rows.stop
        if place not in self.kept:
            self.kept[place] = make().copy()  # the memory it was made in is used again
        return self.kept[place]

    def scaled(self, values: Any, first: int, rows: slice) -> Any:
        """Returns what reference rows have, (r, c), times their roots."""
        if self.roots is None:
            return values
        roots = self.roots[first + rows.start : first + rows.stop, None].astype(values.dtype)
        return values * array_namespace(values).asarray(roots)


class Factor(Protocol):
    """A factor of S K S + n lambda I, wherever it is."""

    def solve(self, rhs: Array) -> Array:
        """Returns Z, (n, c)."""


@dataclass(frozen=True)
class LocalFactor(Factor):
    """A lower Cholesky factor in the memory of this process."""

    lower: Array = field(repr=False)

    def solve(self, rhs: Array) -> Array:
        return np.asarray(scipy.linalg.cho_solve((self.lower, True), rhs, check_finite=False))


@dataclass(frozen=True)
class System:
    """The prepared system of a split.

    Attributes:
        inputs: what blocks know.
        factor: of mu W + C'C, or of the exact system.
        kernel_maximum: of k(x, x), over query points, too.
        basis: of all leading directions, U = K[:, leading landmarks] basis, (l, k).
        eigenvalues: of K in them, decreasing, (k,).
        spread: U'U of the reference rows, (k, k), the identity up to rounding.
        residual_positions: of the reference rows on which the residual is read, and of query points.
        targets: U'[1, y] where it was asked for, (k, 1 + q).
        mean_diagonal: of k(x, x).
    """

    inputs: SystemInputs
    factor: Factor = field(repr=False)
    kernel_maximum: float
    basis: Array = field(repr=False)
    eigenvalues: Array = field(repr=False)
    spread: Array = field(repr=False)
    residual_positions: tuple[Array, Array] = field(repr=False)
    mean_diagonal: float
    targets: Array | None = field(default=None, repr=False)

    @cached_property
    def inverse(self) -> Array:
        """S A^-1 of an exact system, (n, n)."""
        inverse, roots = self.factor.solve(np.eye(self.inputs.n)), self.inputs.roots
        return inverse if roots is None else np.asarray(roots[:, None] * inverse)

    def residual_variance(self, count: float, mean: Any, squares: Any) -> float:
        """Returns the variance of y given x, from count, mean and squared deviations of all targets.

        By kernel ridge regression whose ridge minimises generalised cross-validation: residual sum of squares over
        n - tr S (Craven and Wahba 1979; Wahba 1990, equation 4.9.1), over columns of y summed. The metric's own lambda
        would leave much of the regression function in the residual: it shrinks on purpose.
        """
        assert self.targets is not None
        total, eigenvalues = float(np.sum(squares)), self.eigenvalues
        coefficients = self.targets[:, 1:] - self.targets[:, :1] * np.atleast_1d(mean)
        largest = min(float(eigenvalues[0]), self.inputs.n * self.mean_diagonal)
        chosen, freedom = target_filters(eigenvalues, coefficients, total, int(count), largest)
        fit = chosen[:, None] * coefficients
        missed = -2.0 * float(np.sum(fit * coefficients)) + float(np.sum(fit * (self.spread @ fit)))
        return max(total + missed, 0.0) / freedom


def residual_bounds(
    system: System, residual: Array, read: Array | None, points: int, rounding: float = 0.0
) -> ErrorBounds:
    """Returns bounds on the error of smoothed right-hand sides, from residuals on sampled rows.

    With Z = (B - e) / mu and R = B - A Z, the smoothed e of the reference rows are off by mu A^-1 R, which is no longer
    than R. Those of other points are k(x)'Z but for what was read at some of them, and k(x)'Z is off by k(x)' A^-1 R:
    with k(x) = K^(1/2) u and |u|^2 <= k(x, x), |A^-1 k(x)|^2 <= k(x, x) / (4 mu).

    Args:
        system: that was solved.
        residual: R on sampled reference rows, (s, r).
        read: what other points were off k(x)'Z, at some of them, (t, r); None where the points are the reference rows.
        points: how many there are.
        rounding: of R, beyond what was read.
    """
    n, unread = system.inputs.n, sampled_norm(residual, system.inputs.n) + rounding
    if read is None:
        return ErrorBounds(unread, unread / float(np.sqrt(n)), "sampled" if len(residual) < n else "computed")
    at_query = float(np.sqrt(system.kernel_maximum / (4.0 * system.inputs.shift))) * unread
    apart, is_sampled = sampled_norm(read, points), len(residual) < n or (0 < len(read) < points)
    in_mean = at_query + apart / float(np.sqrt(points))
    return ErrorBounds(at_query + apart, in_mean, "sampled" if is_sampled else "computed")


def sampled_norm(residual: Array, n: int) -> float:
    """Returns an upper estimate of the norm of n rows from some of them (rows, r): three standard errors on top."""
    if not len(residual):
        return 0.0
    squares = np.sum(residual**2, axis=1)
    error = 3.0 * float(np.std(squares)) / float(np.sqrt(len(squares))) if len(squares) < n else 0.0
    return float(np.sqrt(n * (float(np.mean(squares)) + error)))


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


def kept_directions(filters: Array) -> int:
    """Returns how many leading directions a smoother of these filters keeps at least 1 % of."""
    return max(1, int(np.count_nonzero(filters >= MIN_FILTER)))


def relative_eigenvalues(filters: Array) -> Array:
    """Returns e / (n lambda) from the filters e / (e + n lambda) of a smoother, (k,)."""
    kept = filters.astype(np.float64)
    return np.asarray(kept / np.maximum(1.0 - kept, np.finfo(np.float64).eps))
