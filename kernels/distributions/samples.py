"""Empirical predictive distributions: ensembles, Monte-Carlo dropout, posterior draws."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import scipy.special

from congruence.kernels.arrays import Array
from congruence.kernels.distributions.base import align_levels, as_numbers
from congruence.kernels.distributions.empirical import Empirical
from congruence.kernels.errors import InvalidInputError


@dataclass(frozen=True)
class Samples(Empirical):
    """l exchangeable draws of each row's predictive law: ``values`` (n, l), or (n, l, q) for vector targets.

    Scores judge the law behind the draws, not the draws' own empirical law, which even a perfect ensemble is not:
    ``crps`` is the fair one, ``std`` is of the unbiased variance (ddof 1), ``pit_range`` the share of a rank among
    l + 1, and ``predictive_quantile`` an order statistic k at level k / (l + 1). One target of shape (n, l, 1) is the
    same as (n, l).

    ``cdf``, ``quantile``, ``mean``, ``sample``, ``characteristic_function`` and ``kernel_expectation`` are
    those of the empirical law, mass 1/l on each value; the mean and the expectations are unbiased for the law behind.
    ``log_prob`` is that of a normal kernel density estimate with Silverman's bandwidth
    .9 min(std, IQR / 1.34) l^(-1/5). Rows without spread have none: ``has_density`` says so, and ``log_prob`` raises.
    """

    values: Array

    def __post_init__(self) -> None:
        values = as_numbers(self.values, "Samples.values", "(n, l) or (n, l, q)", 2, 3)
        if 0 in values.shape:
            raise InvalidInputError(f"Samples.values: expected shape (n, l) or (n, l, q), got {values.shape}")
        if values.ndim == 3 and values.shape[2] == 1:
            values = values[:, :, 0]
        self._hold(values=values)

    @property
    def _values(self) -> Array:
        return self.values

    def has_density(self) -> bool:
        return self.dimension == 1 and bool(np.all(np.std(self.values, axis=1) > 0))

    def _log_prob(self, y: Array) -> Array:
        """Log of the kernel density estimate at y; see the class."""
        spread = np.std(self.values, axis=1)
        if not np.all(spread > 0):
            row = int(np.argmin(spread > 0))
            raise InvalidInputError(
                f"Samples.log_prob: row {row} has all {self.values.shape[1]} samples equal to {self.values[row, 0]:g} "
                f"({int(np.sum(spread == 0))} rows do), so it has no density; leave the log score out, use crps, or "
                "let the model return its distribution instead of samples of its mean"
            )
        lower, upper = np.quantile(self.values, [0.25, 0.75], axis=1)
        robust = np.where(upper > lower, (upper - lower) / 1.34, spread)
        bandwidth = 0.9 * np.minimum(spread, robust) * self.values.shape[1] ** -0.2
        result = np.empty(y.shape)
        for column in range(y.shape[1]):
            z = (y[:, column, None] - self.values) / bandwidth[:, None]
            result[:, column] = scipy.special.logsumexp(-0.5 * z * z, axis=1)
        result -= (np.log(bandwidth * self.values.shape[1]) + 0.5 * np.log(2 * np.pi))[:, None]
        return result

    def pit_range(self, y: Any) -> tuple[Array, Array]:
        """See Distribution: [r, r + e + 1] / (l + 1), for r draws below y and e equal to it.

        If y is one more draw, its rank among l + 1 is uniform, ties broken at random (Hamill 2001; Gneiting et al.
        2007).
        """
        counts = (partial(self._count, compare=compare) for compare in (np.less, np.less_equal))
        below, at_most = (self._shaped(count, "cdf", y) for count in counts)
        places = self.values.shape[1] + 1.0
        return below / places, (at_most + 1.0) / places

    def predictive_quantile(self, q: Any) -> Array:
        """See Distribution: the k-th smallest draw at k / (l + 1), linear between (Hyndman and Fan 1996, type 6).

        Levels below 1 / (l + 1) and above l / (l + 1) have the smallest and the largest draw: l draws know no more.
        """
        return self._shaped(self._between_draws, "quantile", q, align_levels)

    def _between_draws(self, q: Array) -> Array:
        size = self.values.shape[1]
        position = np.clip(q * (size + 1.0) - 1.0, 0.0, size - 1.0)
        lower = np.floor(position).astype(np.int64)
        ends = (np.take_along_axis(self._sorted, np.minimum(k, size - 1), axis=1) for k in (lower, lower + 1))
        first, last = ends
        return np.asarray(first + (position - lower) * (last - first))

    def std(self) -> Array:
        """The root of the unbiased estimate of the variance of the law behind the draws (ddof 1); 0 for one draw."""
        return np.asarray(self.values.std(axis=1, ddof=min(1, self.values.shape[1] - 1)))
