"""What a mean of scores is worth: intervals from mergeable statistics of shards, and tests of paired differences.

Rows fall into buckets by a hash of their key; a shard gives the sums of its scores per bucket, and shards merge by
addition, in any order. Intervals leave out each bucket in turn: random groups of rows, so the spread of their sums is
that of rows, at a cost that does not grow with n. A metric is a function of means (rmse of the mean squared error). A
mean of absolute values (a calibration error) has no derivative where its terms are zero, and needs an interval of
another kind: ``mean_absolute_deviation``.

Is a difference between two models on the same points real? Paired bootstrap and paired permutation.
A metric here is a function of the means of some columns over the points: the mean CRPS is the mean of one column, RMSE
the root of one, a calibration error a function of fifty. Both models' columns are resampled with the same weights, so
what is common to them (hard points) cancels.

The points are taken as independent, as those of NLL, CRPS, absolute and squared errors and PIT values are. CCE values
are not: all of them are estimated from the targets of one reference split, whose noise they share, and neither an
interval nor a p-value from their resampling knows of it. The difference of two mean CCEs belongs to
``engine.results``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from operator import itemgetter
from typing import Any

import numpy as np
from scipy.special import stdtrit

from congruence.kernels.arrays import Array, require_matrix, too_few_rows
from congruence.kernels.dependence.blocks import DependentBlocks, SumOfBlocks, widening, without_each
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.rng import keyed_uniforms, stream


def group_sums(groups: Array, columns: Iterable[Array], count: int) -> Array:
    """The sum of each column (n,) over the rows of each of ``count`` groups, (count, k); ``groups`` (n,) numbers."""
    return np.stack([np.bincount(groups, weights=column, minlength=count) for column in columns], axis=1)


_PRIOR = 4.0
"""Degrees of freedom of the variance within all groups in that of each: two rows know their own by one alone."""


def means_by_group(codes: Array, groups: int, values: Array) -> tuple[Array, Array]:
    """Means of values (n,) in the groups of the rows, each of which has a row, and half of their 95 % intervals, (g,).

    By the moderated t of Smyth (2004): the variance within a group is its own with that of all values, which counts as
    four more rows. So intervals of groups of one to ten rows hold the mean, and none is wide without end.
    """
    rows = np.bincount(codes, minlength=groups)
    means = np.bincount(codes, values, groups) / rows
    squares = np.bincount(codes, (values - means[codes]) ** 2, groups)
    freedom = rows - 1.0 + _PRIOR
    error = np.sqrt((squares + _PRIOR * np.var(values)) / freedom / rows)
    return means, stdtrit(freedom, 0.975) * error


@lru_cache(maxsize=2)
def _bootstrap_weights(count: int, resamples: int, seed: int, purpose: str) -> Array:
    """How often each of ``count`` groups is drawn in each bootstrap sample, (resamples, count)."""
    return stream(seed, purpose).multinomial(count, np.full(count, 1.0 / count), size=resamples).astype(np.float64)


BUCKETS = 1024
RESAMPLES = 1000

LARGEST_BLOCK = 1.0 / 3.0
"""Of all rows: where one block holds more, an interval is of little but what lies outside of it."""

_SIGNS = 50  # drawn sets of signs
_WRONG_SIGN = 0.005  # of draws without any deviation in which the sign of one is taken as known


@dataclass(frozen=True)
class Estimate:
    """A metric's value and its confidence interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class ScoreStatistics:
    """Sums of k scores over the rows of each bucket; add the statistics of shards to merge them.

    Attributes:
        names: the scores, k.
        sums: (buckets, k).
        counts: what the rows of each bucket count for together, (buckets,): their number, or the sum of their weights.
        weighted: rows, and their squared weights, of each bucket, (2, buckets); None where every row counts as 1.
    """

    names: tuple[str, ...]
    sums: Array = field(repr=False)
    counts: Array = field(repr=False)
    weighted: Array | None = field(default=None, repr=False)

    @classmethod
    def of(
        cls, scores: Mapping[str, Any], *, keys: Any | None = None, weights: Array | None = None, buckets: int = BUCKETS
    ) -> ScoreStatistics:
        """The statistics of one shard.

        Args:
            scores: arrays (n,) by name; +inf is allowed, and makes the mean infinite.
            keys: one number or string per row that names it; row numbers by default, right only if there is one shard.
            weights: what each row counts in means, (n,), at least 0.
            buckets: groups of rows; the same for all shards.

        Raises:
            InvalidInputError: no scores, different lengths, or a NaN: rows without a score are to be left out.
        """
        columns = _checked(scores)
        bucket = _buckets_of(keys, len(next(iter(columns.values()))), buckets)
        return cls(tuple(columns), *_added(columns, bucket, weights, buckets))

    def __add__(self, other: ScoreStatistics) -> ScoreStatistics:
        if self.names != other.names or self.sums.shape != other.sums.shape:
            raise InvalidInputError(
                f"ScoreStatistics: cannot merge {self.names} in {len(self.counts)} buckets with {other.names} in "
                f"{len(other.counts)}; use the same scores and buckets for every shard"
            )
        weighted = None if self.weighted is None or other.weighted is None else self.weighted + other.weighted
        return ScoreStatistics(self.names, self.sums + other.sums, self.counts + other.counts, weighted)

    @property
    def rows(self) -> int:
        """Number of rows."""
        return int((self.counts if self.weighted is None else self.weighted[0]).sum())

    @property
    def effective_rows(self) -> float:
        """Of how many equal rows a mean is: (sum w)^2 / sum w^2 (Kish 1965)."""
        if self.weighted is None or not self.counts.any():
            return float(self.counts.sum())
        return float(self.counts.sum() ** 2 / self.weighted[1].sum())

    @property
    def largest(self) -> float:
        """The share of the largest bucket in all that counts."""
        return float(np.max(self.counts) / np.sum(self.counts))

    def means(self) -> dict[str, float]:
        """The mean of every score; NaN where some are infinite of either sign."""
        return dict(zip(self.names, (self._sum / self.counts.sum()).tolist(), strict=True))

    @property
    def _sum(self) -> Array:
        with np.errstate(invalid="ignore"):
            return np.asarray(self.sums.sum(axis=0))

    def too_few(self, blocks: DependentBlocks | None = None) -> str:
        """Why these rows have no interval; "" where they do. See ``weights.too_few_rows``."""
        if blocks is not None and self.largest > LARGEST_BLOCK:
            return too_large_block(self.largest, blocks.kind)
        return "" if self.weighted is None else too_few_rows(self.effective_rows, self.rows)

    def estimates(
        self, functions: Mapping[str, Callable[[Mapping[str, Any]], Any]] | None = None, *, level: float = 0.95
    ) -> dict[str, Estimate]:
        """Intervals of metrics by leaving out each bucket in turn, see ``SumOfBlocks``.

        Where rows depend on each other the numbers of their blocks are to have been the keys.

        Args:
            functions: metrics by name, each a function of the means by name that works on arrays, for example
                ``{"rmse": lambda mean: np.sqrt(mean["squared_error"])}``; by default the means themselves.
            level: coverage of the intervals.

        Raises:
            InvalidInputError: no rows, or a level outside (0, 1).
        """
        self._require_rows(level)
        own: Mapping[str, Callable[[Mapping[str, Any]], Any]] = {name: itemgetter(name) for name in self.names}
        chosen = own if functions is None else functions
        means, result = self.means(), {}
        counts = self.counts[self.counts > 0]
        others = self._means_without_each() if len(counts) > 1 else None
        for name, function in chosen.items():
            value = float(function(means))
            low = high = value
            if others is not None and np.isfinite(value):
                found = SumOfBlocks.by_jackknife(np.asarray(function(others)), counts)
                low, high = found.interval(value, level)
            result[name] = Estimate(value, low, high)
        return result

    def mean_absolute_deviation(
        self,
        centers: Mapping[str, float],
        *,
        level: float = 0.95,
        resamples: int = RESAMPLES,
        seed: int = 0,
        blocks: DependentBlocks | None = None,
    ) -> Estimate:
        """theta = mean_j |E s_j - c_j| over the scores named in ``centers``, with a confidence interval from 0 on.

        The expected calibration error is one, with s_j = [PIT <= p_j] and c_j = p_j. Its estimate T is biased upwards,
        and a bootstrap sample adds its own noise to that of the data: percentiles of T* lie above a theta near 0. Let
        D_j be the observed deviations, G_j their errors with draws G*_j of the bootstrap, and s_j the true signs.

        *Upper end:* theta = mean_j s_j (D_j - G_j) lies below a high quantile of mean_j s_j (D_j - G*_j). Where s_j is
        not known, the largest such quantile over the signs of some draws D_j - G*_j, which are deviations that may be
        the true ones. The signs of D_j alone make an interval too short where these are small by chance.

        *Lower end:* T less a high quantile of mean_j g_j, where g_j is |G*_j|, which holds for any deviation, and
        s_j G*_j for those whose sign is known: |D_j| beyond what max_j |G*_j|, in standard errors, reaches in one of
        two hundred draws (a selection of moments, as in Andrews and Soares 2010). One threshold for each on its own
        would let some through by chance where all deviations are zero.

        By blocks the interval holds that of ``SumOfBlocks`` with the observed signs, too, which knows their skewness.

        Args:
            centers: c_j by the name of the score s_j.
            level: coverage of the interval.
            resamples: bootstrap samples.
            seed: of the bootstrap.
            blocks: whose numbers were the keys of the rows, where these depend on each other.

        Raises:
            InvalidInputError: no rows, a level outside (0, 1), no centers, a name that is no score, or infinite scores.
        """
        self._require_rows(level)
        unknown = [name for name in centers if name not in self.names]
        if unknown or not centers:
            raise InvalidInputError(f"centers: {unknown or 'none'}; give numbers by the names of {self.names}")
        means = self.means()
        deviation = np.array([means[name] - center for name, center in centers.items()])
        if not np.isfinite(deviation).all():
            name = list(centers)[int(np.argmin(np.isfinite(deviation)))]
            raise InvalidInputError(f"{name}: has infinite values; a deviation from {centers[name]} is not defined")
        filled = self.counts > 0
        drawn = _bootstrap_weights(int(filled.sum()), resamples, seed, "bootstrap of buckets")
        columns = np.array([self.names.index(name) for name in centers])
        sums = self.sums[filled][:, columns]
        noise = drawn @ sums / (drawn @ self.counts[filled])[:, None] - [means[name] for name in centers]
        noise *= 1.0 if blocks is None else widening(blocks.count)
        value = float(np.mean(np.abs(deviation)))
        errors = np.std(noise, axis=0)
        ratios = np.divide(np.abs(noise), errors, out=np.zeros_like(noise), where=errors > 0.0)
        known = np.abs(deviation) > np.quantile(np.max(ratios, axis=1), 1.0 - _WRONG_SIGN) * errors
        apart = np.where(known, np.sign(deviation) * noise, np.abs(noise))
        low = value - np.quantile(np.mean(apart, axis=1), (1.0 + level) / 2.0)
        draws = deviation - noise
        signs = np.where(known, np.sign(deviation), np.sign(draws[:_SIGNS]))
        high = float(np.max(np.quantile(draws @ signs.T, (1.0 + level) / 2.0, axis=0))) / len(centers)
        if blocks is not None:
            others = self._means_without_each()
            signed = np.sign(deviation) @ np.stack([others[name] for name in centers]) / len(centers)
            ends = SumOfBlocks.by_jackknife(signed, self.counts[self.counts > 0]).interval(value, level)
            low, high = min(low, ends[0]), max(high, ends[1])
        return Estimate(value, max(0.0, float(low)), float(high))

    def _means_without_each(self) -> dict[str, Array]:
        """The mean of every score over all buckets but one, (buckets that hold a row,); infinite where the whole is."""
        filled = self.counts > 0
        infinite = np.isinf(self.sums).any(axis=0)
        sums = np.where(infinite, 0.0, self.sums[filled])
        means = without_each(sums, self.counts[filled])
        means[:, infinite] = self._sum[infinite]
        return dict(zip(self.names, means.T, strict=True))

    def _require_rows(self, level: float) -> None:
        if not 0.0 < level < 1.0:
            raise InvalidInputError(f"level: is {level}, expected a probability inside (0, 1)")
        if not self.counts.any():
            raise InvalidInputError("ScoreStatistics: no rows that count; a mean needs at least one")


def too_large_block(share: float, kind: str) -> str:
    """Why means have no interval where a block holds so large a share of the rows."""
    return f"one {'group' if kind == 'groups' else 'run of time'} holds {100 * share:.0f} % of the rows"


def _checked(scores: Mapping[str, Any]) -> dict[str, Array]:
    """The scores as arrays of one length without NaN; booleans stay what they are until they are summed."""
    if not scores:
        raise InvalidInputError("scores: there are none; give at least one array")
    given = {name: np.asarray(values) for name, values in scores.items()}
    columns = {
        name: values if values.dtype == bool else np.asarray(values, np.float64) for name, values in given.items()
    }
    rows = len(next(iter(columns.values())))
    for name, values in columns.items():
        if values.shape != (rows,):
            raise InvalidInputError(f"scores: {name!r} has shape {values.shape}, expected ({rows},)")
        if values.dtype != bool and np.isnan(values).any():
            row = int(np.argmax(np.isnan(values)))
            raise InvalidInputError(
                f"scores: {name!r} is NaN in row {row} ({int(np.isnan(values).sum())} rows); leave invalid rows out"
            )
    return columns


def _buckets_of(keys: Any | None, rows: int, buckets: int) -> Array:
    """The bucket of each row, (n,), by a hash of its key."""
    named = np.arange(rows) if keys is None else keys
    bucket = (keyed_uniforms(named, 0, "buckets of rows") * buckets).astype(np.int64)
    if len(bucket) != rows:
        raise InvalidInputError(f"keys: {len(bucket)} keys for {rows} rows; give one key per row")
    return np.asarray(bucket)


def sliced_statistics(
    scores: Mapping[str, Any],
    labels: Any,
    *,
    keys: Any | None = None,
    weights: Array | None = None,
    buckets: int = BUCKETS,
) -> dict[Any, ScoreStatistics]:
    """The statistics of the rows with each label, by label; those of shards add up.

    One pass over each score for all labels: a group is a label and a bucket.
    """
    columns = _checked(scores)
    distinct, code = np.unique(np.asarray(labels), return_inverse=True)
    bucket = _buckets_of(keys, len(code), buckets) + buckets * code
    sums, counts, weighted = _added(columns, bucket, weights, len(distinct) * buckets)
    rows = [slice(i * buckets, (i + 1) * buckets) for i in range(len(distinct))]
    return {
        label: ScoreStatistics(
            tuple(columns), sums[rows[i]], counts[rows[i]], None if weighted is None else weighted[:, rows[i]]
        )
        for i, label in enumerate(distinct.tolist())
    }


def _added(
    columns: Mapping[str, Array], bucket: Array, weights: Array | None, buckets: int
) -> tuple[Array, Array, Array | None]:
    """Sums, counts and what weights add of each bucket, see ``ScoreStatistics``."""
    rows = np.bincount(bucket, minlength=buckets).astype(np.float64)
    if weights is None:
        return group_sums(bucket, columns.values(), buckets), rows, None
    # An infinite score of a row that does not count is not counted.
    counted = (np.multiply(weights, column, out=np.zeros(len(weights)), where=weights > 0.0)
               for column in columns.values())  # fmt: skip
    counts = np.bincount(bucket, weights, buckets)
    return group_sums(bucket, counted, buckets), counts, np.stack([rows, np.bincount(bucket, weights**2, buckets)])


GROUPS = 2000
PAIRED_RESAMPLES = 2000


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
    resamples: int = PAIRED_RESAMPLES
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
        count = self.n if self.blocks is None else self.blocks.count
        order, most = stream(self.seed, "paired groups").permutation(count), min(count, GROUPS)
        return np.asarray(np.argsort(order) % most if self.blocks is None else (order % most)[self.blocks.labels])

    @cached_property
    def _sizes(self) -> Array:
        return np.bincount(self._groups, self.weights).astype(np.float64)

    @cached_property
    def _swaps(self) -> Array:
        rng = stream(self.seed, "paired permutation")
        return rng.integers(0, 2, size=(self.resamples, len(self._sizes))).astype(np.float64)

    def compare(self, first: Any, second: Any, summary: Callable[[Array], Array]) -> PairedDifference:
        """The difference of a metric that is a function of column means, with its interval and p-value.

        Args:
            first, second: columns of the two models at the same points, (n, m).
            summary: maps means (..., m) to the metric (...).

        Raises:
            InvalidInputError: other points, or values not finite.
        """
        columns = [require_matrix(first, "first"), require_matrix(second, "second")]
        if columns[0].shape != columns[1].shape:
            shapes = f"first: shape {columns[0].shape}, second: {columns[1].shape}"
            raise InvalidInputError(f"{shapes}; the points must be the same")
        if len(columns[0]) != self.n:
            raise InvalidInputError(f"metric: {len(columns[0])} points, but the resampling was made for {self.n}")
        counted = 1.0 if self.weights is None else self.weights[:, None]
        first, second = (group_sums(self._groups, (each * counted).T, len(self._sizes)) for each in columns)
        values = [float(summary(sums.sum(axis=0) / self.n)) for sums in (first, second)]
        difference = values[0] - values[1]
        if self.blocks is not None or first.shape[1] == 1:
            one, two = (summary(without_each(sums, self._sizes)) for sums in (first, second))
            found = SumOfBlocks.by_jackknife(one - two, self._sizes)
            low, high = found.interval(difference)
            if self.blocks is not None:
                return PairedDifference(values[0], values[1], difference, low, high, found.p_value(difference))
            # Of several means, exchanged columns are those of a mixture of the two models: a model biased up and one
            # biased down by as much have the same calibration error, and their mixture almost none, so that permutation
            # would call the chance difference of the two significant nine times in ten.
            swapped = self._swaps @ (first - second)
            one, two = (first.sum(axis=0) - swapped) / self.n, (second.sum(axis=0) + swapped) / self.n
            null = summary(one) - summary(two)
            # Rounding must not make a tie with the observed difference look smaller than it.
            reached = int(np.count_nonzero(np.abs(null) >= abs(difference) * (1.0 - 1e-12)))
        else:
            weights = _bootstrap_weights(len(self._sizes), self.resamples, self.seed, "paired bootstrap")
            size = (weights @ self._sizes)[:, None]
            drawn = summary(weights @ first / size) - summary(weights @ second / size)
            low, high = np.quantile(drawn, [0.025, 0.975]).tolist()
            reached = 1 + 2 * int(min(np.count_nonzero(drawn <= 0.0), np.count_nonzero(drawn >= 0.0)))
        return PairedDifference(
            values[0], values[1], difference, low, high, min(1.0, float((1 + reached) / (self.resamples + 1)))
        )


def mean_of(values: Array) -> Array:
    """The summary of a metric that is the mean of one column."""
    return np.asarray(values[..., 0])


def root_of(values: Array) -> Array:
    """The summary of a metric that is the root of the mean of one column."""
    return np.asarray(np.sqrt(values[..., 0]))
