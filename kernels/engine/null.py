"""What a true version would show: targets drawn for it, their Delta, and the mean CCE that is expected.

Under the null hypothesis right-hand sides are Delta*_i = psi(y*_i) - E psi(Y_i) with y*_i drawn from the model. A test
needs thousands of them and they need not be exact, only computed alike for observed and drawn targets by a map that
does not look at which is which. So psi is cut to the directions that the model's own draws use, and tabulated over the
range that it was built for: of heavy tails the extremes lie far outside of it, where psi says nothing.

An ensemble's target y and its l members are exchangeable if they come from one distribution: a simulated target is one
of them, and its Delta is taken against the mean of the *others*, as the observed one's is against the ensemble.

Rows that depend on each other are not exchangeable with draws one by one. There the simulated splits are the observed
Delta with one random sign for every block of rows: if the model is the truth, Delta has mean 0 given the inputs, and
what signs of whole blocks make of a sum has its mean and its covariance, whatever the dependence inside the blocks. p
then holds in the limit of many blocks. So does that of corrected draws, which are not exchangeable with a target: each
row has a sign of its own.

The noise floor is a root of expected squares, and a mean CCE is a mean of norms: a true version lies below its floor.
What is expected of its mean CCE is the same mean of norms of drawn targets. A few drawn splits serve for hundreds,
since signs drawn for the rows leave the covariance of the smoothed error as it is (a multiplier bootstrap; Wu 1986).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from congruence.kernels.arrays import Array, root_and_square_means, row_slices
from congruence.kernels.dependence.blocks import DependentBlocks, enlargement, widening
from congruence.kernels.distributions import Distribution
from congruence.kernels.engine.blocks import BlockSums, evenly_spaced
from congruence.kernels.engine.congruence_test import ENTRY_BITS, POOL_BITS, SimulatedSplits, band_of
from congruence.kernels.engine.results import CongruenceUncertainty, ExpectedCongruence
from congruence.kernels.engine.spectrum import SpectralSmoother
from congruence.kernels.engine.targets import in_cells, output_features
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.finite_features import FeatureMap
from congruence.kernels.kernel_functions import Kernel
from congruence.kernels.rng import row_choices, row_codes, row_uniforms, stream, sums_by_code, walsh_hadamard

MANY_ROWS = 10_000  # of a split, beyond which the test smooths in fewer directions
FILTER_OF_MANY = 0.05
SPLITS = 16  # drawn for the expected mean CCE
SIGN_BITS = 4  # 16 draws of the signs for each of them
ROWS = 8192  # whose draws are in memory at once
_SIGNS = "signs of blocks of rows"
TABLE_ENTRIES = 16_384
TABLE_TAIL = 1e-6
VECTOR_TOLERANCE = 1e-2
ENERGY = 0.998  # of the features of the model's draws that the kept directions hold
MAX_DIRECTIONS = 48
PILOT_ROWS = 4096  # that tell which directions a model's draws use
PURPOSE = "targets of a true version"  # of the band and of the test, which share their draws
_LARGEST = float(np.sqrt(np.finfo(np.float32).max)) / 1e3  # squares are summed over rows and coordinates
_NULL_ROWS = 65_536
_ENSEMBLE_ROWS = 1024


@dataclass(frozen=True)
class NullFeatures:
    """psi in the directions that a model's own draws use: fixed once, then the same for every row of a split.

    Attributes:
        features: psi itself.
        directions: the kept ones, (rank of psi, r).
        table: psi in them at ``low`` + j ``step``, (entries, r); None for vector targets.
        low, step: of the table.
    """

    features: FeatureMap = field(repr=False)
    directions: Array = field(repr=False)
    table: Array | None = field(default=None, repr=False)
    low: float = 0.0
    step: float = 1.0

    @classmethod
    def of(
        cls, features: FeatureMap, y: Array, predictive: Distribution, ends: tuple[float, float], reach: Any
    ) -> NullFeatures:
        """Returns the directions of ``features`` that hold the draws of the pilot rows.

        Args:
            features: psi.
            y, predictive: targets and predictive distributions of the pilot rows.
            ends: between which all targets lie, for scalars.
            reach: all predictions: ``interval`` says where all but a millionth of every one lies.

        Raises:
            InvalidInputError: psi overflows single precision.
        """
        directions = _leading_directions(features, y, predictive)
        if y.ndim == 2:
            return cls(features, directions)
        (low, high), (least, largest) = reach.interval(TABLE_TAIL), features.range
        low, high = max(min(low, ends[0]), least), min(max(high, ends[1]), largest)
        if predictive.is_discrete:
            low, high = float(np.floor(low)), float(np.ceil(high))
        step = 1.0 if predictive.is_discrete and high - low < TABLE_ENTRIES else max(high - low, 1e-300) / TABLE_ENTRIES
        table = features.on_grid(low, step, int(np.ceil((high - low) / step)) + 2, directions)
        return cls(features, directions, table.astype(np.float32), low, step)

    def __call__(self, y: Array) -> Array:
        """Returns psi in the kept directions, (..., r), of targets (...) or (..., q), in single precision."""
        if self.table is None:
            flat, psi = y.reshape(-1, y.shape[-1]), self.features.along(self.directions)
            parts = [psi(flat[rows]).astype(np.float32) for rows in row_slices(max(len(flat), 1), _NULL_ROWS)]
            return np.concatenate(parts).reshape(*y.shape[:-1], self.directions.shape[1])
        position = np.clip((y - self.low) / self.step, 0.0, len(self.table) - 1.000001)
        index = position.astype(np.intp)
        result = self.table[index]
        share = (position - index).astype(np.float32)[..., None]
        if np.any(share):
            result += share * (self.table[index + 1] - result)
        return np.asarray(result)

    def against(self, y: Array, predictive: Distribution) -> Callable[[Array], Array]:
        """Returns what makes Delta of c targets a row, (n, c) or (n, c, q) to (n, c, r), of rows with targets y.

        Against E psi; of ensembles, whose values are the target or members, against the mean of the others.
        """
        pooled = predictive.exchangeable(y)
        if pooled is None:
            some = row_slices(len(y), _NULL_ROWS)
            means = [self.features.expectation(predictive[rows]) @ self.directions for rows in some]
            center = np.concatenate(means).astype(np.float32)[:, None]
            return lambda values: np.asarray(self(values) - center)
        totals = [np.sum(self(pooled[rows]), axis=1) for rows in row_slices(len(y), _ENSEMBLE_ROWS)]
        total, members = np.concatenate(totals)[:, None], np.float32(pooled.shape[1] - 1)
        return lambda values: np.asarray(self(values) * (np.float32(1.0) + 1 / members) - total / members)


def features_of_split(y: Array, predictive: Distribution, kernel: Kernel) -> NullFeatures:
    """Returns psi of one model, where all n rows are here, of targets y (n,) or (n, q)."""
    features, pilot = drawn_features(kernel, y, predictive), evenly_spaced(len(y), PILOT_ROWS)
    return NullFeatures.of(features, y[pilot], predictive[pilot], (float(np.min(y)), float(np.max(y))), predictive)


def drawn_features(kernel: Kernel, y: Array, predictive: Distribution) -> FeatureMap:
    """Returns psi for simulated targets: nodes at the observed vectors would favour these."""
    if y.ndim == 1:
        return output_features(kernel, y, predictive)
    unobserved = exchangeable_targets(y, predictive, 1, stream(0, "exchangeable targets"))[:, 0]
    return output_features(kernel, unobserved, predictive, tolerance=VECTOR_TOLERANCE)


def drawn_targets(y: Array, predictive: Distribution, positions: Array, count: int, seed: int) -> Array:
    """Returns ``count`` targets drawn for the rows ``positions`` of a split, (n, count) or (n, count, q)."""
    values = predictive.exchangeable(y)
    if values is not None:
        chosen = row_choices(positions, count, values.shape[1], seed, PURPOSE)
        return np.asarray(values[np.arange(len(values))[:, None], chosen])
    return row_draws(predictive, positions, count, seed, PURPOSE)


def row_draws(predictive: Distribution, positions: Array, count: int, seed: int, purpose: str) -> Array:
    """``count`` independent draws from the law of each row, (n, count) or (n, count, q)."""
    return predictive.sample_by(lambda numbers, use: row_uniforms(positions, numbers, seed, f"{purpose}{use}"), count)


def exchangeable_targets(y: Array, predictive: Distribution, count: int, rng: np.random.Generator) -> Array:
    """Returns ``count`` targets of each row that could have been the observed one, (n, count) or (n, count, q)."""
    pooled = predictive.exchangeable(y)
    if pooled is None:
        return np.asarray(predictive.sample(count, seed=rng))
    return np.asarray(pooled[np.arange(len(y))[:, None], rng.integers(pooled.shape[1], size=(len(y), count))])


def _leading_directions(features: FeatureMap, y: Array, predictive: Distribution) -> Array:
    """Returns the leading directions of the second moment of psi over draws of the pilot rows, (rank, r)."""
    pilot = predictive.exchangeable(y)
    if pilot is None:
        pilot = predictive.sample(4, seed=stream(0, "pilot draws"))
    flat = pilot.reshape(-1, *y.shape[1:])
    flat = flat[:: len(flat) // (8 * PILOT_ROWS) + 1] if len(flat) > 8 * PILOT_ROWS else flat
    if y.ndim == 1:
        flat = np.clip(flat, *features.range)
    with np.errstate(over="ignore", invalid="ignore"):
        values = features(flat)
    finite = np.isfinite(values)
    largest = float(np.max(np.abs(values[finite]), initial=0.0))
    if not finite.all() or largest > _LARGEST:
        raise InvalidInputError(
            f"y: the output kernel's features reach {largest:.3g} on targets and predictions, the limit of single "
            f"precision is {_LARGEST:.3g}; rescale both to a spread near 1, or use a stationary output kernel (RBF)"
        )
    energy, axes = np.linalg.eigh(values.T @ values)
    held = np.cumsum(energy[::-1]) / np.sum(energy)
    count = min(int(np.searchsorted(held, ENERGY)) + 1, MAX_DIRECTIONS, len(energy))
    return np.ascontiguousarray(axes[:, : -count - 1 : -1])


def tested_directions(filters: Array, n: int) -> int:
    """Returns how many leading directions the test smooths in: all up to 10,000 rows, then those that keep 5 %.

    A test is exact for any statistic; those left out hold some 1 % of the squared weights and most of the work.
    """
    return len(filters) if n <= MANY_ROWS else max(1, int((filters >= FILTER_OF_MANY).sum()))


@dataclass(frozen=True)
class SimulatedVersion:
    """What is drawn for a version, from sums over rows.

    Attributes:
        expected: psi of the k_Y of the mean CCE; None where the expected mean CCE is not asked for.
        tested: psi of the test's k_Y; None without a test.
        draws: simulated sets of targets of the test.
        directions: leading ones of U that the test smooths in.
        seed: of signs and draws.
        blocks: of all rows of the split, where they depend on each other.
        steps: of the cells in which targets are judged, see ``pit.cell_steps``.
    """

    expected: NullFeatures | None = field(repr=False)
    tested: NullFeatures | None = field(repr=False)
    draws: int
    directions: int
    seed: int
    blocks: DependentBlocks | None = field(default=None, repr=False)
    steps: tuple[float | None, ...] | None = None

    @property
    def splits(self) -> SimulatedSplits:
        """Of the test."""
        if self.blocks is not None:
            return SimulatedSplits(self.draws, 1, 1, self.seed)
        return SimulatedSplits(self.draws, POOL_BITS, ENTRY_BITS, self.seed)

    def add(
        self,
        sums: BlockSums,
        vectors: Array,
        targets: Array,
        predictive: Distribution,
        positions: Array,
        *,
        roots: Array | None = None,
        dtype: Any = np.float64,
    ) -> None:
        """Add what some rows contribute.

        Args:
            sums: changed in place; those of the test are made in ``dtype``.
            vectors: U, (rows, k).
            targets, predictive: of the rows.
            positions: of the rows in the split.
            roots: of their weights in the reference, where they count unequally.
        """
        targets, predictive = in_cells(targets, predictive, positions, self.seed, self.steps)
        weights = np.float32(1.0) if roots is None else roots.astype(np.float32)[:, None, None]
        leading, splits = np.ascontiguousarray(vectors[:, : self.directions]), self.splits
        has_signs = self.blocks is not None or predictive.independent_pairs is not None
        if self.tested is not None and has_signs:
            labels = positions if self.blocks is None else self.blocks.labels[positions]
            observed = (self.tested.against(targets, predictive)(targets[:, None]) * weights)[:, 0]
            codes = row_codes(labels, splits.bits, self.seed, _SIGNS)
            sums.add("null", sums_by_code(leading, observed, codes, splits.bits))
        if self.blocks is not None:
            if self.tested is not None and self.blocks.sparse:
                counts = np.bincount(labels, targets - predictive.mean(), self.blocks.count)
                sums.add("counts of blocks", counts)
            return
        count = 2**POOL_BITS - 1 if self.expected is None else SPLITS
        drawn = drawn_targets(targets, predictive, positions, count, self.seed)
        if self.expected is not None:
            delta = self.expected.against(targets, predictive)(drawn) * weights
            codes = row_codes(positions, SIGN_BITS, self.seed, "signs of a true version")
            sums.add("expected", sums_by_code(vectors, delta.reshape(len(delta), -1), codes, SIGN_BITS))
        if self.tested is not None and not has_signs:
            values = np.concatenate([targets[:, None], drawn[:, : 2**POOL_BITS - 1]], axis=1)
            pool = self.tested.against(targets, predictive)(values) * weights
            null = sums.sum_of("null", (2**splits.bits, leading.shape[1], pool.shape[2]), dtype)
            splits.add(null, leading, pool, positions)

    def null_coefficients(self, sums: BlockSums, filters: Array) -> Array:
        """Returns what the smoother keeps of the observed split and then of each simulated one, (r, k, 1 + draws)."""
        kept = self.splits.coefficients(np.asarray(sums.added["null"], dtype=np.float32))
        kept = kept * filters[: self.directions, None]
        if self.blocks is not None:  # enlarged, as so few blocks ask for
            kept[1:] *= enlargement(self.blocks.count, sums.added.get("counts of blocks"))
        return np.ascontiguousarray(kept.transpose(2, 1, 0), dtype=np.float32)


def coefficients_of_split(
    smoother: SpectralSmoother,
    y: Array,
    predictive: Distribution,
    features: NullFeatures,
    *,
    draws: int,
    seed: int,
    blocks: DependentBlocks | None = None,
) -> Array:
    """Returns what the smoother keeps of the observed split and of each simulated one, where all rows are here.

    Targets and predictions are those that are judged, see ``in_cells``.
    """
    version = SimulatedVersion(None, features, draws, len(smoother.filters), seed, blocks)
    found, n = BlockSums(), len(y)
    for start in range(0, n, ROWS):
        rows = slice(start, min(start + ROWS, n))
        positions = np.arange(rows.start, rows.stop)
        version.add(found, smoother.analysis[rows], y[rows], predictive[rows], positions, dtype=np.float32)
    return version.null_coefficients(found, smoother.filters)


def true_coefficients(sums: BlockSums, filters: Array) -> Array:
    """Returns what the smoother keeps of every split drawn for ``expected``, under all signs, (splits x signs, k, r).

    The signs that leave a drawn split as it is are as good as any: it was drawn.
    """
    kept = walsh_hadamard(np.asarray(sums.added["expected"], dtype=np.float32)) * filters[:, None]
    signs, k, columns = kept.shape
    rank = columns // SPLITS
    return np.ascontiguousarray(kept.reshape(signs, k, -1, rank).transpose(2, 0, 1, 3)).reshape(-1, k, rank)


def expected_at(
    synthesis: Array, drawn: Array, mean_squared_floor: float, weights: Array | None = None
) -> ExpectedCongruence:
    """Returns the mean CCE of a true version at points U (p, k), from what the smoother keeps of drawn Delta.

    Args:
        synthesis: U, (p, k).
        drawn: under signs, (B, k, r).
        mean_squared_floor: over the points: directions and features that were left out hold a small known share of it.
        weights: of the points, (p,), where they count unequally.
    """

    def squares_of(coefficients: Array) -> Array:
        smoothed = synthesis @ coefficients
        return np.asarray(np.einsum("bij,bij->bi", smoothed, smoothed))

    means, squares = root_and_square_means(squares_of, drawn, len(synthesis), weights)
    means *= np.sqrt(mean_squared_floor / max(float(np.mean(squares)), np.finfo(float).tiny))
    return ExpectedCongruence(float(np.mean(means)), *band_of(means))


def expected_by_blocks(uncertainty: CongruenceUncertainty, blocks: int) -> ExpectedCongruence:
    """Returns the same of rows that depend on each other: what residuals make with one sign for every block.

    The band is drawn apart as far as so few blocks ask for (``dependence.blocks.widening``).
    """
    assert uncertainty.noise_means is not None
    mean = float(np.mean(uncertainty.noise_means))
    low, high = (mean + widening(blocks) * (end - mean) for end in band_of(uncertainty.noise_means))
    return ExpectedCongruence(mean, max(low, 0.0), high)
