"""A distribution read through a map of its levels: P(Y <= y) = G(F(y)), for every family of one target.

The map of a row is G(u) = H(Phi((Phi^-1(u) - b) / c)): b moves and c stretches the distribution in normal scores, so
that one that is c times too narrow becomes right in its tails, too; H, piecewise linear and strictly increasing from 0
to 1, corrects the shape. b = 0, c = 1 and H(v) = v change nothing.

Far out F continues as it goes there (``distributions.continued``). Counts keep their own tail sums.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
from scipy.special import ndtr, ndtri

from congruence.kernels.arrays import Array
from congruence.kernels.distributions import quadrature
from congruence.kernels.distributions.base import KNOT_LEVELS, ByRows, Distribution, Stated
from congruence.kernels.distributions.cells import Cells
from congruence.kernels.distributions.continued import FAR, LOG_ROOT_2_PI, Continued, with_tails
from congruence.kernels.distributions.continuous import Normal
from congruence.kernels.distributions.counts import TAIL_MASS, Count
from congruence.kernels.distributions.quantiles import Quantiles
from congruence.kernels.distributions.recalibrated_draws import recalibrated_draws
from congruence.kernels.distributions.samples import Deterministic, Samples
from congruence.kernels.distributions.score_map import NormalScoreMap, normal_scores
from congruence.kernels.errors import InvalidInputError

_KEPT_VALUES = 4_000_000  # up to which what is searched for serves all parts of a distribution: 64 MB


def recalibrated(base: Distribution, score_map: NormalScoreMap) -> Distribution:
    """``base`` read through ``score_map``: counts stay counts, and where nothing changes base is returned.

    Normal distributions that are moved and stretched are normal. Draws (``Samples``) stay draws, see
    ``recalibrated_draws``. Beyond the outermost of ``Quantiles`` without tails normal ones of the same spread continue
    them.

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
        return recalibrated_draws(base, score_map)
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
    score = Continued(with_tails(law)).score(y[:, None])[:, 0]
    jumps = high > low
    return np.where(jumps, ndtri(low), score), np.where(jumps, ndtri(high), score)


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
        return Continued(with_tails(self.base))

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
