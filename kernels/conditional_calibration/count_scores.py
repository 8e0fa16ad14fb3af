r"""Scores of counts without noise of our own: means over the jump of the predicted law that holds the target.

A randomised PIT value of a sparse count is mostly the random number V. The mean of its scores over V,

.. math::  \bar\phi_{ij} = \frac{1}{b_i - a_i} \int_{a_i}^{b_i} \phi_j(u)\, du, \qquad
           a_i = F_i(y_i-),\; b_i = F_i(y_i),

has mean 0 if the model is the truth and no randomness but the data's. Its law is each version's own: the null is drawn
by u uniform in (0, 1), from the jump that holds u, and every statistic is put on one scale by the moments of its own
draws. They are drawn from pools, as in the congruence test (``congruence.test``): a row's score and 15 drawn ones are
exchangeable if the model is the truth, and all simulated splits together cost one product with the directions.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from congruence.kernels.arrays import Array, row_slices
from congruence.kernels.calibration.pit_scores import ORDERS, mean_scores
from congruence.kernels.congruence.coded_draws import POOL_BITS
from congruence.kernels.distributions import Distribution
from congruence.kernels.distributions.counts import Count
from congruence.kernels.streams import positioned_stream

TAIL = 1e-7
"""Of a law, beyond which on either side its jumps are taken as one."""

LARGEST_TABLE = 4096
"""Counts between the tails of the widest law of a split, beyond which no row is scored by means over jumps."""

_READ_AT_ONCE = 4096
_WORDS_PER_COUNTER = 4  # numbers of double precision that one step of Philox gives


def table_width(predictive: Distribution) -> int:
    """Counts between the tails of the widest of n laws; 0 of laws that are not counts."""
    return _table(predictive)[1] if predictive.is_discrete and len(predictive) else 0


def _table(predictive: Distribution) -> tuple[Array, int]:
    """The first count of the table of each law, (n,), and how many the widest law needs."""
    first, last = predictive.quantile(np.array([[TAIL, 1.0 - TAIL]])).T
    return first, int(np.max(last - first)) + 1


@dataclass(frozen=True)
class JumpScores:
    """Scores of counts by rows: means over the jumps of the laws, (n, 4), and what these would have if they were true.

    That takes a table of each law, which is made when it is first asked for.
    """

    values: Array = field(repr=False)
    predictive: Distribution = field(repr=False)

    @classmethod
    def of(cls, y: Array, predictive: Distribution) -> JumpScores | None:
        """Of counts y (n,); None of laws that are not counts, or too wide for a table: their jumps are small."""
        if not predictive.is_discrete or y.ndim != 1 or len(y) == 0 or table_width(predictive) > LARGEST_TABLE:
            return None
        return cls.at(y, predictive)

    @classmethod
    def at(cls, y: Array, predictive: Distribution) -> JumpScores:
        """Of counts y (n,) whose laws are known to need no wide table."""
        return cls(mean_scores(*predictive.pit_range(y)), predictive)

    @cached_property
    def ends(self) -> Array:
        """F_i at successive counts between the tails, (n, K)."""
        law, (first, width) = self.predictive, _table(self.predictive)
        counts = first[:, None] + np.arange(width)
        ends = np.array(law.cumulative(counts) if isinstance(law, Count) else law.cdf(counts))
        ends[:, -1] = 1.0
        return ends

    @cached_property
    def variance(self) -> Array:
        """Of each score if the model is the truth, (n, 4)."""
        if len(self) > _READ_AT_ONCE:
            parts = row_slices(len(self), _READ_AT_ONCE)
            return np.concatenate([JumpScores(self.values[rows], self.predictive[rows]).variance for rows in parts])
        starts, ends = _starts(self.ends), self.ends
        return np.asarray(np.einsum("nk,nkj->nj", ends - starts, mean_scores(starts, ends) ** 2))

    def pool(self, first: int, seed: int) -> Array:
        """The score of each row, which begin at position ``first`` of the split, and 15 drawn ones, (n, 16, 4)."""
        ends = self.ends
        (n, width), size = ends.shape, 2**POOL_BITS
        rng = positioned_stream(seed, "pools of count scores", first * (size // _WORDS_PER_COUNTER))
        u = rng.random((n, size))[:, 1:]
        # One search for all rows: those of row i lie between i and i + 1.
        flat, row = ends + np.arange(n)[:, None], np.arange(n)[:, None]
        place = np.searchsorted(flat.ravel(), (u + row).ravel(), side="left").reshape(u.shape)
        place = np.clip(place, row * width, row * width + width - 1)
        starts = _starts(ends)
        if width <= size:  # few counts: each is scored once, whatever is drawn
            drawn = mean_scores(starts, ends).reshape(n * width, len(ORDERS))[place]
        else:
            drawn = mean_scores(starts.ravel()[place], ends.ravel()[place])
        return np.concatenate([self.values[:, None], drawn], axis=1, dtype=np.float32)

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, rows: Any) -> JumpScores:
        part = JumpScores(self.values[rows], self.predictive[rows])
        if "variance" in vars(self):
            vars(part)["variance"] = self.variance[rows]
        return part


def _starts(ends: Array) -> Array:
    """F_i below each count."""
    return np.concatenate([np.zeros((len(ends), 1)), ends[:, :-1]], axis=1)
