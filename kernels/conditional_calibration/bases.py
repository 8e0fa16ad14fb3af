"""Directions of the inputs along which PIT scores are looked at: leading eigenvectors U of kernel matrices K_h.

A constant (is anything wrong on average), the protocol's kernel, RBF kernels at several bandwidths (is it wrong
somewhere), and a version's own basis: what a model says of its targets is a function of the input, too. Calibration
given the prediction is the hypothesis of the kernel calibration error (Widmann et al. 2021).

U_h = K_h[:, landmarks] B_h, so that rows enter through sums of products of columns alone, and U is had tile by tile
wherever the rows are. The landmarks and the median distance are read off a uniform sample of rows, which is all of them
up to ``SAMPLE_ROWS``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from congruence.kernels.arrays import Array, row_slices
from congruence.kernels.conditional_calibration.local_reading import Directions
from congruence.kernels.conditional_calibration.null import CalibrationSettings
from congruence.kernels.distributions import Distribution, Samples
from congruence.kernels.engine.blocks import BlockRows, BlockSums, Pass
from congruence.kernels.engine.spectrum import choose_landmarks, directions_of_sums
from congruence.kernels.engine.system import MIN_FILTER, TileMaker, TilePoints, protocol_inputs, tile_slices
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.kernel_functions import RBF, Kernel
from congruence.kernels.pit import rounded_draws
from congruence.kernels.protocol import EvaluationProtocol
from congruence.kernels.rng import stream
from congruence.kernels.scores import matched_targets

LANDMARKS_PER_DIRECTION = 2
SAMPLE_ROWS = 5_000
TILE_ROWS = 1024
CONSTANT = "constant"
PROTOCOL = "protocol's kernel"
DISTANCES = (0.5, 1.0, 2.0)
"""Bandwidths of the RBF bases, in median distances between inputs."""

_PAIRS = 20_000


def distance_name(share: float) -> str:
    """The name of an RBF basis at so many median distances."""
    return f"RBF at {share:g} median distance{'s' if share > 1 else ''}"


def sample_positions(n: int, seed: int) -> Array:
    """Sorted numbers of the rows off which landmarks, distances and regions are read."""
    if n <= SAMPLE_ROWS:
        return np.arange(n)
    return np.sort(stream(seed, "calibration sample").choice(n, SAMPLE_ROWS, replace=False))


def typical_gamma(x: Array, seed: int) -> float | None:
    """1 / (2 d^2) with d the median distance of random pairs of rows; where most are equal, their root mean square.

    None where all rows are equal.
    """
    first, second = stream(seed, "median distance").integers(len(x), size=(2, _PAIRS))
    apart = first != second
    difference = x[first[apart]] - x[second[apart]]
    squares = np.einsum("ij,ij->i", difference, difference).astype(np.float64)
    typical = float(np.median(squares)) or float(np.mean(squares))
    return 0.5 / typical if typical > 0 else None


@dataclass(frozen=True)
class Basis:
    """k directions of the inputs, U = K[:, landmarks] B, with K / n ~ U diag(eigenvalues) U'.

    Attributes:
        name: of the kernel, for reports.
        kernel: k; None of the constant.
        center: subtracted from the inputs; None for none.
        landmarks: (m, d), centred.
        eigenvalues: decreasing, (k,); none before the columns were added up over all rows.
        coordinates: B, (m, k).
        start: of its directions among those of all bases; a version's own come last.
    """

    name: str
    kernel: Kernel | None
    center: Array | None = field(repr=False)
    landmarks: Array = field(repr=False)
    eigenvalues: Array = field(default_factory=lambda: np.empty(0), repr=False)
    coordinates: Array = field(default_factory=lambda: np.empty((0, 0)), repr=False)
    start: int = 0

    @classmethod
    def of(cls, name: str, kernel: Kernel, x: Array, center: Array | None, count: int, seed: int) -> Basis:
        """With at most ``count`` of the rows x as landmarks."""
        points = x if center is None else x - center
        return cls(name, kernel, center, points[choose_landmarks(points, kernel, count, seed)])

    def spanned(self, products: Array, n: int, most: int, start: int = 0) -> Basis:
        """Returns it with at most ``most`` directions, from C'C of its columns C over all n rows."""
        assert self.kernel is not None
        basis, eigenvalues = directions_of_sums(self.kernel, self.landmarks, products, n)
        keep = min(most, len(eigenvalues))
        largest = np.argmax(np.abs(basis), axis=0)
        basis = basis * np.sign(basis[largest, np.arange(basis.shape[1])])  # signs do not hang on rounding
        return replace(self, eigenvalues=eigenvalues[:keep] / n, coordinates=basis[:, :keep], start=start)

    @property
    def place(self) -> slice:
        """Of its directions among those of all bases."""
        return slice(self.start, self.start + len(self.eigenvalues))


class KernelColumns:
    """Columns K[rows, landmarks] of some bases at the rows of a block, tile by tile.

    RBF kernels with the same landmarks, one after the other, share their squared distances.
    """

    def __init__(self, x: Array, bases: Sequence[Basis]) -> None:
        centers = [of.center for of in bases if of.center is not None]
        plain = TilePoints(x)
        moved = TilePoints(x - centers[0]) if centers else plain  # stationary kernels share their centre
        self._parts: list[tuple[Basis, TileMaker | None, TilePoints, TilePoints]] = []
        for of in bases:
            maker = None if of.kernel is None else TileMaker(of.kernel, x.shape[1])
            self._parts.append((of, maker, plain if of.center is None else moved, TilePoints(of.landmarks)))

    def at(self, rows: slice) -> list[Array]:
        """Returns the columns of each basis, (rows, m); a tile's memory may be used again."""
        found: list[Array] = []
        squares: Array | None = None
        known: Array | None = None
        for of, maker, points, others in self._parts:
            if maker is None:
                found.append(np.ones((rows.stop - rows.start, 1), dtype=points.x.dtype))
            elif isinstance(of.kernel, RBF):
                if squares is None or known is not of.landmarks:
                    # Of centred points, whose norms leave the digits of their distances.
                    squares, known = np.asarray((-2.0 * points.x[rows]) @ others.x.T), of.landmarks
                    squares += points.norms[rows, None]
                    squares += others.norms
                    np.maximum(squares, 0.0, out=squares)
                found.append(np.exp(squares * squares.dtype.type(-of.kernel.gamma)))
            else:
                found.append(np.asarray(maker.tile(points, rows, others, slice(0, len(others.x)))))
        return found


@dataclass(frozen=True)
class Bases:
    """The bases that all versions of a split share, which every block knows.

    Attributes:
        settings: of the test.
        protocol: brings embeddings to the kernels' inputs; with its lambda rows are read.
        all: the constant first.
        n: rows of the split.
        seed: of the landmarks, of the null, and of randomised PIT values.
        dtype: of the arithmetic inside a tile.
        smoothing: place and directions that the protocol's kernel keeps, in which rows are read; None without it.
    """

    settings: CalibrationSettings
    protocol: EvaluationProtocol
    all: tuple[Basis, ...] = field(repr=False)
    n: int
    seed: int
    dtype: Any
    smoothing: tuple[slice, Directions] | None = field(default=None, repr=False)

    @classmethod
    def of(
        cls,
        sample: Array,
        n: int,
        settings: CalibrationSettings,
        protocol: EvaluationProtocol,
        *,
        with_protocol: bool,
        seed: int,
    ) -> Bases:
        """Returns the kernels of the bases, without directions yet.

        Args:
            sample: inputs of ``sample_positions`` among n rows, (s, d), in the precision of the arithmetic.
            with_protocol: whether the protocol's kernel has a basis.

        Raises:
            InvalidInputError: fewer than two rows.
        """
        if n < 2:
            raise InvalidInputError("x: one row cannot show what depends on the inputs; give at least two rows")
        gamma = typical_gamma(sample, seed)
        center = None if gamma is None else RBF(gamma).center(sample)
        count = LANDMARKS_PER_DIRECTION * settings.directions
        found = [Basis(CONSTANT, None, None, np.ones((1, 1)), np.ones(1), np.full((1, 1), n**-0.5))]
        if with_protocol:
            moved = None if protocol.input_kernel.center(sample) is None else center
            found.append(Basis.of(PROTOCOL, protocol.input_kernel, sample, moved, count, seed))
        if gamma is not None:
            kernels = {distance_name(share): RBF(gamma / share**2) for share in DISTANCES}
            # The landmarks of the narrowest one cover the inputs for the wider ones.
            narrowest = Basis.of("", next(iter(kernels.values())), sample, center, count, seed)
            found += [replace(narrowest, name=name, kernel=kernel) for name, kernel in kernels.items()]
        return cls(settings, protocol, tuple(found), n, seed, sample.dtype)

    def spanned(self, sums: BlockSums) -> Bases:
        """Returns them with their directions, from what ``bases_pass`` added up."""
        n, smoothing, found = self.n, None, [self.all[0]]
        for of in self.all[1:]:
            products = sums.added[f"products {of.name}"]
            basis = of.spanned(products, n, self.settings.directions, found[-1].place.stop)
            found.append(basis)
            if of.name == PROTOCOL:
                filters = basis.eigenvalues / (basis.eigenvalues + self.protocol.regularization)
                keep = max(1, int(np.count_nonzero(filters >= MIN_FILTER)))
                kept = basis.coordinates[:, :keep]
                moment, total = kept.T @ products @ kept, kept.T @ sums.added[f"total {of.name}"]
                smoothing = slice(basis.start, basis.start + keep), Directions(n, filters[:keep], moment, total)
        return replace(self, all=tuple(found), smoothing=smoothing)

    @property
    def directions(self) -> int:
        """Of all bases."""
        return int(self.all[-1].place.stop)

    def inputs(self, rows: BlockRows) -> Array:
        """Returns x of a block, (rows, d)."""
        return protocol_inputs(self.protocol, rows.inputs(), rows.first, self.dtype)

    def columns(self, x: Array) -> Iterator[tuple[slice, list[Array]]]:
        """Yields rows of a block with inputs x, and the columns of each basis there, (rows, m) each, tile by tile."""
        columns = KernelColumns(x, self.all)
        for rows in tile_slices(slice(0, len(x)), TILE_ROWS):
            yield rows, columns.at(rows)

    def tiles(self, x: Array) -> Iterator[tuple[slice, Array]]:
        """Yields rows of a block with inputs x, and U of all bases there, (rows, k) in single precision, by tiles."""
        coordinates = [basis.coordinates.astype(x.dtype) for basis in self.all]
        for rows, columns in self.columns(x):
            own = [of_kernel @ part for of_kernel, part in zip(columns, coordinates, strict=True)]
            yield rows, np.concatenate(own, axis=1, dtype=np.float32)

    def vectors(self, x: Array) -> Array:
        """Returns U of all bases at inputs x, (rows, k)."""
        found = np.empty((len(x), self.directions), dtype=np.float32)
        for rows, tile in self.tiles(x):  # filled as it comes: tiles joined at the end would be in memory twice
            found[rows] = tile
        return found


def bases_pass(rows: BlockRows, bases: Bases) -> Pass:
    """Returns products of each kernel's columns with each other, and their sums, over the rows of a block."""
    sums = BlockSums()
    for _, columns in bases.columns(bases.inputs(rows)):
        for of, of_kernel in zip(bases.all[1:], columns[1:], strict=True):
            # float64: the small matrices made of it have the squared condition number of the columns.
            exact = of_kernel.astype(np.float64)
            sums.add(f"products {of.name}", exact.T @ exact)
            sums.add(f"total {of.name}", np.sum(exact, axis=0))
    return {"": sums}


def product(left: Array, right: Array) -> Array:
    """left'right of a tile, in the precision of ``left``, (columns, r)."""
    return np.asarray((right.T.astype(left.dtype) @ left).T, dtype=np.float64)


OWN = "own quantiles"
_ROWS = 8192


def own_quantiles(y: Any, predictive: Distribution, levels: Sequence[float], step: float | None = None) -> Array:
    """What a version says of every row, for its own basis: quantiles at ``levels``, (n, q).

    Of draws (``Samples``) those of the target and the l draws together. Given the draws alone, the place of the target
    among them is not uniform under the truth (wide draws leave it in their middle); given all l + 1 values it is. So
    they are rounded to a ``step`` where targets are.
    """
    if not levels:
        return np.empty((len(predictive), 0))
    wanted = np.asarray(levels)[None, :]
    if predictive.draws is None:
        return np.asarray(predictive.predictive_quantile(wanted), dtype=np.float64)
    targets = matched_targets(predictive, y)
    if step is not None and isinstance(predictive, Samples):
        predictive = replace(predictive, values=rounded_draws(predictive.values, targets, step))
    pooled = (predictive[rows].pooled(targets[rows]) for rows in row_slices(len(targets), _ROWS))
    return np.concatenate([Samples(part).predictive_quantile(wanted) for part in pooled if part is not None])


def own_basis(points: Array, settings: CalibrationSettings, *, dtype: Any, seed: int) -> Basis | None:
    """The kernel of a version's own basis, from its quantiles at the sampled rows, (s, q).

    None where they do not depend on the input, or are not finite.
    """
    gamma = typical_gamma(points, seed) if points.shape[1] and np.isfinite(points).all() else None
    if gamma is None:
        return None
    # In the precision of the shared columns: what is rounding in products with them must not become a direction.
    points = points.astype(dtype)
    count = LANDMARKS_PER_DIRECTION * settings.own_directions
    return Basis.of(OWN, RBF(gamma), points, np.median(points, axis=0), count, seed)
