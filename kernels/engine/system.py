"""The regularised system of a split: landmarks, what blocks add to it, its factor, and the leading spectrum.

With m landmarks, C = K[:, landmarks] and W their corner, the answer is e = C (mu W + C'C)^-1 C'Delta, mu = n lambda,
which touches rows only in sums over them. Where every row is a landmark it is K (K + mu I)^-1 Delta: the matrix itself
is then factored, and the smoothed errors are Delta - mu Z. Reference rows that count with weights w of mean 1 give the
system S K S + mu I with S = diag(sqrt w): a point that occurs w times gives the same conditional means.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import scipy.linalg

from congruence.kernels.arrays import Array, array_namespace, on_card, to_numpy
from congruence.kernels.engine.blocks import BlockRows, BlockSums, Pass, Passes, chosen_in
from congruence.kernels.engine.results import ErrorBounds
from congruence.kernels.engine.spectrum import (
    LEADING,
    TILE_ROWS,
    Spectrum,
    TileMaker,
    TilePoints,
    candidate_rows,
    choose_landmarks,
    landmark_directions,
    positive_diagonal,
    projected,
    rpcholesky,
    target_filters,
    tile_slices,
    typical_eigenvalue,
)
from congruence.kernels.errors import ConvergenceError, InvalidInputError
from congruence.kernels.kernel_functions import CENTER_ROWS, Kernel
from congruence.kernels.protocol import EvaluationProtocol, protocol_inputs
from congruence.kernels.rng import stream

EXACT_ROWS = 5000
"""Up to so many rows all are landmarks."""
MOST_EXACT_ROWS = 10_000
"""That one process factors: larger matrices end a threaded LAPACK, and are factored by tiles."""
RESIDUAL_ROWS = {8: 1024, 4: 512}  # on which the residual is read, in double precision; by the bytes of a tile's number
JITTER = 1e-12
SCALE_FEATURES = "scale the features (each to a standard deviation of 1, or every row to norm 1)"


def sampled_rows(n: int, count: int, seed: int, purpose: str = "residual rows") -> Array:
    """Returns sorted numbers of ``count`` random rows of n."""
    return np.sort(stream(seed, purpose).choice(n, min(count, n), replace=False))


def sample_pass(rows: BlockRows, protocol: EvaluationProtocol, dtype: Any, positions: Array) -> Pass:
    """A pass that keeps the inputs of some rows of the split."""
    sums, chosen = BlockSums(), chosen_in(positions, rows.first, len(rows))
    sums.keep("inputs", protocol_inputs(protocol, rows.inputs(), rows.first, dtype)[chosen])
    return {"": sums}


def _sampled(run: Passes, protocol: EvaluationProtocol, dtype: Any, positions: Array) -> Array:
    return np.asarray(run("sample", sample_pass, protocol, dtype, positions)[""].rows("inputs"))


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
            return TilePoints(self.placed(x)), double
        return TilePoints(self.placed(x - self.center.astype(x.dtype))), double - self.center

    def tiles(
        self, points: TilePoints, tile_rows: int = TILE_ROWS, *, whole: bool = True
    ) -> Iterator[tuple[slice, Any, Array]]:
        """Yields rows, K[rows, landmarks] (leading ones alone without ``whole``) and U there; memory is used again.

        The columns are where tiles are made; U, which many small sums read, is in host memory.
        """
        some = None if whole else self.leading
        others = TilePoints(self.placed(self.landmarks if some is None else self.landmarks[some].copy()))
        maker, basis = TileMaker(self.kernel, int(self.landmarks.shape[1])), self.basis.astype(points.x.dtype)
        everyone, kept = len(self.leading) == len(others.x), self.placed(basis)
        for rows in tile_slices(points.all, tile_rows):
            columns = maker.tile(points, rows, others, others.all)
            leading = columns if everyone or not basis.size else columns[:, self.leading]
            vectors = to_numpy(leading @ kept) if basis.size else np.empty((len(columns), 0))
            yield rows, columns, vectors.astype(np.float32, copy=False)

    def scaled(self, values: Any, first: int, rows: slice) -> Any:
        """Returns what reference rows have, (r, c), times their roots."""
        if self.roots is None:
            return values
        roots = self.roots[first + rows.start : first + rows.stop, None].astype(values.dtype)
        return values * array_namespace(values).asarray(roots)


def inputs_pass(block: BlockRows, system: SystemInputs, with_targets: bool) -> Pass:
    """The pass over the inputs alone: C'C, with targets U's part of C'[1, y], and what is known of k(x, x)."""
    sums, first = BlockSums(), block.first
    targets = block.targets() if with_targets else None
    points, _ = system.points(block)
    gram: Any = 0.0  # stays where the tiles are until the block is done
    for rows, columns, _ in system.tiles(points, whole=not system.is_exact):
        # float64 throughout: the small matrix built from C'C has the squared condition number of C.
        exact = system.scaled(columns.astype(np.float64), first, rows)
        gram = gram + exact.T @ exact
        if targets is not None:
            y = targets[rows].reshape(len(exact), -1)
            leading = exact if system.is_exact else exact[:, system.leading]
            sums.add("targets", projected(leading, np.column_stack([np.ones(len(exact)), y])))
    if len(points.x):
        sums.add("gram", to_numpy(gram))
        diagonal = to_numpy(system.kernel.diagonal(points.x)).astype(np.float64)
        sums.add("diagonal", float(np.sum(diagonal)))
        sums.raise_to("diagonal", float(np.max(diagonal)))
    return {"": sums}


def diagonal_pass(block: BlockRows, system: SystemInputs) -> Pass:
    """The pass over query points: the largest k(x, x) among them."""
    sums = BlockSums()
    with np.errstate(over="ignore", invalid="ignore"):
        sums.raise_to("diagonal", float(to_numpy(system.kernel.diagonal(system.points(block)[0].x)).max()))
    return {"": sums}


class Factor(Protocol):
    """A factor of S K S + n lambda I, wherever it is."""

    def solve(self, rhs: Array) -> Array:
        """Returns Z, (n, c)."""


@dataclass(frozen=True)
class LocalFactor(Factor):
    """A lower Cholesky factor in the memory of this process."""

    lower: Array = field(repr=False)

    def solve(self, rhs: Array) -> Array:
        """See Factor."""
        return np.asarray(scipy.linalg.cho_solve((self.lower, True), rhs, check_finite=False))


Factorize = Callable[[SystemInputs], Factor]


def local_factor(inputs: SystemInputs) -> Factor:
    """Returns the factor of an exact system, made in this process in double precision.

    Raises:
        ConvergenceError: the kernel is not positive definite, or lambda is below rounding.
    """
    gram = np.asarray(inputs.kernel(inputs.landmarks.astype(np.float64)))
    diagonal = np.diagonal(gram).copy()
    if inputs.roots is not None:
        gram *= inputs.roots
        gram *= inputs.roots[:, None]
    gram.reshape(-1)[:: len(gram) + 1] += inputs.shift
    try:
        # Symmetric, so that its transpose is itself in LAPACK's order and is factored in place.
        return LocalFactor(scipy.linalg.cholesky(gram.T, lower=True, overwrite_a=True, check_finite=False))
    except np.linalg.LinAlgError as error:
        raise not_positive("K + n lambda I", inputs.shift, diagonal) from error


def not_positive(what: str, shift: float, diagonal: Array) -> ConvergenceError:
    """Returns the error of a matrix without a factor."""
    return ConvergenceError(
        f"{what} is not positive definite (n lambda = {shift:.3g}, k(x, x) from {float(np.min(diagonal)):.3g} to "
        f"{float(np.max(diagonal)):.3g}): the input kernel is not positive definite, or lambda is below rounding; "
        f"{SCALE_FEATURES}, use a larger regularization, or float64 inputs"
    )


def inner_factor(corner: Array, gram: Array, shift: float) -> Factor:
    """Returns the Cholesky factor of mu W + C'C.

    Landmarks may repeat, and inputs of few features have Gram matrices of low rank: both leave eigenvalues at rounding.
    So W is lifted by 1e-12 of m times its own diagonal, or as much more as single precision needs: of the diagonal and
    not of the trace, so that a few long inputs do not drown all others.

    Raises:
        ConvergenceError: the kernel is not positive definite, or lambda is below rounding.
    """
    own = len(corner) * positive_diagonal(corner)
    for jitter in (JITTER, 1e3 * JITTER, 1e6 * JITTER):
        inner = shift * corner
        inner += gram
        inner[np.diag_indices(len(inner))] += shift * jitter * own
        try:
            return LocalFactor(scipy.linalg.cholesky(inner.T, lower=True, overwrite_a=True, check_finite=False))
        except np.linalg.LinAlgError:
            continue
    raise not_positive(f"the approximation on {len(corner)} landmarks", shift, np.diagonal(corner))


@dataclass(frozen=True)
class System:
    """The prepared system of a split.

    Attributes:
        inputs: what blocks know.
        factor: of mu W + C'C, or of the exact system.
        kernel_maximum: of k(x, x), over query points, too.
        spectrum: the leading one.
        spread: U'U of the reference rows in the kept directions, (k, k), the identity up to rounding.
        residual_positions: of the reference rows on which the residual is read, and of query points.
        targets: U'[1, y] where it was asked for, (k, 1 + q).
        mean_diagonal: of k(x, x).
    """

    inputs: SystemInputs
    factor: Factor = field(repr=False)
    kernel_maximum: float
    spectrum: Spectrum = field(repr=False)
    spread: Array = field(repr=False)
    residual_positions: tuple[Array, Array] = field(repr=False)
    mean_diagonal: float
    targets: Array | None = field(default=None, repr=False)
    whole_spread: Array = field(default_factory=lambda: np.empty((0, 0)), repr=False)

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
        total, eigenvalues = float(np.sum(squares)), self.spectrum.eigenvalues
        coefficients = self.targets[:, 1:] - self.targets[:, :1] * np.atleast_1d(mean)
        largest = min(float(eigenvalues[0]), self.inputs.n * self.mean_diagonal)
        chosen, freedom = target_filters(eigenvalues, coefficients, total, int(count), largest)
        fit = chosen[:, None] * coefficients
        missed = -2.0 * float(np.sum(fit * coefficients)) + float(np.sum(fit * (self.whole_spread @ fit)))
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


def prepare_system(
    run: Passes,
    protocol: EvaluationProtocol,
    landmarks: int,
    *,
    dtype: Any,
    seed: int = 0,
    points: Passes | None = None,
    roots: Array | None = None,
    with_targets: bool = False,
    factorize: Factorize = local_factor,
    gpu: bool = False,
) -> System:
    """Returns the system of a split, exact where ``landmarks`` are as many as its rows.

    Args:
        run: passes over the reference rows.
        protocol: kernel, lambda and normalisation.
        landmarks: how many, at most.
        dtype: of the arithmetic inside a tile.
        seed: of their choice and of the rows on which the residual is read.
        points: passes over query points; None for the reference rows themselves.
        roots: of the reference rows' weights, (n,).
        with_targets: whether the targets' variance given x will be asked for.
        factorize: makes the factor of an exact system.
        gpu: whether tiles are made on the cards of the processes that have the blocks.

    Raises:
        InvalidInputError: k(x, x) is too large for the arithmetic.
        ConvergenceError: the kernel is not positive definite, or lambda is below rounding.
    """
    inputs, positions = _chosen_inputs(run, protocol, landmarks, dtype, seed, points, roots)
    inputs = replace(inputs, gpu=gpu)
    sums = run("inputs", inputs_pass, inputs, with_targets)[""]
    maximum, n = sums.largest["diagonal"], inputs.n
    if points is not None:
        maximum = max(maximum, points("inputs", diagonal_pass, inputs)[""].largest["diagonal"])
    _require_summable(inputs.kernel, maximum, n, inputs.dtype)
    gram = sums.added["gram"]
    if inputs.is_exact:
        factor, leading_gram = factorize(inputs), gram
    else:
        corner = np.asarray(inputs.kernel(inputs.landmarks), dtype=np.float64)
        factor, leading_gram = inner_factor(corner, gram, inputs.shift), gram[np.ix_(inputs.leading, inputs.leading)]
    leading = np.ascontiguousarray(inputs.landmarks[inputs.leading])
    corner = np.asarray(inputs.kernel(leading), dtype=np.float64)
    largest = typical_eigenvalue(inputs.kernel, leading, n)
    basis, eigenvalues = landmark_directions(corner, leading_gram.copy(), inputs.dtype, largest)
    spectrum = Spectrum(inputs.kernel, inputs.center, leading, basis, eigenvalues, inputs.shift)
    keep = spectrum.kept
    spread = basis.T @ leading_gram @ basis
    return System(
        replace(inputs, basis=basis[:, :keep], filters=spectrum.filters[:keep].astype(np.float32)),
        factor,
        maximum,
        spectrum,
        np.asarray(spread[:keep, :keep]),
        positions,
        sums.added["diagonal"] / n,
        basis.T @ sums.added["targets"] if with_targets else None,
        np.asarray(spread),
    )


def _require_summable(kernel: Kernel, maximum: float, n: int, dtype: Any) -> None:
    """Raise InvalidInputError where sums of n values of k(x, x) overflow."""
    limit = float(np.finfo(dtype).max) / n
    if not maximum <= limit:
        raise InvalidInputError(
            f"embeddings: k(x, x) reaches {maximum:.3g} under {type(kernel).__name__}, and {dtype} sums {n:,} values "
            f"of at most {limit:.3g}; {SCALE_FEATURES}, or use float64 inputs"
        )


def _chosen_inputs(
    run: Passes,
    protocol: EvaluationProtocol,
    landmarks: int,
    dtype: Any,
    seed: int,
    points: Passes | None,
    roots: Array | None,
) -> tuple[SystemInputs, tuple[Array, Array]]:
    """Returns what blocks know for the pass over C'C, and the positions on which the residual is read."""
    n, kernel, dtype = int(sum(run.sizes)), protocol.input_kernel, np.dtype(dtype)
    rng, count, read = stream(seed, "landmarks"), min(landmarks, n), RESIDUAL_ROWS[dtype.itemsize]
    is_exact = count == n
    candidates = np.arange(n) if is_exact else candidate_rows(n, count, rng)
    residual = sampled_rows(n, read, seed)
    centre = np.arange(n)[:: max(1, n // CENTER_ROWS)] if n <= CENTER_ROWS else np.arange(0, n, n // CENTER_ROWS)
    positions = np.unique(np.concatenate([candidates, residual, centre]))
    rows = _sampled(run, protocol, dtype, positions)

    def of(wanted: Array) -> Array:
        return np.asarray(rows[np.searchsorted(positions, wanted)])

    with np.errstate(over="ignore", invalid="ignore"):
        center = kernel.center(of(centre))
        moved = rows if center is None else rows - center.astype(dtype)
        _require_summable(kernel, float(np.max(kernel.diagonal(moved))), n, dtype)
    known = moved[np.searchsorted(positions, candidates)]
    if is_exact:
        chosen, leading = known, choose_landmarks(known, kernel, LEADING, seed)
    else:
        chosen = known[np.sort(rpcholesky(known, kernel, count, rng))]
        leading = np.arange(len(chosen))[:: max(1, round(len(chosen) / LEADING))]
    read_at, asked = of(residual), np.empty(0, dtype=np.intp)
    if points is not None:
        asked = sampled_rows(int(sum(points.sizes)), read, seed, "residual points")
        read_at = np.concatenate([read_at, _sampled(points, protocol, dtype, asked)])
    double = read_at.astype(np.float64) if center is None else read_at.astype(np.float64) - center
    inputs = SystemInputs(protocol, dtype, center, np.ascontiguousarray(chosen), leading, double, n, is_exact, roots)
    return inputs, (residual, asked)
