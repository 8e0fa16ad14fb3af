"""Right-hand sides under the null hypothesis: Delta*_i = psi(y*_i) - E psi(Y_i) with y*_i drawn from the model.

A test needs thousands of them and they need not be exact, only computed alike for observed and drawn targets by a map
that does not look at which is which. So psi is cut to the directions that the model's own draws use, and tabulated over
the range that it was built for: of heavy tails the extremes lie far outside of it, where psi says nothing.

An ensemble's target y and its l members are exchangeable if they come from one distribution: a simulated target is one
of them, and its Delta is taken against the mean of the *others*, as the observed one's is against the ensemble.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from congruence.kernels.arrays import Array, require_targets, row_slices
from congruence.kernels.distributions import Distribution
from congruence.kernels.distributions.base import require_dimension
from congruence.kernels.engine.targets import marginal_kernel, model_output_kernel
from congruence.kernels.errors import BudgetError, InvalidInputError
from congruence.kernels.features import FeatureMap, output_features
from congruence.kernels.kernel_functions import Kernel, OutputScale
from congruence.kernels.resampling.keyed import row_choices, row_draws
from congruence.kernels.streams import stream

TABLE_ENTRIES = 16_384
TABLE_TAIL = 1e-6
VECTOR_TOLERANCE = 1e-2
ENERGY = 0.998  # of the features of the model's draws that the kept directions hold
MAX_DIRECTIONS = 48
PILOT_ROWS = 4096
PURPOSE = "targets of a true version"  # of the band and of the test, which share their draws
_LARGEST = float(np.sqrt(np.finfo(np.float32).max)) / 1e3  # squares are summed over rows and coordinates
_CHUNK_ROWS = 65_536
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
        cls, features: FeatureMap, y: Array, predictive: Distribution, ends: tuple[float, float], *, is_discrete: bool
    ) -> NullFeatures:
        """Returns the directions of ``features`` that hold the draws of the pilot rows.

        Args:
            features: psi.
            y, predictive: targets and predictive distributions of the pilot rows.
            ends: between which all targets lie and all but a millionth of every prediction, for scalars.
            is_discrete: whether predictions lie on whole numbers.

        Raises:
            InvalidInputError: psi overflows single precision.
        """
        directions = _leading_directions(features, y, predictive)
        if y.ndim == 2:
            return cls(features, directions)
        low, high = max(ends[0], features.range[0]), min(ends[1], features.range[1])
        if is_discrete:
            low, high = float(np.floor(low)), float(np.ceil(high))
        step = 1.0 if is_discrete and high - low < TABLE_ENTRIES else max(high - low, 1e-300) / TABLE_ENTRIES
        grid = low + step * np.arange(int(np.ceil((high - low) / step)) + 2)
        return cls(features, directions, (features(grid) @ directions).astype(np.float32), low, step)

    def __call__(self, y: Array) -> Array:
        """Returns psi in the kept directions, (..., r), of targets (...) or (..., q), in single precision."""
        if self.table is None:
            flat = y.reshape(-1, y.shape[-1])
            parts = [
                (self.features(flat[rows]) @ self.directions).astype(np.float32)
                for rows in row_slices(max(len(flat), 1), _CHUNK_ROWS)
            ]
            return np.concatenate(parts).reshape(*y.shape[:-1], self.directions.shape[1])
        position = np.clip((y - self.low) / self.step, 0.0, len(self.table) - 1.000001)
        index = position.astype(np.intp)
        result = self.table[index]
        share = (position - index).astype(np.float32)[..., None]
        if np.any(share):
            result += share * (self.table[index + 1] - result)
        return np.asarray(result)

    def against(self, y: Array, predictive: Distribution) -> NullErrors:
        """Returns what makes Delta of any targets of some rows, with targets y and predictive distributions."""
        pooled = predictive.exchangeable(y)
        if pooled is None:
            some = row_slices(len(y), _CHUNK_ROWS)
            means = [self.features.expectation(predictive[rows]) @ self.directions for rows in some]
            return NullErrors(self, np.concatenate(means).astype(np.float32), 0)
        totals = [np.sum(self(pooled[rows]), axis=1) for rows in row_slices(len(y), _ENSEMBLE_ROWS)]
        return NullErrors(self, np.concatenate(totals), pooled.shape[1] - 1)


@dataclass(frozen=True)
class NullErrors:
    """Delta of any targets of some rows: against E psi, or of ensembles of l against the mean of the others.

    Attributes:
        features: psi.
        center: E psi(Y_i), or of ensembles the sum of psi over the target and all members, (n, r).
        members: l; 0 of distributions.
    """

    features: NullFeatures
    center: Array = field(repr=False)
    members: int

    def __call__(self, values: Array) -> Array:
        """Returns Delta of c targets per row: (n, c) or (n, c, q) to (n, c, r).

        Of ensembles, values are a row's target or members of its ensemble.
        """
        delta = self.features(values)
        if self.members == 0:
            delta -= self.center[:, None, :]
            return delta
        members = np.float32(self.members)
        return np.asarray(delta * (np.float32(1.0) + 1 / members) - self.center[:, None, :] / members)


def features_of_split(
    y: Array, predictive: Distribution, kernel: Kernel | None = None, *, scale: OutputScale = "marginal"
) -> NullFeatures:
    """Returns psi of one model, where all rows are here.

    Args:
        y: targets, (n,) or (n, q).
        predictive: n predictive distributions; ``Samples`` count as an ensemble of draws from the model's distribution.
        kernel: k_Y; by default the one that the *model* states at ``scale`` (``model_output_kernel``).
        scale: of the model's own kernel.

    Raises:
        InvalidInputError: lengths or dimensions differ.
    """
    y = require_targets(y, "y")
    if len(predictive) != len(y):
        raise InvalidInputError(
            f"predictive: {len(predictive)} distributions for {len(y)} targets; give one distribution per row of y"
        )
    require_dimension(predictive, y)
    try:
        own = model_output_kernel(y, predictive, scale) if kernel is None else kernel
        features = drawn_features(own, y, predictive)
    except BudgetError:
        if kernel is not None:
            raise
        features = drawn_features(marginal_kernel(y), y, predictive)
    pilot = pilot_rows(len(y))
    ends = (float(np.min(y)), float(np.max(y)))
    if y.ndim == 1:
        low, high = predictive.interval(TABLE_TAIL)
        ends = min(low, ends[0]), max(high, ends[1])
    return NullFeatures.of(features, y[pilot], predictive[pilot], ends, is_discrete=predictive.is_discrete)


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


def exchangeable_targets(y: Array, predictive: Distribution, count: int, rng: np.random.Generator) -> Array:
    """Returns ``count`` targets of each row that could have been the observed one, (n, count) or (n, count, q)."""
    pooled = predictive.exchangeable(y)
    if pooled is None:
        return np.asarray(predictive.sample(count, seed=rng))
    return np.asarray(pooled[np.arange(len(y))[:, None], rng.integers(pooled.shape[1], size=(len(y), count))])


def pilot_rows(n: int) -> Array:
    """Returns evenly spaced rows that tell which directions a model's draws use."""
    return np.unique(np.linspace(0, n - 1, min(n, PILOT_ROWS)).astype(np.intp))


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
