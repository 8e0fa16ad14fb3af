"""Right-hand sides under the null hypothesis: Delta*_i = psi(y*_i) - E psi(Y_i) with y*_i drawn from the model.

A test needs thousands of them and they need not be exact, only computed alike for observed and drawn targets by a map
that does not look at which is which. So psi is cut to the directions that the model's own draws use, and tabulated.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import numpy as np

from congruence.kernels.arrays import Array, require_targets
from congruence.kernels.bandwidths import OutputScale
from congruence.kernels.distributions import Distribution, Samples
from congruence.kernels.distributions.base import require_dimension
from congruence.kernels.errors import BudgetError, InvalidInputError
from congruence.kernels.kernel_functions import Kernel
from congruence.kernels.mean_embeddings.feature_maps import FeatureMap, output_features
from congruence.kernels.mean_embeddings.model_scales import model_output_kernel
from congruence.kernels.mean_embeddings.residuals import marginal_kernel
from congruence.kernels.resampling.keyed import row_choices, row_draws
from congruence.kernels.streams import stream

CHUNK_ROWS = 65_536
TABLE_ENTRIES = 16_384
TABLE_TAIL = 1e-6
VECTOR_TOLERANCE = 1e-2
ENERGY = 0.998  # of the features of the model's draws that the kept directions hold
MAX_DIRECTIONS = 48
PILOT_ROWS = 4096
PURPOSE = "targets of a true version"  # of the band and of the test, which share their draws
_LARGEST = float(np.sqrt(np.finfo(np.float32).max)) / 1e3  # squares are summed over rows and coordinates

Compressed = Callable[[Array], Array]


class NullDraws(Protocol):
    """Observed and simulated Delta of one model, in the same coordinates."""

    @property
    def rank(self) -> int:
        """Number of coordinates r."""

    def observed(self) -> Array:
        """Delta, (n, r)."""

    def of_values(self, values: Array) -> Array:
        """Delta of any targets, c per row: (n, c) or (n, c, q) to (n, c, r)."""


@dataclass(frozen=True)
class DistributionDraws(NullDraws):
    """y* from the predictive law itself: under the null hypothesis y and every y* are exchangeable."""

    y: Array = field(repr=False)
    features: Compressed = field(repr=False)
    mean: Array = field(repr=False)

    @property
    def rank(self) -> int:
        return int(self.mean.shape[1])

    def observed(self) -> Array:
        return np.asarray(self.features(self.y) - self.mean)

    def of_values(self, values: Array) -> Array:
        delta = self.features(values)
        delta -= self.mean[:, None, :]
        return delta


@dataclass(frozen=True)
class EnsembleDraws(NullDraws):
    """An ensemble of l draws per row: any one of (y, y'_1, ..., y'_l) could have been the observation.

    Under the null hypothesis the l + 1 values of a row are exchangeable. A simulated target is one of them, drawn
    uniformly, and its Delta is taken against the mean of the *other* l, as the observed one's is against the ensemble.
    """

    values: Array = field(repr=False)
    features: Compressed = field(repr=False)
    total: Array = field(repr=False)

    @property
    def rank(self) -> int:
        return int(self.total.shape[1])

    def observed(self) -> Array:
        return self._against_the_others(self.features(self.values[:, :1]))[:, 0]

    def of_values(self, values: Array) -> Array:
        """See NullDraws: values that are the row's target or members of its ensemble."""
        return self._against_the_others(self.features(values))

    def _against_the_others(self, features: Array) -> Array:
        members = self.values.shape[1] - 1
        return np.asarray(features * np.float32(1.0 + 1.0 / members) - self.total[:, None, :] / np.float32(members))


@dataclass(frozen=True)
class NullFeatures:
    """psi in the directions that a model's own draws use: fixed once, then the same for every row of a split.

    Attributes:
        features: psi itself.
        compressed: psi in the kept directions, tabulated for scalars.
        directions: these, (rank of psi, r).
    """

    features: FeatureMap = field(repr=False)
    compressed: Compressed = field(repr=False)
    directions: Array = field(repr=False)

    def draws(self, y: Array, predictive: Distribution) -> NullDraws:
        """Observed and simulated Delta of some rows: targets y (n,) or (n, q) and n predictive distributions."""
        if isinstance(predictive, Samples):
            values = exchangeable_values(y, predictive)
            total = np.concatenate(
                [np.sum(self.compressed(values[start : start + 1024]), axis=1) for start in range(0, len(y), 1024)]
            )
            return EnsembleDraws(values, self.compressed, total)
        mean = np.empty((len(y), self.directions.shape[1]), dtype=np.float32)
        for start in range(0, len(y), CHUNK_ROWS):
            rows = slice(start, start + CHUNK_ROWS)
            mean[rows] = self.features.expectation(predictive[rows]) @ self.directions
        return DistributionDraws(y, self.compressed, mean)


def exchangeable_values(y: Array, ensemble: Samples) -> Array:
    """A row's target and the members of its ensemble, of which any could have been the observation, (n, 1 + l)."""
    return np.concatenate([y[:, None], ensemble.values], axis=1)


def drawn_targets(y: Array, predictive: Distribution, positions: Array, count: int, seed: int) -> Array:
    """``count`` targets drawn for the rows ``positions`` of a split, (n, count), or (n, count, q) of vectors."""
    if isinstance(predictive, Samples):
        values = exchangeable_values(y, predictive)
        chosen = row_choices(positions, count, values.shape[1], seed, PURPOSE)
        return np.asarray(values[np.arange(len(values))[:, None], chosen])
    return row_draws(predictive, positions, count, seed, PURPOSE)


def null_features(features: FeatureMap, y: Array, predictive: Distribution, reach: tuple[float, float]) -> NullFeatures:
    """The directions of ``features`` that hold the draws of some rows, the pilot.

    Args:
        features: psi.
        y, predictive: targets and predictive distributions of the pilot rows.
        reach: all targets and all but a millionth of every prediction, for scalars.
    """
    if isinstance(predictive, Samples):
        pilot = exchangeable_values(y, predictive)
    else:
        pilot = predictive.sample(4, seed=stream(0, "pilot draws"))
    return NullFeatures(features, *_compress(features, pilot, reach, y.ndim, predictive.is_discrete))


def pilot_rows(n: int) -> Array:
    """Evenly spaced rows that tell which directions a model's draws use."""
    return np.unique(np.linspace(0, n - 1, min(n, PILOT_ROWS)).astype(np.intp))


def null_draws(
    y: Array, predictive: Distribution, kernel: Kernel | None = None, *, scale: OutputScale = "marginal"
) -> NullDraws:
    """Observed and simulated Delta of one model, by the features of ``features_of_split``."""
    y = require_targets(y, "y")
    return features_of_split(y, predictive, kernel, scale=scale).draws(y, predictive)


def features_of_split(
    y: Array, predictive: Distribution, kernel: Kernel | None = None, *, scale: OutputScale = "marginal"
) -> NullFeatures:
    """psi of one model, where all rows are here.

    Args:
        y: targets, (n,) or (n, q).
        predictive: n predictive distributions; ``Samples`` count as an ensemble of draws from the model's law.
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
    seen = SeenTargets(
        y,
        predictive,
        (float(np.min(y)), float(np.max(y))),
        predictive,
        partial(model_output_kernel, y, predictive),
        partial(marginal_kernel, y),
    )
    return seen.null_features(kernel, scale)


class Reach(Protocol):
    """How far predictions reach."""

    @property
    def is_discrete(self) -> bool:
        """Whether all lie on whole numbers."""

    def interval(self, tail: float) -> tuple[float, float]:
        """Outside of which each has at most ``tail`` on either side."""


@dataclass(frozen=True)
class SeenTargets:
    """By what the features of a version are chosen, the same for every row: some rows, and where all of them lie.

    Attributes:
        y, predictive: targets and predictions of these rows.
        ends: of all targets.
        reach: of all predictions.
        stated: k_Y of the version at a scale.
        marginal: k_Y of all targets.
    """

    y: Array = field(repr=False)
    predictive: Distribution = field(repr=False)
    ends: tuple[float, float]
    reach: Reach = field(repr=False)
    stated: Callable[[OutputScale], Kernel] = field(repr=False)
    marginal: Callable[[], Kernel] = field(repr=False)

    def features(self, kernel: Kernel) -> FeatureMap:
        """psi of the targets themselves."""
        if self.y.ndim == 2:
            return output_features(kernel, self.y, self.predictive)
        return output_features(kernel, np.concatenate([self.y, self.ends]), self.reach)  # type: ignore[arg-type]

    def null_features(self, kernel: Kernel | None, scale: OutputScale = "marginal") -> NullFeatures:
        """psi of simulated targets, by ``kernel`` or the version's own at ``scale``."""
        try:
            features = self._drawn(self.stated(scale) if kernel is None else kernel)
        except BudgetError:
            if kernel is not None:
                raise
            # Targets a thousand bandwidths from all predictions: no draw of the model gets there, so the level is safe.
            features = self._drawn(self.marginal())
        pilot = pilot_rows(len(self.y))
        return null_features(features, self.y[pilot], self.predictive[pilot], self._table_ends())

    def _drawn(self, kernel: Kernel) -> FeatureMap:
        if self.y.ndim == 1:
            return self.features(kernel)
        unobserved = unobserved_targets(self.y, self.predictive)
        return output_features(kernel, unobserved, self.predictive, tolerance=VECTOR_TOLERANCE)

    def _table_ends(self) -> tuple[float, float]:
        if self.y.ndim == 2:
            return 0.0, 0.0
        low, high = self.reach.interval(TABLE_TAIL)
        low, high = min(low, self.ends[0]), max(high, self.ends[1])
        return (float(np.floor(low)), float(np.ceil(high))) if self.reach.is_discrete else (low, high)


def unobserved_targets(y: Array, predictive: Distribution) -> Array:
    """Targets that do not tell the observed ones from draws: nodes at the observed ones would favour those."""
    return exchangeable_targets(y, predictive, 1, stream(0, "exchangeable targets"))[:, 0]


def exchangeable_targets(y: Array, predictive: Distribution, count: int, rng: np.random.Generator) -> Array:
    """``count`` targets of each row that could have been the observed one, (n, count) or (n, count, q)."""
    if not isinstance(predictive, Samples):
        return np.asarray(predictive.sample(count, seed=rng))
    pooled = exchangeable_values(y, predictive)
    return np.asarray(pooled[np.arange(len(y))[:, None], rng.integers(pooled.shape[1], size=(len(y), count))])


def _compress(
    features: FeatureMap, pilot: Array, reach: tuple[float, float], dimensions: int, is_discrete: bool
) -> tuple[Compressed, Array]:
    """psi in the leading directions of its second moment over the pilot values, and those directions (rank, r)."""
    flat = pilot.reshape(-1) if dimensions == 1 else pilot.reshape(-1, pilot.shape[-1])
    if len(flat) > 8 * PILOT_ROWS:
        flat = flat[:: len(flat) // (8 * PILOT_ROWS) + 1]
    with np.errstate(over="ignore", invalid="ignore"):
        values = features(flat)
    _require_single_precision(values)
    energy, axes = np.linalg.eigh(values.T @ values)
    held = np.cumsum(energy[::-1]) / np.sum(energy)
    count = min(int(np.searchsorted(held, ENERGY)) + 1, MAX_DIRECTIONS, len(energy))
    directions = np.ascontiguousarray(axes[:, : -count - 1 : -1])
    if dimensions == 2:
        return _Projected(features, directions), directions
    low, high = reach
    step = 1.0 if is_discrete and high - low < TABLE_ENTRIES else max(high - low, 1e-300) / TABLE_ENTRIES
    grid = low + step * np.arange(int(np.ceil((high - low) / step)) + 2)
    return _Table(low, step, (features(grid) @ directions).astype(np.float32)), directions


def _require_single_precision(values: Array) -> None:
    """Raise InvalidInputError where draws in single precision, or their squares, would overflow."""
    finite = np.isfinite(values)
    largest = float(np.max(np.abs(values[finite]), initial=0.0))
    if not finite.all() or largest > _LARGEST:
        raise InvalidInputError(
            f"y: the output kernel's features reach {largest:.3g} on targets and predictions, the limit of single "
            f"precision is {_LARGEST:.3g}; rescale both to a spread near 1, or use a stationary output kernel (RBF)"
        )


@dataclass(frozen=True)
class _Table:
    """psi of scalar targets by linear interpolation; beyond its ends, the value at the end."""

    low: float
    step: float
    values: Array = field(repr=False)

    def __call__(self, y: Array) -> Array:
        position = np.clip((y - self.low) / self.step, 0.0, len(self.values) - 1.000001)
        index = position.astype(np.intp)
        result = self.values[index]
        share = (position - index).astype(np.float32)[..., None]
        if np.any(share):
            result += share * (self.values[index + 1] - result)
        return np.asarray(result)


@dataclass(frozen=True)
class _Projected:
    """psi of vector targets, evaluated at its nodes."""

    features: FeatureMap = field(repr=False)
    directions: Array = field(repr=False)

    def __call__(self, y: Array) -> Array:
        flat = y.reshape(-1, y.shape[-1])
        parts = [
            (self.features(flat[start : start + CHUNK_ROWS]) @ self.directions).astype(np.float32)
            for start in range(0, max(len(flat), 1), CHUNK_ROWS)
        ]
        return np.concatenate(parts).reshape(*y.shape[:-1], self.directions.shape[1])
