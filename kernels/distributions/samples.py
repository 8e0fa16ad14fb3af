"""Empirical predictive distributions: ensembles, Monte-Carlo dropout, posterior draws."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
import scipy.special

from congruence.kernels.arrays import Array, require_finite, to_numpy
from congruence.kernels.distributions.base import Distribution, Seed, align
from congruence.kernels.distributions.quadrature import BLOCK_ENTRIES, average_wave
from congruence.kernels.distributions.vectors import as_vectors, energy_score, refuse
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.functions import Kernel
from congruence.kernels.streams import stream


@dataclass(frozen=True)
class Samples(Distribution):
    """Mass 1/l on each of the l values of a row: ``values`` (n, l), or (n, l, q) for vector targets.

    Everything is exact for this law except ``log_prob``: points of mass have no density, so it is that of a normal
    kernel density estimate with Silverman's bandwidth .9 min(std, IQR / 1.34) l^(-1/5). Rows without spread have none:
    ``has_density`` says so, and ``log_prob`` raises.
    """

    values: Array

    def __post_init__(self) -> None:
        values = to_numpy(self.values)
        if values.dtype.kind not in "biuf":
            raise InvalidInputError(f"Samples.values: holds {values.dtype} values, expected numbers")
        if values.ndim not in (2, 3) or 0 in values.shape:
            raise InvalidInputError(f"Samples.values: expected shape (n, l) or (n, l, q), got {values.shape}")
        values = values.astype(np.float64)
        require_finite(values, "Samples.values")
        object.__setattr__(self, "values", values)

    @cached_property
    def _sorted(self) -> Array:
        return np.sort(self.values, axis=1)

    def _require_scalars(self, what: str) -> None:
        if self.values.ndim == 3:
            refuse("Samples", what, self.dimension)

    @property
    def dimension(self) -> int:
        """See Distribution."""
        return 1 if self.values.ndim == 2 else int(self.values.shape[2])

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, rows: Any) -> Self:
        """See Distribution."""
        chosen = self.values[rows]
        return type(self)(chosen[None] if chosen.ndim < self.values.ndim else chosen)

    @classmethod
    def concatenate(cls, parts: Sequence[Self]) -> Self:
        """See Distribution; all parts need the same number of samples."""
        return cls(np.concatenate([part.values for part in parts]))

    def has_density(self) -> bool:
        """See Distribution."""
        return self.dimension == 1 and bool(np.all(np.std(self.values, axis=1) > 0))

    def log_prob(self, y: Any) -> Array:
        """Log of the kernel density estimate at y; see the class."""
        self._require_scalars("log_prob")
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
        y, columns = align(y, len(self))
        y = y if columns else y[:, None]
        result = np.empty(y.shape)
        for column in range(y.shape[1]):
            z = (y[:, column, None] - self.values) / bandwidth[:, None]
            result[:, column] = scipy.special.logsumexp(-0.5 * z * z, axis=1)
        result -= (np.log(bandwidth * self.values.shape[1]) + 0.5 * np.log(2 * np.pi))[:, None]
        return result if columns else result[:, 0]

    def cdf(self, y: Any) -> Array:
        """See Distribution."""
        return self._share(y, np.less_equal)

    def cdf_left(self, y: Any) -> Array:
        """See Distribution."""
        return self._share(y, np.less)

    def _share(self, y: Any, compare: np.ufunc) -> Array:
        self._require_scalars("cdf")
        y, columns = align(y, len(self))
        y = y if columns else y[:, None]
        result = np.empty(y.shape)
        for column in range(y.shape[1]):
            result[:, column] = np.mean(compare(self._sorted, y[:, column, None]), axis=1)
        return result if columns else result[:, 0]

    def quantile(self, q: Any) -> Array:
        """See Distribution: the smallest sample with at least a share q at or below it."""
        self._require_scalars("quantile")
        q, columns = align(q, len(self), "q")
        size = self.values.shape[1]
        # A level k / l computed in floating point must give the k-th sample, not the next one.
        index = np.clip(np.ceil(q * size - 1e-9).astype(np.int64) - 1, 0, size - 1)
        picked = np.take_along_axis(self._sorted, index if columns else index[:, None], axis=1)
        return picked if columns else picked[:, 0]

    def mean(self) -> Array:
        """See Distribution; (n,), or (n, q) for vectors."""
        return np.asarray(self.values.mean(axis=1))

    def std(self) -> Array:
        """See Distribution; of the empirical law (ddof 0)."""
        return np.asarray(self.values.std(axis=1))

    def sample(self, size: int, seed: Seed = 0) -> Array:
        """``size`` draws with replacement from each row's samples, (n, size) or (n, size, q)."""
        index = stream(seed, "samples").integers(self.values.shape[1], size=(len(self), size))
        return np.asarray(self.values[np.arange(len(self))[:, None], index])

    def crps(self, y: Any) -> Array:
        """See Distribution; exact for the empirical law, (n, l log l). For vectors the energy score."""
        if self.values.ndim == 3:
            return energy_score(self.values, as_vectors(y, len(self), self.dimension))
        y, columns = align(y, len(self))
        y = y if columns else y[:, None]
        size = self.values.shape[1]
        ranks = (2.0 * np.arange(1, size + 1) - size - 1.0) / size**2
        centered = self._sorted - self.mean()[:, None]
        half_difference = centered @ ranks
        deviation = np.stack([np.mean(np.abs(self._sorted - column[:, None]), axis=1) for column in y.T], axis=1)
        scores = deviation - half_difference[:, None]
        return np.asarray(scores if columns else scores[:, 0])

    def knots(self) -> Array:
        """See Distribution: the samples."""
        return self._sorted

    def characteristic_function(self, t: Array) -> Array:
        """See Distribution: the mean over the samples."""
        self._require_scalars("characteristic_function")
        return average_wave(self.values, np.full(self.values.shape[1], 1.0 / self.values.shape[1]), t)

    def kernel_expectation(self, kernel: Kernel, nodes: Array) -> Array:
        """See Distribution: the mean over the samples; nodes (r,) or (r, q)."""
        result = np.empty((len(self), len(nodes)))
        size = self.values.shape[1]
        block = max(1, BLOCK_ENTRIES // (size * max(1, len(nodes))))
        for start in range(0, len(self), block):
            values = self.values[start : start + block]
            gram = kernel(values.reshape(-1, *values.shape[2:]), nodes)
            result[start : start + block] = np.asarray(gram).reshape(len(values), size, -1).mean(axis=1)
        return result
