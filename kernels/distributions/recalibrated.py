"""A distribution read through a map of its levels: P(Y <= y) = G(F(y)), for every family of one target.

The map of a row is G(u) = H(Phi((Phi^-1(u) - b) / c)): b moves and c stretches the distribution in normal scores, so
that one that is c times too narrow becomes right in its tails, too; H, piecewise linear and strictly increasing from 0
to 1, corrects the shape. b = 0, c = 1 and H(v) = v change nothing.

Far out, F has no digits left: a distribution that is too narrow by a factor of 3 has its own 1e-16 quantile where the
recalibrated one has 3 in 1,000. So beyond six normal scores F continues as it goes there: its quantiles, or towards an
end of the support the logarithms of their distance to it, are linear in the normal score. That is exact for normal and
lognormal distributions. Counts keep their own tail sums.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
from scipy.special import ndtr, ndtri

from congruence.kernels.arrays import Array
from congruence.kernels.distributions import quadrature
from congruence.kernels.distributions.base import KNOT_LEVELS, ByRows, Distribution, Stated
from congruence.kernels.distributions.cells import Cells
from congruence.kernels.distributions.continuous import Normal
from congruence.kernels.distributions.counts import TAIL_MASS, Count
from congruence.kernels.distributions.quantiles import Quantiles
from congruence.kernels.distributions.samples import Deterministic, Samples
from congruence.kernels.distributions.score_map import NormalScoreMap, normal_scores
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.kernel_functions import Kernel

_KEPT_VALUES = 4_000_000  # up to which what is searched for serves all parts of a distribution: 64 MB
_TAIL_SCORES = np.array([2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 5.5, 6.0, 6.5])
FAR, NEAR = 6.0, 5.5  # normal scores, beyond which a distribution continues at the slope between them
LOG_ROOT_2_PI = 0.5 * np.log(2.0 * np.pi)


def recalibrated(base: Distribution, score_map: NormalScoreMap) -> Distribution:
    """``base`` read through ``score_map``: counts stay counts, and where nothing changes base is returned.

    Normal distributions that are moved and stretched are normal. Draws (``Samples``) stay draws: each moves from its
    level k / (l + 1) to the quantile that the map asks for there. Beyond the outermost draws, and beyond the outermost
    of ``Quantiles`` without tails, normal ones of the same spread continue them.

    Raises:
        InvalidInputError: another number of rows; vector targets; or point forecasts, which have no levels to map.
    """
    if len(base) != len(score_map):
        raise InvalidInputError(f"score_map: {len(score_map)} rows for {len(base)} predictions; give one map per row")
    if base.dimension != 1 or isinstance(base, Deterministic):
        raise InvalidInputError(
            f"base: {type(base).__name__} of {base.dimension} target(s) has no levels to recalibrate; "
            "give distributions of one target that have a spread"
        )
    if score_map.is_identity:
        return base
    if isinstance(base, Normal) and not score_map.changes_shape:
        return Normal(base.loc + base.scale * score_map.shift, base.scale * score_map.factor)
    if base.is_discrete:
        return RecalibratedCount(base, score_map)
    if isinstance(base, Samples):
        return _recalibrated_draws(base, score_map)
    return Recalibrated(base, score_map)


def score_intervals(law: Distribution, y: Any, step: float | None = None) -> tuple[Array, Array]:
    """Between which normal scores Phi^-1(F) each target lies, (n,) each: equal where F has no jump at it.

    If the distribution is the truth, a standard normal number falls between them as often as its level is. The
    continuation of the tails is that of ``Recalibrated``; of draws (``Samples``) the place among them is known, and no
    more. Between quantiles, and beyond them, a target has the place that is interpolated. Targets that are rounded to a
    ``step`` lie in the cells around them.
    """
    y = np.asarray(y, dtype=np.float64)
    if step is not None:
        return score_intervals(law, y - step / 2.0)[0], score_intervals(law, y + step / 2.0)[1]
    if isinstance(law, Samples):
        low, high = law.pit_range(y)
        return ndtri(low), -ndtri(1.0 - high)
    low, high = law.cdf_left(y), law.cdf(y)
    if (counts := law.counts) is not None:
        lower, upper = counts.survival(np.ceil(y) - 1.0), counts.survival(y)
        return normal_scores(low, lower), normal_scores(high, upper)
    score = Continued(_with_tails(law)).score(y[:, None])[:, 0]
    jumps = high > low
    return np.where(jumps, ndtri(low), score), np.where(jumps, ndtri(high), score)


def _with_tails(base: Distribution) -> Distribution:
    """``base``, or for quantiles without tails the same with normal ones of their spread beyond the outermost."""
    if not isinstance(base, Quantiles) or base.tails != "none":
        return base
    levels, values, scores = base.levels, base.values, ndtri(base.levels)
    centred = scores - scores.mean()
    spread = np.maximum(values @ centred / (centred @ centred), 0.0)[:, None]
    below, above = -_TAIL_SCORES[_TAIL_SCORES + scores[0] > 0.1][::-1], _TAIL_SCORES[_TAIL_SCORES - scores[-1] > 0.1]
    left, right = values[:, :1] + spread * (below - scores[0]), values[:, -1:] + spread * (above - scores[-1])
    levels, values = np.concatenate([ndtr(below), levels, ndtr(above)]), np.concatenate([left, values, right], axis=1)
    return Quantiles(levels, values, "none")


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


def _recalibrated_draws(draws: Samples, score_map: NormalScoreMap) -> Samples:
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
        values = Continued(_with_tails(ordered)).value(rest.inverse(np.broadcast_to(levels, from_here.shape)))
        moved[some] = np.take_along_axis(values, np.argsort(order, axis=1), axis=1)
    return Samples(moved) if size >= MANY_DRAWS else RecalibratedDraws(moved, draws, score_map)


@dataclass(frozen=True)
class Tail:
    """One side of distributions beyond the normal score ``start`` = -FAR or FAR, where they have the values ``anchor``.

    Linear in the normal score where the support is unbounded; else the logarithm of the distance to its ``end`` is.
    """

    start: float
    anchor: Array
    end: Array
    slope: Array

    @classmethod
    def of(cls, law: Distribution, start: float) -> Tail:
        """The tail that continues ``law``."""
        levels = ndtr([start, start * NEAR / FAR, np.copysign(np.inf, start)])
        anchor, near, end = np.split(np.asarray(law.quantile(levels[None, :])), 3, axis=1)
        if law.quantile_levels is not None:  # its support ends where it was given no more levels
            end = np.full_like(end, np.copysign(np.inf, start))
        tail = cls(start, anchor, end, np.zeros_like(anchor))
        return replace(tail, slope=np.where(anchor == end, 0.0, -tail._depth(near) / (FAR - NEAR)))

    def _depth(self, y: Array) -> Array:
        """How far values y lie beyond the anchor, negative before it, in what is linear in the normal score."""
        side = np.copysign(1.0, self.start)
        with np.errstate(divide="ignore", invalid="ignore"):
            logarithm = -np.log(np.maximum(side * (self.end - y), 0.0) / np.abs(self.end - self.anchor))
            return np.asarray(np.where(np.isfinite(self.end), logarithm, side * (y - self.anchor)))

    def holds(self, y: Array) -> Array:
        """Whether values y (n, k) lie beyond the anchor."""
        return y < self.anchor if self.start < 0.0 else y > self.anchor

    def score(self, y: Array) -> Array:
        """Normal scores of values beyond the anchor; infinite at and beyond the end of the support."""
        with np.errstate(divide="ignore", invalid="ignore"):
            steps = np.where(self.slope > 0.0, self._depth(y) / self.slope, np.inf)
        return np.asarray(self.start + np.copysign(steps, self.start))

    def value(self, z: Array) -> Array:
        """The quantile at normal scores beyond ``start``."""
        steps = np.maximum(np.copysign(1.0, self.start) * (z - self.start), 0.0)
        with np.errstate(invalid="ignore"):
            bounded = self.end + (self.anchor - self.end) * np.exp(-self.slope * steps)
            free = self.anchor + np.copysign(self.slope, self.start) * steps
            value = np.where(np.isfinite(self.end), bounded, free)
        return np.asarray(np.where(self.slope > 0.0, value, self.anchor))

    def log_slope(self, y: Array) -> Array:
        """log dz / dy beyond the anchor."""
        with np.errstate(divide="ignore", invalid="ignore"):
            distance = np.where(np.isfinite(self.end), np.abs(self.end - y), 1.0)
            return np.asarray(-np.log(self.slope) - np.log(distance))


@dataclass(frozen=True)
class Continued:
    """A distribution of one target in normal scores, continued beyond ``FAR`` of them."""

    law: Distribution

    @cached_property
    def _tails(self) -> tuple[Tail, Tail]:
        return Tail.of(self.law, -FAR), Tail.of(self.law, FAR)

    def _with_tails(self, y: Array, inside: Array, tail: Callable[[Tail], Array]) -> Array:
        lower, upper = self._tails
        return np.where(lower.holds(y), tail(lower), np.where(upper.holds(y), tail(upper), inside))

    def score(self, y: Array) -> Array:
        """The normal score of values y (n, k)."""
        return self._with_tails(y, ndtri(self.law.cdf(y)), lambda tail: tail.score(y))

    def log_slope(self, y: Array) -> Array:
        """log of dz / dy at values y (n, k), where F has a density."""
        z = ndtri(self.law.cdf(y))
        with np.errstate(invalid="ignore"):
            inside = self.law.log_prob(y) + 0.5 * z * z + LOG_ROOT_2_PI
        return self._with_tails(y, inside, lambda tail: tail.log_slope(y))

    def value(self, z: Array) -> Array:
        """The quantile at normal scores z (n, k)."""
        lower, upper = self._tails
        inside = self.law.quantile(ndtr(np.clip(z, -FAR, FAR)))
        return np.where(z < -FAR, lower.value(z), np.where(z > FAR, upper.value(z), inside))


@dataclass(frozen=True, repr=False)
class _ThroughMap(ByRows):
    """Rows of a base distribution and of the map that it is read through."""

    base: Distribution
    score_map: NormalScoreMap

    @property
    def recalibration(self) -> tuple[Distribution, NormalScoreMap]:
        return self.base, self.score_map

    def __getstate__(self) -> dict[str, Any]:
        """What it is made of, without what is kept."""
        return {"base": self.base, "score_map": self.score_map}

    def parameters(self) -> dict[str, Array]:
        """See Distribution: those of the base, and the map's shift and factor."""
        return {**self.base.parameters(), "shift": self.score_map.shift, "factor": self.score_map.factor}


@dataclass(frozen=True, repr=False)
class Recalibrated(_ThroughMap):
    """``base`` read through ``score_map``, row by row; see the module. Made by ``recalibrated``."""

    @property
    def stated(self) -> Stated:
        return self.base.stated

    def cells(self, y: Array, step: float | None = None) -> Cells | None:
        """See Distribution: those of the base, at the probabilities that the map gives them."""
        cells = self.base.cells(y, step)
        if cells is None:
            return None
        shape = len(self), cells.ends.shape[1]
        starts, ends = (np.broadcast_to(each, shape) for each in (cells.starts, cells.ends))
        return Cells(self.score_map.below(ndtri(ends)), cells.place, self.score_map.below(ndtri(starts)))

    def __getitem__(self, rows: Any) -> Self:
        some = super().__getitem__(rows)
        if len(self) * self._width <= _KEPT_VALUES:
            vars(some)["_taken_from"] = self, rows
        return some

    @cached_property
    def _width(self) -> int:
        return quadrature.rule_width(self.base) + 10 * len(self.score_map.levels)

    @cached_property
    def _weighted_values(self) -> tuple[Array, Array]:
        """See Distribution; searched for once, whichever rows are asked for and however often."""
        whole, rows = vars(self).get("_taken_from", (None, None))
        if whole is None:
            return super()._weighted_values
        values, weights = whole._weighted_values
        return values[rows], weights[rows]

    @cached_property
    def _continued(self) -> Continued:
        """The base with tails to read the map in; what is stated are the cells of the base."""
        return Continued(_with_tails(self.base))

    @property
    def _whole(self) -> Distribution:
        return self._continued.law

    def has_density(self) -> bool:
        return self._whole.has_density()

    def _log_prob(self, y: Array) -> Array:
        """At an atom of the base, the log of its mass."""
        z = self._continued.score(y)
        low, high = self._whole.cdf_left(y), self._whole.cdf(y)
        mass = self.score_map.log_between(ndtri(low), ndtri(high))
        with np.errstate(invalid="ignore"):
            density = self.score_map.log_slope(z) - LOG_ROOT_2_PI + self._continued.log_slope(y)
        density = np.where(np.isfinite(z), density, -np.inf)
        return np.where(high > low, mass, density)

    def _cdf(self, y: Array) -> Array:
        return self.score_map.below(self._continued.score(y))

    def _cdf_left(self, y: Array) -> Array:
        low, high = self._whole.cdf_left(y), self._whole.cdf(y)
        return np.where(high > low, self.score_map.below(ndtri(low)), self._cdf(y))

    def _quantile(self, q: Array) -> Array:
        return self._continued.value(self.score_map.inverse(q))

    @cached_property
    def _quantiles(self) -> Quantiles | None:
        """Of quantiles those that the map gives at their levels."""
        if not isinstance(self.base, Quantiles):
            return None
        levels = self.base.levels
        values = np.maximum.accumulate(self.quantile(levels[None, :]), axis=1)  # equal ones fall by their rounding
        return Quantiles(levels, values, self.base.tails, self.base.crossed)

    def _crps(self, y: Array) -> Array:
        return super()._crps(y) if self._quantiles is None else self._quantiles.crps(y)

    def remarks(self, y: Array) -> dict[str, Array]:
        """See Distribution: those of the quantiles."""
        return super().remarks(y) if self._quantiles is None else self._quantiles.remarks(y)

    def knots(self) -> Array:
        """See Distribution: also where the map bends, and the knots of the base."""
        parts = [self.quantile(KNOT_LEVELS[None, :]), self._bends, self._whole.knots()]
        return np.sort(np.concatenate(parts, axis=1), axis=1)

    @property
    def _bends(self) -> Array:
        """Values at which the map bends, (n, L - 2)."""
        return self._continued.value(self.score_map.inverse(self.score_map.shares[:, 1:-1]))

    def breaks(self) -> Array:
        """See Distribution: where the map bends, too, and where the distribution is continued."""
        anchors = self._whole.quantile(ndtr([[-FAR, FAR]]))
        return np.concatenate([self._bends, anchors, self._whole.breaks()], axis=1)


@dataclass(frozen=True, repr=False)
class RecalibratedCount(_ThroughMap, Count):
    """Counts read through ``score_map``: P(Y <= k) = G(F(k)). Made by ``recalibrated``."""

    def __post_init__(self) -> None:
        """Nothing: base and map have checked their parameters."""

    def _log_mass(self, k: Array) -> Array:
        return self.score_map.log_between(self._score(k - 1.0), self._score(k))

    @property
    def largest(self) -> Array:
        return self._base.largest

    @property
    def _base(self) -> Count:
        counts = self.base.counts
        assert isinstance(counts, Count)
        return counts

    def _at_most(self, k: Array) -> Array:
        return self.score_map.below(self._score(k))

    def _beyond(self, k: Array) -> Array:
        return self.score_map.above(self._score(k))

    def _score(self, k: Array) -> Array:
        return normal_scores(self.base.cdf(k), self._base.survival(k))

    def masses(self, support: Array) -> Array:
        """See Count: differences of levels, on the side where both are small."""
        at_most, beyond = self.levels(np.append(support[0] - 1.0, support))
        small = at_most[:, :-1] < beyond[:, :-1]
        return np.maximum(np.where(small, np.diff(at_most, axis=1), -np.diff(beyond, axis=1)), 0.0)

    def levels(self, support: Array) -> tuple[Array, Array]:
        """See Count: those of the base through the map."""
        scores = normal_scores(*self._base.levels(support))
        return self.score_map.below(scores), self.score_map.above(scores)

    def window(self, tail: float = TAIL_MASS) -> tuple[Array, Array]:
        return self._moved_out(self._base.window(tail), np.ones(len(self)), tail)
