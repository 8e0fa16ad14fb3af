"""The system of a split as it is prepared: on how many landmarks, what blocks add to it, its factor, its directions."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any

import numpy as np
import scipy.linalg

from congruence.kernels.arrays import Array, to_numpy
from congruence.kernels.engine.blocks import BlockRows, BlockSums, Pass, Passes, chosen_in
from congruence.kernels.engine.spectrum import (
    LEADING,
    candidate_rows,
    choose_landmarks,
    directions_of_sums,
    positive_diagonal,
    rpcholesky,
)
from congruence.kernels.engine.system import (
    Factor,
    LocalFactor,
    System,
    SystemInputs,
    kept_directions,
    projected,
    protocol_inputs,
)
from congruence.kernels.errors import ConvergenceError, InvalidInputError
from congruence.kernels.kernel_functions import CENTER_ROWS, Kernel
from congruence.kernels.protocol import EvaluationProtocol
from congruence.kernels.rng import stream

EXACT_ROWS = 5000
"""Up to so many rows all are landmarks."""

MOST_EXACT_ROWS = 10_000
"""That one process factors: larger matrices end a threaded LAPACK, and are factored by tiles."""
RESIDUAL_ROWS = {8: 1024, 4: 512}  # on which the residual is read, in double precision; by the bytes of a tile's number
JITTER = 1e-12
KEPT_BYTES = 2**27
"""Of tiles that one process keeps between passes of a split, over all tries of landmarks."""

SCALE_FEATURES = "scale the features (each to a standard deviation of 1, or every row to norm 1)"
NEARLY_CONSTANT = 0.01
VARIATION_POINTS = 46  # with 1,035 pairs


@dataclass(frozen=True)
class Accuracy:
    """How many landmarks an answer stands on: all rows of a short split, else as its certificate needs.

    Tries begin with ``first`` and go on until the bound on the error of every version's mean CCE is at most ``share``
    of it (of its noise floor, where that is larger), or shows that ``largest`` would not bring it there.

    Attributes:
        share: of the mean CCE or its noise floor that its certificate may reach.
        first: landmarks to begin with.
        largest: landmarks to end with; their work grows with the square.
        exact_rows: up to so many rows all are landmarks.
    """

    share: float = 1e-3
    first: int = 512
    largest: int = 4096
    exact_rows: int = EXACT_ROWS

    @classmethod
    def of(cls, landmarks: int | None) -> Accuracy:
        """Returns so many landmarks, taken as they are; the default for None.

        Raises:
            InvalidInputError: fewer than one.
        """
        if landmarks is None:
            return cls()
        if landmarks < 1:
            raise InvalidInputError(f"landmarks: {landmarks} were asked for; give at least 1")
        return cls(first=landmarks, largest=landmarks, exact_rows=0)

    @classmethod
    def exact(cls) -> Accuracy:
        """Returns all rows as landmarks, whatever their number."""
        return cls(exact_rows=2**62)

    def counts(self, n: int) -> list[int]:
        """Returns the landmark counts that n rows may be given, each at most 1.4 times the one before."""
        if n <= self.exact_rows:
            return [n]
        largest = min(self.largest, n)
        steps = range(int(np.ceil(2.0 * np.log2(max(largest / self.first, 1.0)))))
        return [*(round(self.first * 2.0 ** (step / 2.0)) for step in steps), largest]

    def next_count(self, n: int, tries: Sequence[tuple[int, float]]) -> int | None:
        """Returns the next of the counts to try, at most twice the last one; None where none promises to be enough.

        A certificate is expected to go on falling at the rate of the last two tries, after one try as 1 / landmarks; a
        second one is made in any case.

        Args:
            n: rows.
            tries: landmarks and the certificate that they left, as a share of the mean CCE.
        """
        (fewer, before), (landmarks, worst) = [(0, np.inf), (0, np.inf), *tries][-2:]
        rate = np.log(before / worst) / np.log(landmarks / fewer) if fewer else 1.0
        more = [count for count in self.counts(n) if count > landmarks]
        enough = [count for count in more if worst * (landmarks / count) ** rate <= self.share]
        if fewer and not enough:
            return None
        return max((count for count in more if count <= min([2 * landmarks, *enough])), default=None)


def sample_pass(rows: BlockRows, protocol: EvaluationProtocol, dtype: Any, positions: Array) -> Pass:
    """A pass that keeps the inputs of some rows of the split."""
    sums, chosen = BlockSums(), chosen_in(positions, rows.first, len(rows))
    sums.keep("inputs", protocol_inputs(protocol, rows.inputs(), rows.first, dtype)[chosen])
    return {"": sums}


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


@dataclass
class Preparation:
    """What the systems of a split are prepared from, exact where the landmarks are as many as its rows.

    Attributes:
        run: passes over the reference rows.
        protocol: kernels, lambda and normalisation.
        seed: of landmarks, of the rows on which the residual is read, and of draws.
        points: passes over the points at which CCE is wanted; None for the reference rows themselves.
        roots: of the weights of the reference rows, (n,); None where they count equally.
        dtype: of the arithmetic inside a tile; by default double precision where the system may be exact.
        factorize: makes the factor of an exact system.
        gpu: whether tiles are made on the cards of the processes that have the blocks.
        n, m: reference rows and points.
        kept: tiles between passes of this process; None where others have the blocks.
    """

    run: Passes
    protocol: EvaluationProtocol
    seed: int = 0
    _: KW_ONLY
    points: Passes | None = None
    roots: Array | None = None
    dtype: Any = None
    factorize: Factorize = local_factor
    gpu: bool = False
    n: int = field(init=False)
    m: int = field(init=False)
    kept: dict[tuple[int, ...], Array] | None = field(init=False)

    def prepared(self, landmarks: int, dtype: Any, needs_targets: bool) -> System:
        """Returns the system on so many landmarks, with U'[1, y] where targets are needed.

        Raises:
            InvalidInputError: k(x, x) is too large for the arithmetic.
            ConvergenceError: the kernel is not positive definite, or lambda is below rounding.
        """
        inputs, positions = self._chosen_inputs(landmarks, dtype)
        if self.kept is not None and self.points is None and not inputs.is_exact and not self.gpu:
            of_others = sum(tile.nbytes for (asked, *_), tile in self.kept.items() if asked)
            own = self.n * (dtype.itemsize * len(inputs.landmarks) + 8 * len(inputs.residual))
            inputs = replace(inputs, kept=self.kept if of_others + own <= KEPT_BYTES else None)
        sums = self.run("inputs", inputs_pass, inputs, needs_targets)[""]
        kernel, maximum, gram = inputs.kernel, sums.largest["diagonal"], sums.added["gram"]
        if self.points is not None:
            maximum = max(maximum, self.points("inputs", diagonal_pass, inputs)[""].largest["diagonal"])
        _require_summable(kernel, maximum, self.n, dtype)
        if inputs.is_exact:
            factor, leading_gram = self.factorize(inputs), gram
        else:
            corner = np.asarray(kernel(inputs.landmarks), dtype=np.float64)
            factor = inner_factor(corner, gram, inputs.shift)
            leading_gram = gram[np.ix_(inputs.leading, inputs.leading)]
        leading = np.ascontiguousarray(inputs.landmarks[inputs.leading])
        basis, eigenvalues = directions_of_sums(kernel, leading, leading_gram.copy(), self.n)
        filters = eigenvalues / (eigenvalues + inputs.shift)
        keep = kept_directions(filters)
        return System(
            replace(inputs, basis=basis[:, :keep], filters=filters[:keep].astype(np.float32)),
            factor,
            maximum,
            basis,
            eigenvalues,
            np.asarray(basis.T @ leading_gram @ basis),
            positions,
            sums.added["diagonal"] / self.n,
            basis.T @ sums.added["targets"] if needs_targets else None,
        )

    def _chosen_inputs(self, landmarks: int, dtype: Any) -> tuple[SystemInputs, tuple[Array, Array]]:
        """Returns what blocks know for the pass over C'C, and the positions on which the residual is read."""
        n, kernel = self.n, self.protocol.input_kernel
        rng, count = stream(self.seed, "landmarks"), min(landmarks, n)
        is_exact = count == n

        def sampled(of: int, purpose: str) -> Array:
            return np.sort(stream(self.seed, purpose).choice(of, min(RESIDUAL_ROWS[dtype.itemsize], of), replace=False))

        candidates = np.arange(n) if is_exact else candidate_rows(n, count, rng)
        residual = sampled(n, "residual rows")
        centre = np.arange(n)[:: max(1, n // CENTER_ROWS)] if n <= CENTER_ROWS else np.arange(0, n, n // CENTER_ROWS)
        positions = np.unique(np.concatenate([candidates, residual, centre]))
        rows = self._sampled(self.run, dtype, positions)
        center_rows, candidate_inputs, read_at = (
            rows[np.searchsorted(positions, wanted)] for wanted in (centre, candidates, residual)
        )
        with np.errstate(over="ignore", invalid="ignore"):
            center = kernel.center(center_rows)
            moved = rows if center is None else rows - center.astype(dtype)
            _require_summable(kernel, float(np.max(kernel.diagonal(moved))), n, dtype)
        known = candidate_inputs if center is None else candidate_inputs - center.astype(dtype)
        if is_exact:
            chosen, leading = known, choose_landmarks(known, kernel, LEADING, self.seed)
        else:
            chosen = known[np.sort(rpcholesky(known, kernel, count, rng))]
            leading = np.arange(len(chosen))[:: max(1, round(len(chosen) / LEADING))]
        asked = np.empty(0, dtype=np.intp)
        if self.points is not None:
            asked = sampled(self.m, "residual points")
            read_at = np.concatenate([read_at, self._sampled(self.points, dtype, asked)])
        double = read_at.astype(np.float64) if center is None else read_at.astype(np.float64) - center
        inputs = SystemInputs(
            self.protocol,
            dtype,
            center,
            np.ascontiguousarray(chosen),
            leading,
            double,
            n,
            is_exact,
            self.roots,
            gpu=self.gpu,
            asked=landmarks,
        )
        return inputs, (residual, asked)

    def _sampled(self, run: Passes, dtype: Any, positions: Array) -> Array:
        return np.asarray(run("sample", sample_pass, self.protocol, dtype, positions)[""].rows("inputs"))


def _require_summable(kernel: Kernel, maximum: float, n: int, dtype: Any) -> None:
    """Raise InvalidInputError where sums of n values of k(x, x) overflow."""
    limit = float(np.finfo(dtype).max) / n
    if not maximum <= limit:
        raise InvalidInputError(
            f"embeddings: k(x, x) reaches {maximum:.3g} under {type(kernel).__name__}, and {dtype} sums {n:,} values "
            f"of at most {limit:.3g}; {SCALE_FEATURES}, or use float64 inputs"
        )


class NearlyConstantKernelWarning(UserWarning):
    """The input kernel hardly depends on its inputs, so that CCE hardly depends on x."""


def kernel_variation(x: Array, kernel: Kernel) -> float:
    """Relative standard deviation of k(x, x') over random pairs: near 0 means a kernel that ignores its input."""
    points = x[np.sort(stream(0, "kernel variation").choice(len(x), min(len(x), VARIATION_POINTS), replace=False))]
    if len(points) < 3:
        return float("nan")
    center = kernel.center(points)
    gram = kernel(points if center is None else points - center)
    values = gram[~np.eye(len(gram), dtype=bool)].astype(np.float64)
    mean = float(abs(values.mean()))
    return float((values / mean).std()) if mean > 0 else float("inf")


def warn_if_nearly_constant(variation: float, *, stacklevel: int = 3) -> None:
    """Warn of a kernel that varies so little."""
    if variation < NEARLY_CONSTANT:
        warnings.warn(
            f"the input kernel varies by {variation:.2g} of its mean between points, so CCE hardly depends on x: "
            "inputs that are (nearly) the same, or unit-norm embeddings with gamma = 1/d, which belongs to raw ones; "
            "use gamma = 1 on unit norm, or check the inputs",
            NearlyConstantKernelWarning,
            stacklevel=stacklevel,
        )
