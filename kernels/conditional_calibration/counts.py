r"""Scores of counts without noise of our own: means over the jump of the predictive distribution that holds the target.

A randomised PIT value of a sparse count is mostly the random number V. The mean of its scores over V,

.. math::  \bar\phi_{ij} = \frac{1}{b_i - a_i} \int_{a_i}^{b_i} \phi_j(u)\, du, \qquad
           a_i = F_i(y_i-),\; b_i = F_i(y_i),

has mean 0 if the model is the truth and no randomness but the data's. Its distribution is each version's own: the null
is drawn by u uniform in (0, 1), from the jump that holds u, and every statistic is put on one scale by the moments of
its own draws. Targets of continuous distributions that are rounded are counts of steps: the jump is that of the cell
around the target.

What is wrong with predicted counts, in the counts' own terms: their sum, zeros, ones, two and more.

PIT scores say little to a reader of counts with many zeros: 95 % of the values are drawn from the same jump. Here the
sum of the targets is set beside the sum of the predicted means, and the number of rows with 0, 1, 2 and more beside the
sum of their predicted probabilities. If the version is true each difference has mean 0 and a variance that the version
states, and its p-value is that of a Poisson distribution stretched to this variance (exact for Poisson sums, close to
the normal where the sums are large). The interval of observed over expected is Garwood's (1936), stretched by the
dispersion of the rows as they are (McCullagh and Nelder 1989, section 9.2.4), and holds whether the version is true or
not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
from scipy.special import gammainc, gammaincc, gammaincinv

from congruence.kernels.arrays import Array, RowFields, row_slices
from congruence.kernels.dependence.blocks import FEWEST_BLOCKS, DependentBlocks, t_quantile
from congruence.kernels.distributions import Distribution
from congruence.kernels.distributions.cells import Cells
from congruence.kernels.engine.congruence_test import benjamini_hochberg
from congruence.kernels.pit import ORDERS, mean_scores, pit_ranges

TAIL = 1e-7
"""Of a distribution, beyond which on either side its jumps are taken as one."""

LARGEST_TABLE = 4096
"""Counts between the tails of the widest distribution of a split, beyond which no row is scored by means over jumps."""

TAIL_OF_CELLS = 1e-3
"""The same of cells to which targets are rounded: of heavy tails these are many, and score as the outermost does."""

_READ_AT_ONCE = 4096
_COMPARED = 64  # counts or cells that take less to compare with each draw than a search among them
WORTH_NAMING = 0.05
"""A relative difference of a sum, or of a share of the rows, below which a fault, however certain, hardly matters."""
MANY_ZEROS = 0.2
"""Share of zeros, observed or predicted, from which counts are read in these terms."""
_LEVEL = 0.05
_FEW = 20  # below, the dispersion of the rows is not known well enough to be taken as less than Poisson's
_CHUNK = 2**16


def table_width(predictive: Distribution) -> int:
    """Cells that n distributions state, or counts between the tails of the widest of them; 0 where they state more."""
    if not predictive.has_steps or len(predictive) == 0:
        return 0
    cells = predictive[:1].cells(np.zeros(1))
    return _width(_spans(predictive)) if cells is None else cells.ends.shape[1]


def _spans(predictive: Distribution) -> Array:
    """The first and the last count of the table of each distribution, (n, 2), which it keeps."""
    kept = vars(predictive)
    if "spans" not in kept:
        kept["spans"] = predictive.quantile(np.array([[TAIL, 1.0 - TAIL]]))
    return np.asarray(kept["spans"])


def is_by_jumps(predictive: Distribution, width: float, step: float | None) -> bool:
    """Whether scores are means over jumps: those of tables of at most a ``width``, or of cells of a ``step``.

    The rank among draws is scored as it is.
    """
    return 0 < width <= LARGEST_TABLE or (step is not None and predictive.stated == "all")


def _width(spans: Array) -> int:
    """How many counts the widest distribution needs."""
    return int(np.max(spans[:, 1] - spans[:, 0])) + 1


@dataclass(frozen=True)
class JumpScores:
    """Scores by rows: means over the jumps of counts, or over cells, (n, 4), and their null.

    The null takes a table of each distribution of counts, which is made when it is first asked for.
    """

    values: Array = field(repr=False)
    predictive: Distribution = field(repr=False)
    cells: Cells | None = field(default=None, repr=False)
    """Where these are stated."""
    grid: tuple[Array, float] | None = field(default=None, repr=False)
    """Targets (n,), and the step to which they are rounded, where cells are made of these."""

    @classmethod
    def of(cls, y: Array, predictive: Distribution, step: float | None = None) -> JumpScores | None:
        """Of outcomes y (n,); None where all is stated, and of counts too wide for a table (small jumps).

        ``step``: of cells in which outcomes are judged, see ``pit.cell_step``.
        """
        if y.ndim != 1 or not is_by_jumps(predictive, table_width(predictive), step):
            return None
        return cls.at(y, predictive, step)

    @classmethod
    def at(cls, y: Array, predictive: Distribution, step: float | None = None) -> JumpScores:
        """Of outcomes y (n,) whose distributions are known to need no wide table."""
        cells = predictive.cells(y, step)
        scores = mean_scores(*(pit_ranges(y, predictive, step) if cells is None else cells.range))
        return cls(scores, predictive, cells, None if step is None else (y, step))

    @property
    def levels(self) -> Array | None:
        """Of the quantiles that are stated, (K,); None of a version that states anything else."""
        return None if self.cells is None else self.predictive.quantile_levels

    @cached_property
    def ends(self) -> Array:
        """F_i at successive counts between the tails, or at the ends of cells, (n, K)."""
        if self.cells is not None:
            return np.broadcast_to(self.cells.ends, (len(self), self.cells.ends.shape[1]))
        predicted, spans = self.predictive, self.spans
        places = spans[:, :1] + np.arange(_width(spans))
        if self.grid is not None:
            y, step = self.grid
            ends = np.array(predicted.cdf(y[:, None] + step * (places + 0.5)))
        else:
            ends = np.array(predicted.cdf(places) if predicted.counts is None else predicted.counts.cumulative(places))
        ends[:, -1] = 1.0
        return ends

    @cached_property
    def spans(self) -> Array:
        """The first and the last count of each table; of a grid, in steps from the target."""
        if self.grid is None:
            return _spans(self.predictive)
        y, step = self.grid
        reach = (self.predictive.quantile(np.array([[TAIL_OF_CELLS, 0.5, 1.0 - TAIL_OF_CELLS]])) - y[:, None]) / step
        middle = np.rint(reach[:, 1:2])
        most = LARGEST_TABLE // 2 - 1
        return np.asarray(middle + np.clip(np.rint(reach[:, ::2]) - middle, -most, most))

    @property
    def starts(self) -> Array:
        """F_i below each count, or where each cell starts, (n, K)."""
        if self.cells is not None:
            return np.broadcast_to(self.cells.starts, self.ends.shape)
        return np.concatenate([np.zeros((len(self), 1)), self.ends[:, :-1]], axis=1)

    @cached_property
    def variance(self) -> Array:
        """Of each score if the model is the truth, (n, 4)."""
        if len(self) > _READ_AT_ONCE:
            return np.concatenate([part.variance for part in self.parts(_READ_AT_ONCE)])
        starts, ends = self.starts, self.ends
        mass = np.diff(ends, axis=1, prepend=0.0)  # cells that are one are counted once
        return np.asarray(np.einsum("nk,nkj->nj", mass, mean_scores(starts, ends) ** 2))

    def drawn(self, u: Array) -> Array:
        """The scores of draws from each distribution, (n, 4, D) of single precision, for uniform numbers u (n, D)."""
        starts, ends = self.starts, self.ends
        n, width = ends.shape
        row = np.arange(n)[:, None]
        if width <= _COMPARED:
            within, u = np.zeros(u.shape, dtype=np.uint8), u.astype(np.float64, copy=False)
            for end in ends.T[:-1]:  # nothing lies beyond the last one
                within += (end[:, None] < u).view(np.uint8)
            place = row * width + within
        else:  # one search for all rows: those of row i lie between i and i + 1
            place = np.searchsorted((ends + row).ravel(), (u + row).ravel(), side="left").reshape(u.shape)
            place = np.clip(place, row * width, row * width + width - 1)
        drawn = np.empty((n, len(ORDERS), u.shape[1]), dtype=np.float32)
        if width <= u.shape[1]:  # few counts: each is scored once, whatever is drawn
            for order, scores in enumerate(mean_scores(starts, ends).reshape(-1, len(ORDERS)).T.astype(np.float32)):
                drawn[:, order] = scores[place]
        else:
            drawn[:] = mean_scores(starts.ravel()[place], ends.ravel()[place]).transpose(0, 2, 1)
        return drawn

    def parts(self, size: int) -> Iterator[JumpScores]:
        """Parts of so many rows, with the spans of their tables, which are found for all of them at once."""
        for rows in row_slices(len(self), size):
            part = self[rows]
            if self.cells is None:
                vars(part)["spans"] = self.spans[rows]
            yield part

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, rows: Any) -> JumpScores:
        cells = None if self.cells is None else self.cells[rows]
        grid = None if self.grid is None else (self.grid[0][rows], self.grid[1])
        part = JumpScores(self.values[rows], self.predictive[rows], cells, grid)
        if "variance" in vars(self):
            vars(part)["variance"] = self.variance[rows]
        return part


@dataclass(frozen=True)
class CountRows(RowFields):
    """Counts y and what is predicted for each, (n,) all: mean, variance, P(Y = 0), P(Y = 1)."""

    y: Array = field(repr=False)
    mean: Array = field(repr=False)
    variance: Array = field(repr=False)
    zero: Array = field(repr=False)
    one: Array = field(repr=False)

    @classmethod
    def of(cls, y: Array, predictive: Distribution) -> CountRows | None:
        """From targets (n,) and n predictive distributions; None of anything but counts with many zeros."""
        if not predictive.is_discrete or y.ndim != 1 or len(y) == 0:
            return None
        parts = []
        for rows in row_slices(len(y), _CHUNK):
            some = predictive[rows]
            parts.append((some.mean(), some.std() ** 2, np.exp(some.log_prob(0.0)), np.exp(some.log_prob(1.0))))
        mean, variance, zero, one = (np.concatenate(column) for column in zip(*parts, strict=True))
        if max(float(np.mean(y == 0.0)), float(np.mean(zero))) < MANY_ZEROS or float(np.min(y)) < 0.0:
            return None
        return cls(y, mean, variance, zero, one)


@dataclass(frozen=True)
class Tally:
    """A number that was observed, the one that is expected, and its variance if the version is true.

    ``rows``: of how many rows it counts some; None of a sum of targets.
    """

    observed: float
    expected: float
    variance: float
    rows: int | None = None

    @property
    def p_value(self) -> float:
        """Two-sided."""
        observed, expected = self._smaller
        if expected <= 0.0 or not np.isfinite(self.variance) or self.variance <= 0.0:
            return 1.0 if observed <= max(expected, 0.0) or not np.isfinite(self.variance) else 0.0
        phi = self.variance / expected
        low = float(gammaincc(observed / phi + 1.0, expected / phi))
        high = float(gammainc(observed / phi, expected / phi)) if observed > 0.0 else 1.0
        return min(1.0, 2.0 * min(low, high))

    @property
    def relative(self) -> float:
        """Observed over expected less 1; of a share of the rows, of it or of the rest, whichever is smaller."""
        observed, expected = self._smaller
        if expected <= 0.0:
            return 0.0 if observed <= 0.0 else np.inf
        return observed / expected - 1.0

    @property
    def observed_share(self) -> float:
        """Of the rows."""
        return self.observed / (self.rows or 1)

    @property
    def expected_share(self) -> float:
        """Of the rows."""
        return self.expected / (self.rows or 1)

    def is_off(self, level: float = _LEVEL) -> bool:
        """Whether it differs by more than chance and by enough to be worth naming."""
        return self.p_value <= level and abs(self.relative) >= WORTH_NAMING

    @property
    def _smaller(self) -> tuple[float, float]:
        if self.rows is not None and self.expected > self.rows / 2.0:
            return self.rows - self.observed, self.rows - self.expected
        return self.observed, self.expected


@dataclass(frozen=True)
class CountReading:
    """What is observed and expected in a group of rows.

    Attributes:
        rows: how many they are.
        share: of the split.
        total: the sum of the targets.
        low, high: 95 % interval of observed over expected sum.
        zeros, ones, more: rows with 0, 1, 2 and more.
    """

    rows: int
    share: float
    total: Tally
    low: float
    high: float
    zeros: Tally
    ones: Tally
    more: Tally

    @property
    def ratio(self) -> float:
        """Observed over expected sum: below 1 the predicted means are too large."""
        return self.total.observed / self.total.expected if self.total.expected > 0.0 else np.inf

    @property
    def p_value(self) -> float:
        """Of the group over the sum and the three numbers of rows (Bonferroni)."""
        return min(1.0, 4.0 * min(tally.p_value for tally in (self.total, *self.shares)))

    @property
    def shares(self) -> tuple[Tally, Tally, Tally]:
        """Zeros, ones, two and more."""
        return self.zeros, self.ones, self.more

    @property
    def mean_is_off(self) -> bool:
        """Whether the sum is wrong by more than chance, whatever the rows' dispersion, and by enough to be named."""
        return self.total.is_off(_LEVEL / 4.0) and not self.low <= 1.0 <= self.high

    @property
    def mean_comes_first(self) -> bool:
        """Whether the sum's fault is the larger: as factors, those of zeros and ones are at most its square."""
        ratios = [1.0 + self.zeros.relative, 1.0 + self.ones.relative]
        shape = max(abs(float(np.log(max(ratio, 1e-12)))) for ratio in ratios)
        return self.mean_is_off and 2.0 * abs(float(np.log(max(self.ratio, 1e-12)))) >= shape

    @property
    def shape_is_off(self) -> bool:
        """Whether zeros, ones or two and more are."""
        return any(tally.is_off(_LEVEL / 4.0) for tally in self.shares)

    @property
    def is_off(self) -> bool:
        """Whether there is a fault worth naming."""
        return self.mean_is_off or self.shape_is_off

    @property
    def size(self) -> float:
        """What the fault weighs: the squared differences of the sum and of the numbers of rows over those expected."""
        tallies = (self.total, *self.shares)
        return sum((one.observed - one.expected) ** 2 / max(one.expected, 1.0) for one in tallies)


def count_reading(rows: CountRows, chosen: Any | None = None, blocks: DependentBlocks | None = None) -> CountReading:
    """Read some rows, by their numbers or a mask; all by default.

    ``blocks`` of all rows where they depend on each other: variances are then those of sums within blocks, and p-values
    are 1 where the rows have fewer than ten of them.
    """
    part = rows if chosen is None else rows[np.asarray(chosen)]
    own = blocks if blocks is None or chosen is None else blocks.of_rows(np.asarray(chosen))
    n, two = len(part), np.clip(1.0 - part.zero - part.one, 0.0, 1.0)

    def tally(found: Array, expected: Array, variance: Array, count: int | None = None) -> Tally:
        spread = float(np.sum(variance))
        if own is not None:
            # Sums of a slice without a claim hardly vary from block to block, and say nothing of a right version.
            apart, is_known = found - expected, own.count >= FEWEST_BLOCKS
            spread = max(spread, own.error_of_sum(apart - apart.mean()) ** 2 if is_known else np.inf)
        return Tally(float(np.sum(found)), float(np.sum(expected)), spread, count)

    def rows_with(found: Array, chance: Array) -> Tally:
        return tally(found, chance, chance * (1.0 - chance), n)

    total = tally(part.y, part.mean, part.variance)

    return CountReading(
        n,
        n / len(rows),
        total,
        *_ratio_interval(part, total, own),
        rows_with(part.y == 0.0, part.zero),
        rows_with(part.y == 1.0, part.one),
        rows_with(part.y >= 2.0, two),
    )


R = TypeVar("R")


def by_group(
    read: Callable[[Array], R], groups: Mapping[str, Any], fewest: int
) -> tuple[dict[str, R], dict[str, float]]:
    """The reading of each named group of at least ``fewest`` rows, by numbers or a mask, and q-values over them."""
    rows = {name: np.asarray(chosen) for name, chosen in groups.items()}
    rows = {name: np.flatnonzero(chosen) if chosen.dtype == bool else chosen for name, chosen in rows.items()}
    readings = {name: read(chosen) for name, chosen in rows.items() if len(chosen) >= fewest}
    found: Iterable[Any] = readings.values()
    p_values = np.array([reading.p_value for reading in found])
    q_values = benjamini_hochberg(p_values) if readings else p_values
    return readings, dict(zip(readings, map(float, q_values), strict=True))


def _ratio_interval(part: CountRows, total: Tally, blocks: DependentBlocks | None) -> tuple[float, float]:
    observed, expected = total.observed, total.expected
    if expected <= 0.0:
        return 0.0, np.inf
    fitted = part.mean * (observed / expected)
    phi = float(np.sum((part.y - fitted) ** 2)) / observed if observed > 0.0 else 1.0
    if blocks is not None and blocks.count > 1 and observed > 0.0:
        phi = (blocks.error_of_sum(part.y - fitted) * t_quantile(blocks.effective) / t_quantile(None)) ** 2 / observed
    phi = max(phi, 1.0) if observed < _FEW else max(phi, 1e-12)
    low = phi * float(gammaincinv(observed / phi, 0.025)) if observed > 0.0 else 0.0
    return low / expected, phi * float(gammaincinv(observed / phi + 1.0, 0.975)) / expected
