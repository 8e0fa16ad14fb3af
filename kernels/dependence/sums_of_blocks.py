r"""Intervals and p-values of an estimate from independent blocks of rows, few, unequal and skewed as they may be.

Student's t distribution of the sum of B contributions takes them as normal. Where they are skewed, an estimate that is
too low comes with a standard error that is too small: intervals of ten groups whose levels have a chi-squared
distribution cover .86 in the place of .95. With the skewness G of the contributions and a = G / (3 sqrt(B)),

.. math::  g(t) = t + a t^2 + \frac{a^2 t^3}{3} + \frac{a}{2} = \frac{(1 + a t)^3 - 1}{3 a} + \frac{a}{2}

is monotone and takes the skewness off t = (estimate - truth) / error (Hall 1992, "On the removal of skewness by
transformation"): g(t) is held against Student's t distribution.

Blocks that count shares h_b of all rows, by their sizes or their weights, know the error by fewer degrees of freedom:
(sum h^2)^2 / sum h^4 - 1 (Satterthwaite 1946), which is B - 1 where they are equal.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from congruence.kernels.arrays import Array
from congruence.kernels.dependence.blocks import skewness, t_quantile, two_sided_p_value

_FLAT = 1e-8  # of a, below which g is the identity


@dataclass(frozen=True)
class SumOfBlocks:
    """How far an estimate is known.

    Attributes:
        blocks: B, or as many as have the degrees of freedom of unequal ones.
        error: its standard error.
        lean: a, by the skewness of what the blocks contribute.
    """

    blocks: float
    error: float
    lean: float

    @classmethod
    def of(cls, contributions: Array) -> SumOfBlocks:
        """From what each block contributes to the estimate beyond its mean, (B,)."""
        count = len(contributions)
        error = float(np.sqrt(np.sum(contributions**2) * count / (count - 1.0)))
        unbiased = np.sqrt(count * (count - 1.0)) / max(count - 2.0, 1.0)  # two blocks show no skewness
        return cls(count, error, float(unbiased * skewness(contributions)) / (3.0 * np.sqrt(count)))

    @classmethod
    def by_jackknife(cls, without_each: Array, counts: Array) -> SumOfBlocks:
        """From the estimate without each block in turn, (B,), and what each counts, (B,)."""
        size = len(without_each)
        found = cls.of((np.mean(without_each) - without_each) * (size - 1.0) / size)
        squares = counts**2
        return replace(found, blocks=max(2.0, float(np.sum(squares) ** 2 / np.sum(squares**2))))

    def interval(self, estimate: float, level: float = 0.95) -> tuple[float, float]:
        """Confidence interval of what is estimated."""
        reach = t_quantile(self.blocks, level)
        return estimate - self.error * self._inverse(reach), estimate - self.error * self._inverse(-reach)

    def p_value(self, difference: float) -> float:
        """Two-sided, of an estimate whose truth is 0."""
        if self.error == 0.0:
            return 1.0 if difference == 0.0 else 0.0
        ratio, a = difference / self.error, self.lean
        return two_sided_p_value(ratio + a * ratio**2 + a**2 * ratio**3 / 3.0 + a / 2.0, self.blocks)

    def _inverse(self, value: float) -> float:
        """t with g(t) = ``value``."""
        a = self.lean
        if abs(a) < _FLAT:
            return value
        return float((np.cbrt(1.0 + 3.0 * a * (value - a / 2.0)) - 1.0) / a)


def without_each(sums: Array, counts: Array) -> Array:
    """Means over all blocks but one, (B, k), from sums (B, k) and counts (B,) within them."""
    return np.asarray((np.sum(sums, axis=0) - sums) / (np.sum(counts) - counts)[:, None])
