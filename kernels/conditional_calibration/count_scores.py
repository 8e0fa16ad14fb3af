r"""Scores of counts without noise of our own: means over the jump of the predicted law that holds the target.

A randomised PIT value of a sparse count is mostly the random number V. The mean of its scores over V,

.. math::  \bar\phi_{ij} = \frac{1}{b_i - a_i} \int_{a_i}^{b_i} \phi_j(u)\, du, \qquad
           a_i = F_i(y_i-),\; b_i = F_i(y_i),

has mean 0 if the model is the truth and no randomness but the data's. Its law is each version's own: the null is drawn
by u uniform in (0, 1), from the jump that holds u, and every statistic is put on one scale by the moments of its own
draws.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from congruence.kernels.arrays import Array
from congruence.kernels.calibration.pit_scores import ORDERS, mean_scores
from congruence.kernels.conditional_calibration.null import DRAWS_AT_ONCE, null_pit_values, projected_scores
from congruence.kernels.distributions import Distribution
from congruence.kernels.distributions.counts import Count

TAIL = 1e-7
"""Of a law, beyond which on either side its jumps are taken as one."""

LARGEST_TABLE = 4096
"""Counts between the tails of the widest law of a split, beyond which no row is scored by means over jumps."""

_READ_AT_ONCE = 4096


def table_width(predictive: Distribution) -> int:
    """Counts between the tails of the widest of n laws; 0 of laws that are not counts."""
    return _table(predictive)[1] if predictive.is_discrete and len(predictive) else 0


def _table(predictive: Distribution) -> tuple[Array, int]:
    """The first count of the table of each law, (n,), and how many the widest law needs."""
    first, last = predictive.quantile(np.array([[TAIL, 1.0 - TAIL]])).T
    return first, int(np.max(last - first)) + 1


def _jumps(predictive: Distribution) -> tuple[Array, Array] | None:
    """F_i at successive counts between the tails, (n, K), and the mean scores of the jumps that end there, (n, K, 4).

    None of laws too wide for a table.
    """
    first, width = _table(predictive)
    if width > LARGEST_TABLE:
        return None
    counts = first[:, None] + np.arange(width)
    ends = np.array(predictive.cumulative(counts) if isinstance(predictive, Count) else predictive.cdf(counts))
    ends[:, -1] = 1.0
    return ends, mean_scores(_starts(ends), ends)


def _starts(ends: Array) -> Array:
    return np.concatenate([np.zeros((len(ends), 1)), ends[:, :-1]], axis=1)


def _variance(ends: Array, scores: Array) -> Array:
    """Of each score if the model is the truth, (n, 4)."""
    return np.asarray(np.einsum("nk,nkj->nj", ends - _starts(ends), scores**2))


@dataclass(frozen=True)
class CountScores:
    """Scores of counts at some rows, and what it takes to draw them if the model is the truth.

    Attributes:
        observed: (n, 4).
        variance: of each score if the model is the truth, (n, 4).
        ends: F_i at the counts of the table, increasing to 1, (n, K).
        scores: of the jump that ends there, (n, K, 4), in single precision.
    """

    observed: Array = field(repr=False)
    variance: Array = field(repr=False)
    ends: Array = field(repr=False)
    scores: Array = field(repr=False)

    @classmethod
    def of(cls, y: Array, predictive: Distribution) -> CountScores | None:
        """Of counts y (n,); None of laws that are not counts, or too wide for a table: their jumps are small."""
        if not predictive.is_discrete or y.ndim != 1 or len(y) == 0:
            return None
        found = _jumps(predictive)
        if found is None:
            return None
        ends, scores = found
        observed = mean_scores(*predictive.pit_range(y))
        return cls(observed, _variance(ends, scores), ends, scores.astype(np.float32))

    def of_rows(self, rows: slice) -> CountScores:
        """Of some rows alone."""
        return CountScores(self.observed[rows], self.variance[rows], self.ends[rows], self.scores[rows])

    def drawn(self, rows: slice, first: int, block: int, count: int, seed: int) -> Array:
        """Scores of ``count`` draws of the rows, which begin at position ``first``, (rows, 4, count)."""
        ends, scores = self.ends[rows], self.scores[rows]
        n, width = ends.shape
        u = null_pit_values(first, n, block, seed)[:, :count].astype(np.float64)
        # One search for all rows: those of row i lie between i and i + 1.
        flat = (ends + np.arange(n)[:, None]).ravel()
        place = np.searchsorted(flat, (u + np.arange(n)[:, None]).ravel(), side="left")
        limit = np.repeat(np.arange(n) * width, count)
        place = np.clip(place, limit, limit + width - 1)
        return scores.reshape(n * width, len(ORDERS))[place].reshape(n, count, len(ORDERS)).transpose(0, 2, 1)


@dataclass(frozen=True)
class JumpScores:
    """Scores of counts by rows for readings: means over the jumps of the laws, (n, 4), and their variances if true.

    The variances take a table of each law, and are made when they are first asked for.
    """

    values: Array = field(repr=False)
    predictive: Distribution = field(repr=False)

    @classmethod
    def of(cls, y: Array, predictive: Distribution) -> JumpScores | None:
        """Of counts y (n,) and n laws; None where ``CountScores`` has none."""
        if not predictive.is_discrete or y.ndim != 1 or len(y) == 0 or table_width(predictive) > LARGEST_TABLE:
            return None
        return cls(mean_scores(*predictive.pit_range(y)), predictive)

    @cached_property
    def variance(self) -> Array:
        """Of each score if the model is the truth, (n, 4)."""
        parts = []
        for start in range(0, len(self), _READ_AT_ONCE):
            found = _jumps(self.predictive[start : start + _READ_AT_ONCE])
            assert found is not None, "the widest law fits into a table"
            parts.append(_variance(*found))
        return np.concatenate(parts)

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, rows: Any) -> JumpScores:
        part = JumpScores(self.values[rows], self.predictive[rows])
        if "variance" in vars(self):
            vars(part)["variance"] = self.variance[rows]
        return part


def projected_count_draws(vectors: Array, counts: CountScores, first: int, block: int, draws: int, seed: int) -> Array:
    """U'phi of a block of draws over rows from position ``first`` on, (k, 4, D)."""
    count = min(DRAWS_AT_ONCE, draws - block)
    return projected_scores(vectors, count, lambda rows: counts.drawn(rows, first + rows.start, block, count, seed))
