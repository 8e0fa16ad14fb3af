"""Draws that a map of levels has moved, and the distribution behind them that they state then."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from congruence.kernels.arrays import Array
from congruence.kernels.distributions.base import Distribution
from congruence.kernels.distributions.continued import Continued, with_tails
from congruence.kernels.distributions.quantiles import Quantiles
from congruence.kernels.distributions.samples import Samples
from congruence.kernels.distributions.score_map import NormalScoreMap
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.kernel_functions import Kernel

MANY_DRAWS = 100
"""From which it does not matter that they are moved about their own middle."""

TIED = 0.01
"""Share of the rows in which some draws are equal, from which that is no accident."""

_LEAST_RATIO = 0.1  # below which draws are so much too wide that they say nothing of the distribution behind them


def few_members(law: Distribution) -> int | None:
    """How many draws a row is known by, where these are few, and of a distribution without masses; else None."""
    return law.members if law.members is not None and law.members < MANY_DRAWS and not are_tied(law) else None


def are_tied(law: Distribution) -> bool:
    """Whether draws are of a distribution with masses, which moving each of them by itself would spread."""
    draws = law.draws
    return draws is not None and float(np.mean(np.any(np.diff(np.sort(draws, axis=1), axis=1) == 0.0, axis=1))) > TIED


@dataclass(frozen=True, repr=False)
class RecalibratedDraws(Samples):
    """Few draws that a map has moved, and what it moved. Made by ``recalibrated``.

    They state the distribution behind the draws, its spread multiplied by c. Moved about their own middle they are no
    independent draws of that, since their middle is as near to its mean as before. So what is asked decides how far
    they stand from it: ``values`` by sqrt((l c^2 + 1) / (l + 1)), where a target has each place among them equally
    often; expectations by sqrt((l c^2 - 1) / (l - 1)), where each has the variance of the distribution; and of pairs
    by c, where two are as far apart as two of the distribution. All of it is exact for normal distributions.
    """

    base: Samples
    score_map: NormalScoreMap

    @property
    def recalibration(self) -> tuple[Distribution, NormalScoreMap]:
        return self.base, self.score_map

    def parameters(self) -> dict[str, Array]:
        """See Distribution: the draws as they are now."""
        return {"values": self.values}

    @cached_property
    def _factors(self) -> tuple[Array, Array]:
        """c, and its ratio to how far apart the values are, both in spreads of the first draws, (n,) each."""
        drawn = self.base
        while isinstance(drawn, RecalibratedDraws):
            drawn = drawn.base
        then, now, size = drawn.std(), super().std(), self._size
        apart = np.where(then > 0.0, now / np.where(then > 0.0, then, 1.0), 1.0)
        factor = np.sqrt(np.maximum((size + 1.0) * apart**2 - 1.0, 0.0) / size)
        return factor, factor / np.where(apart > 0.0, apart, 1.0)

    def _about_middle(self, factor: Array) -> Samples:
        """With what they are apart multiplied by ``factor``."""
        middle = self.values.mean(axis=1, keepdims=True)
        return Samples(middle + factor[:, None] * (self.values - middle))

    @cached_property
    def _spread_out(self) -> Samples:
        """Each with the mean and the variance of the distribution behind the draws."""
        factor, ratio = self._factors
        reach = np.sqrt(np.maximum(self._size * factor**2 - 1.0, 0.0) / (self._size - 1.0))
        return self._about_middle(reach * ratio / np.where(factor > 0.0, factor, 1.0))

    @property
    def independent_pairs(self) -> Samples:
        return self._about_middle(self._factors[1])

    def exchangeable(self, y: Array) -> None:
        """None: they are not, see the class."""

    def pooled(self, y: Array) -> Array:
        """See Distribution: about a middle that does not depend on how far the target lies from that of the draws."""
        size, apart = self._size, y - self.values.mean(axis=1)
        moved = apart * (1.0 / (1.0 + size * self._factors[0] ** 2) - 1.0 / (1.0 + size))
        return np.asarray(np.concatenate([y[:, None], self.values], axis=1) + moved[:, None])

    def interval(self, tail: float) -> tuple[float, float]:
        (low, high), (least, most) = super().interval(tail), self._spread_out.interval(tail)
        return min(low, least), max(high, most)

    def translated(self, by: float) -> Samples:  # type: ignore[override]
        return self._spread_out.translated(by)

    def characteristic_function(self, t: Array) -> Array:
        return self._spread_out.characteristic_function(t)

    def raw_moments(self, order: int) -> Array:
        return self._spread_out.raw_moments(order)

    def kernel_expectation(self, kernel: Kernel, nodes: Array) -> Array:
        return self._spread_out.kernel_expectation(kernel, nodes)

    def _expected_diagonal(self, kernel: Kernel) -> Array:
        return self._spread_out._expected_diagonal(kernel)

    def std(self) -> Array:
        """See Distribution: of the distribution behind the draws."""
        return np.asarray(self._factors[1] * super().std())

    @property
    def log_score_excess(self) -> Array:  # type: ignore[override]
        """See Distribution, (n,): a target lies among the values as among others that are so far apart."""
        return np.asarray(super().log_score_excess - np.log(np.maximum(self._factors[1], _LEAST_RATIO)))

    def _crps(self, y: Array) -> Array:
        spread_out = self._spread_out
        apart = self._factors[1] * self._half_difference - spread_out._half_difference
        return np.asarray(spread_out._crps(y) - apart[:, None])


def recalibrated_draws(draws: Samples, score_map: NormalScoreMap) -> Samples:
    """The draws about their middle, moved and stretched as the map says; then those at k / (l + 1) by its shape.

    Of rows in which some are equal (zeros, counts) each from its level to the quantile that the whole map asks for.
    """
    size = draws.values.shape[1]
    if size < 2:
        raise InvalidInputError("base: one draw per row has no spread to recalibrate; give two or more")
    middle, spread = draws.values.mean(axis=1, keepdims=True), draws.values.std(axis=1, ddof=1, keepdims=True)
    stretched = np.sqrt((size * score_map.factor**2 + 1.0) / (size + 1.0))[:, None]
    moved = middle + score_map.shift[:, None] * spread + stretched * (draws.values - middle)
    tied = np.any(np.diff(draws._sorted, axis=1) == 0.0, axis=1)
    if (some := np.flatnonzero(tied | score_map.changes_shape)).size:
        of_rows = score_map[some]
        rest = replace(
            of_rows, shift=np.where(tied[some], of_rows.shift, 0.0), factor=np.where(tied[some], of_rows.factor, 1.0)
        )
        from_here = np.where(tied[some, None], draws.values[some], moved[some])
        order, levels = np.argsort(from_here, axis=1), np.arange(1, size + 1) / (size + 1.0)
        ordered = Quantiles(levels, np.take_along_axis(from_here, order, axis=1), "none")
        values = Continued(with_tails(ordered)).value(rest.inverse(np.broadcast_to(levels, from_here.shape)))
        moved[some] = np.take_along_axis(values, np.argsort(order, axis=1), axis=1)
    return Samples(moved) if size >= MANY_DRAWS else RecalibratedDraws(moved, draws, score_map)
