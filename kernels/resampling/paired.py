"""Is a difference between two models on the same points real? Paired bootstrap and paired permutation.

A metric here is a function of the means of some columns over the points: the mean CRPS is the mean of one column, RMSE
the root of one, a calibration error a function of fifty. Both models' columns are resampled with the same weights, so
what is common to them (hard points) cancels.

The points are taken as independent, as those of NLL, CRPS, absolute and squared errors and PIT values are. CCE values
are not: all of them are estimated from the targets of one reference split, whose noise they share, and neither an
interval nor a p-value from their resampling knows of it. The difference of two mean CCEs belongs to
``congruence_difference``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from congruence.kernels.arrays import Array, require_matrix
from congruence.kernels.dependence.blocks import DependentBlocks, SumOfBlocks, without_each
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.resampling.aggregation import bootstrap_weights, group_sums
from congruence.kernels.rng import stream

GROUPS = 2000
RESAMPLES = 2000


@dataclass(frozen=True)
class PointMetric:
    """A metric as a function of column means: ``columns`` (n, m) for each model, ``summary`` maps (..., m) to (...)."""

    first: Array
    second: Array
    summary: Callable[[Array], Array]

    def __post_init__(self) -> None:
        first, second = require_matrix(self.first, "first"), require_matrix(self.second, "second")
        if first.shape != second.shape:
            raise InvalidInputError(f"first: shape {first.shape}, second: {second.shape}; the points must be the same")
        object.__setattr__(self, "first", first)
        object.__setattr__(self, "second", second)


@dataclass(frozen=True)
class PairedDifference:
    """A metric of two models on the same points.

    Attributes:
        difference: first - second: negative where the first is better, if lower is better.
        low, high: 95 % interval of the difference: of a function of one mean that of ``SumOfBlocks``, of several
            percentiles of the bootstrap.
        p_value: two-sided, of the hypothesis that the metric is the same for both. For a function of one mean by paired
            permutation (which of the two models gave which value is a coin toss at every point). For a function of
            several means by the bootstrap: twice the share of resampled differences on the far side of zero.
    """

    first: float
    second: float
    difference: float
    low: float
    high: float
    p_value: float


@dataclass(frozen=True)
class PairedResampling:
    """Resampling weights for n points, made once and used for every metric.

    Above ``GROUPS`` points, random groups of equal size are resampled instead of single points: the same intervals, at
    a cost that does not grow with n. Of points that depend on each other within ``blocks`` each block is left out in
    turn, and interval and p-value are those of ``SumOfBlocks``.
    """

    n: int
    resamples: int = RESAMPLES
    seed: int = 0
    weights: Array | None = field(default=None, repr=False)
    """What each point counts in means, (n,), of mean 1; equal by default."""
    blocks: DependentBlocks | None = None

    def __post_init__(self) -> None:
        if self.n < 2:
            raise InvalidInputError(f"n: {self.n} points; a paired comparison needs at least two")
        if self.resamples < 20:
            raise InvalidInputError(f"resamples: {self.resamples}; at least 20 are needed for a 95 % interval")

    @cached_property
    def _groups(self) -> Array:
        if self.blocks is not None:
            number = stream(self.seed, "paired groups").permutation(self.blocks.count) % min(self.blocks.count, GROUPS)
            return np.asarray(number[self.blocks.labels])
        order = stream(self.seed, "paired groups").permutation(self.n)
        groups = np.empty(self.n, dtype=np.intp)
        groups[order] = np.arange(self.n) % min(self.n, GROUPS)
        return groups

    @cached_property
    def _sizes(self) -> Array:
        return np.bincount(self._groups, self.weights).astype(np.float64)

    @cached_property
    def _weights(self) -> Array:
        return bootstrap_weights(len(self._sizes), self.resamples, stream(self.seed, "paired bootstrap"))

    @cached_property
    def _swaps(self) -> Array:
        rng = stream(self.seed, "paired permutation")
        return rng.integers(0, 2, size=(self.resamples, len(self._sizes))).astype(np.float64)

    def _sums(self, columns: Array) -> Array:
        counted = columns.T if self.weights is None else columns.T * self.weights
        return group_sums(self._groups, counted, len(self._sizes))

    def compare(self, metric: PointMetric) -> PairedDifference:
        """The difference of one metric with its interval and p-value.

        Raises:
            InvalidInputError: another number of points, or values not finite.
        """
        if len(metric.first) != self.n:
            raise InvalidInputError(f"metric: {len(metric.first)} points, but the resampling was made for {self.n}")
        first, second = self._sums(metric.first), self._sums(metric.second)
        values = [float(metric.summary(sums.sum(axis=0) / self.n)) for sums in (first, second)]
        difference = values[0] - values[1]
        if self.blocks is not None or first.shape[1] == 1:
            one, two = (metric.summary(without_each(sums, self._sizes)) for sums in (first, second))
            found = SumOfBlocks.by_jackknife(one - two, self._sizes)
            low, high = found.interval(difference)
            if self.blocks is not None:
                return PairedDifference(values[0], values[1], difference, low, high, found.p_value(difference))
            reached = self._reached_by_permutation(metric.summary, first, second, difference)
        else:
            size = (self._weights @ self._sizes)[:, None]
            drawn = metric.summary(self._weights @ first / size) - metric.summary(self._weights @ second / size)
            low, high = np.quantile(drawn, [0.025, 0.975]).tolist()
            reached = 1 + 2 * int(min(np.count_nonzero(drawn <= 0.0), np.count_nonzero(drawn >= 0.0)))
        return PairedDifference(
            values[0], values[1], difference, low, high, min(1.0, float((1 + reached) / (self.resamples + 1)))
        )

    def _reached_by_permutation(
        self, summary: Callable[[Array], Array], first: Array, second: Array, difference: float
    ) -> int:
        """In how many permutations the difference is at least as large as the one observed.

        Of several means, exchanged columns are those of a mixture of the two models: a model biased up and one biased
        down by as much have the same calibration error, and their mixture almost none, so that permutation would call
        the chance difference of the two significant nine times in ten.
        """
        swapped = self._swaps @ (first - second)
        null = summary((first.sum(axis=0) - swapped) / self.n) - summary((second.sum(axis=0) + swapped) / self.n)
        # Rounding must not make a tie with the observed difference look smaller than it.
        return int(np.count_nonzero(np.abs(null) >= abs(difference) * (1.0 - 1e-12)))


def mean_of(values: Array) -> Array:
    """The summary of a metric that is the mean of one column."""
    return np.asarray(values[..., 0])


def root_of(values: Array) -> Array:
    """The summary of a metric that is the root of the mean of one column."""
    return np.asarray(np.sqrt(values[..., 0]))
