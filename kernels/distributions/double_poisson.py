"""Efron's double Poisson distribution, normalised by summation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
import scipy.special

from congruence.kernels.arrays import Array
from congruence.kernels.distributions.base import require
from congruence.kernels.distributions.count_windows import similar_windows
from congruence.kernels.distributions.counts import TAIL_MASS, Count
from congruence.kernels.distributions.mass import deviance, stirling_error

_MANY_LEVELS = 64
_WIDEST = 1e6  # standard deviation of a row's counts, all of which are summed


@dataclass(frozen=True, init=False)
class DoublePoisson(Count):
    """P(y) proportional to sqrt(phi) e^(-phi mu) (e^-y y^y / y!) (e mu / y)^(phi y), Efron (1986, equation 2.2).

    ``DoublePoisson(mean, inverse_dispersion)``: Efron's mu and theta, here ``mu`` and ``phi``; phi = 1 is
    Poisson(mu), a larger phi is underdispersed (``NegativeBinomial``'s ``dispersion`` rises the other way). The mean
    is nearly mu, the variance nearly mu / phi; ``mean()`` and ``std()`` are exact.
    """

    _above_zero: ClassVar = {"mu": "a positive mean", "phi": "a positive number"}
    _argument_names: ClassVar[dict[str, str]] = {"mu": "mean", "phi": "inverse_dispersion"}

    mu: Array
    phi: Array

    def __init__(self, mean: Array, inverse_dispersion: Array) -> None:
        self._hold(mu=mean, phi=inverse_dispersion)
        self.__post_init__()

    def _check(self) -> None:
        narrow = np.sqrt(self.mu / self.phi) + 1.0 / self.phi <= _WIDEST
        require(
            narrow,
            self.phi,
            "inverse_dispersion",
            "DoublePoisson",
            f"a spread (mean / inverse_dispersion)^(1/2) below {_WIDEST:g}",
        )

    def window(self, tail: float = TAIL_MASS) -> tuple[Array, Array]:
        """See Count; Bernstein's bounds on the deviance D: the mass at y is below sqrt(phi) exp(-phi D(y))."""
        nearest = np.minimum(deviance(np.floor(self.mu), self.mu), deviance(np.ceil(self.mu), self.mu))
        slack = np.log1p(np.sqrt(self.mu / self.phi) + 1.0 / self.phi) + 2.0  # turns the end's mass into the tail's
        reach = nearest + (slack - np.log(tail)) / self.phi
        lower = self.mu - np.sqrt(2.0 * self.mu * reach)
        upper = self.mu + reach / 3.0 + np.sqrt(reach**2 / 9.0 + 2.0 * self.mu * reach)
        return np.maximum(np.floor(lower), 0.0), np.ceil(upper)

    def _blocks(self, frequency: float = np.inf) -> Iterator[tuple[Array, Array, Array]]:
        """(rows, support, log mass before normalisation (rows, s)).

        A sum of the mass times waves up to ``frequency`` needs not every count: where the mass is smooth, with nothing
        near 0, every h-th count standing for h gives it to 1e-14, while 2 pi / h exceeds the bandwidth (Poisson's
        summation formula). Only cumulative sums need all counts.

        With a center c near the means of a group, D(y, mu) = D(y, c) + D(c, mu) + (c - y) log(mu / c): the only terms
        of both y and mu are products, so a block is a matrix product of rank 3, and nothing large cancels.
        """
        lower, upper = self.window()
        for rows in similar_windows(lower, upper):
            mu, phi = self.mu[rows], self.phi[rows]
            smooth = lower[rows].min() > 0.0
            step = max(1.0, np.floor(2.0 * np.pi / (frequency + 9.0 / np.sqrt(mu / phi).min()))) if smooth else 1.0
            support = np.arange(lower[rows].min(), upper[rows].max() + step, step)
            center = float(np.mean(mu))
            of_rows = np.stack([np.ones(len(rows)), phi, phi * np.log(mu / center)], axis=1)
            of_counts = np.stack([_log_saturated(support), -deviance(support, center), support - center])
            constant = 0.5 * np.log(phi) - phi * deviance(center, mu) + np.log(step)
            yield rows, support, of_rows @ of_counts + constant[:, None]

    @cached_property
    def _log_normalizer(self) -> Array:
        result = np.empty(len(self))
        for rows, _, log_weight in self._blocks(frequency=0.0):
            result[rows] = scipy.special.logsumexp(log_weight, axis=1)
        return result

    def support_blocks(self, frequency: float = np.inf) -> Iterator[tuple[Array, Array, Array]]:
        for rows, support, log_weight in self._blocks(frequency):
            yield rows, support, np.exp(log_weight - self._log_normalizer[rows, None])

    def _log_prob(self, y: Array) -> Array:
        counts = np.maximum(np.floor(y), 0.0)  # other values are no counts
        mu, phi = self._columns
        log_mass = (
            0.5 * np.log(phi) + _log_saturated(counts) - phi * deviance(counts, mu) - self._log_normalizer[:, None]
        )
        return np.where(counts == y, log_mass, -np.inf)

    def _cdf(self, y: Array) -> Array:
        return self._cumulative(y, upwards=True)

    def _survival(self, y: Array) -> Array:
        return self._cumulative(y, upwards=False)

    def _cumulative(self, y: Array, *, upwards: bool) -> Array:
        """The mass at most y, or beyond y, each added up from its own end."""
        result = np.empty(y.shape)
        for rows, support, mass in self.support_blocks():
            none = np.zeros((len(rows), 1))
            if upwards:
                sums = np.concatenate([none, np.cumsum(mass, axis=1)], axis=1)
            else:
                sums = np.concatenate([np.cumsum(mass[:, ::-1], axis=1)[:, ::-1], none], axis=1)
            position = np.clip(np.floor(y[rows]) - support[0] + 1.0, 0.0, float(len(support))).astype(np.int64)
            result[rows] = np.minimum(np.take_along_axis(sums, position, axis=1), 1.0)
        return result

    def log_positive(self) -> Array:
        """See Count: from the masses of positive counts."""
        result = np.empty(len(self))
        for rows, support, log_weight in self._blocks():
            positive = scipy.special.logsumexp(log_weight[:, support > 0.0], axis=1)
            result[rows] = positive - self._log_normalizer[rows]
        return np.minimum(result, 0.0)

    def _quantile(self, q: Array) -> Array:
        result = np.empty(q.shape)
        for rows, support, mass in self.support_blocks():
            cumulative = np.cumsum(mass, axis=1)
            if q.shape[1] > _MANY_LEVELS:
                below = np.stack([np.searchsorted(row, level) for row, level in zip(cumulative, q[rows], strict=True)])
            else:
                below = np.stack([(cumulative < level[:, None]).sum(axis=1) for level in q[rows].T], axis=1)
            result[rows] = support[np.minimum(below, len(support) - 1)]
        return result


def _log_saturated(y: Array) -> Array:
    """log of e^-y y^y / y!, the Poisson mass at y of rate y."""
    positive = np.maximum(y, 1.0)
    return np.where(y == 0.0, 0.0, -0.5 * np.log(2.0 * np.pi * positive) - stirling_error(positive))
