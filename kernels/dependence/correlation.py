"""How the dependence of rows is seen: by scores of outcomes beside predictions, and by a look nobody asked for.

The look is along time, along the order of the rows, and within groups.

The PIT scores of independent rows are exchangeable if the model is the truth, so each look is an exact test by
permutations of the rows; Bonferroni over the looks keeps false alarms at most 1 % in all. What is found has to be there
without the few rows, one after the other, that make the most of it, or without the group that does.

Rows that depend on each other are never on both sides of a hold-out. Every hold-out, fold and sample is drawn here.
Groups stay whole. Time is cut at few places, and beside a cut a stretch is left out: of a tenth of the rows where the
length of runs is not known, since with longer ones there are fewer than ten and nothing is judged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from congruence.kernels.arrays import Array
from congruence.kernels.dependence.blocks import (
    FEWEST_BLOCKS,
    DependentBlocks,
    RowDependence,
    lag_correlations,
    time_ranks,
)
from congruence.kernels.distributions import Distribution
from congruence.kernels.pit import cell_steps, mean_scores, pit_ranges, pit_scores, pit_values
from congruence.kernels.rng import keyed_uniforms, stream

LEVEL = 0.01
PERMUTATIONS = 1_999
_LEVEL_OF_REST = 0.02
_FEW, _SHARE = 10, 0.02  # rows one after the other that do not make all of them correlated
_VALUES = 20_000_000  # of n times permutations, beyond which fewer are drawn
_VALUES_TOGETHER = 50_000  # of the permutations that are looked at together


def dependence_scores(y: Array, predictive: Distribution, n: int | None = None) -> Array:
    """Of some rows, (s, r): the four PIT scores without noise of our own; of vector targets, standardised residuals.

    Those of targets that are rounded coarsely are means over their cells: at the targets they would follow slow inputs.
    ``n``: rows of the split; by default these.
    """
    steps = cell_steps(y, predictive, n) or (None,)
    if y.ndim == 2:
        spread = predictive.std()
        scores = np.asarray((y - predictive.mean()) / np.where(spread > 0.0, spread, 1.0))
        for column, step in enumerate(steps):
            if step is not None and (law := predictive.marginal(column)) is not None:
                scores[:, column] = mean_scores(*pit_ranges(y[:, column], law, step))[:, 0]
        return scores
    if predictive.has_steps or steps[0] is not None:
        return mean_scores(*pit_ranges(y, predictive, steps[0]))
    return pit_scores(pit_values(y, predictive))


def version_blocks(dependence: RowDependence | None, y: Array, *models: Distribution) -> DependentBlocks | None:
    """Blocks of rows that may depend on each other beside what a version predicts; None of independent rows.

    For the difference of several versions: runs of time as long as the longest of theirs.

    Raises:
        InvalidInputError: fewer than ten groups or runs of time, of counts fewer than ten that hold any.
    """
    if dependence is None:
        return None

    def scores() -> Array:
        return np.hstack([dependence_scores(y, predictive) for predictive in models])

    return dependence.blocks(scores, counts=y if any(predictive.is_discrete for predictive in models) else None)


@dataclass(frozen=True)
class Correlation:
    """What one look found.

    Attributes:
        along: "time", "row order", or the name of the grouping column.
        value: lag-1 correlation, or correlation within groups, the largest over the scores.
        p_value: by permutations.
        is_found: whether rows are correlated, false alarms over all looks at most 1 %.
    """

    along: str
    value: float
    p_value: float
    is_found: bool


def correlations(
    scores: Array, *, time: Any | None = None, groups: Mapping[str, Any] | None = None, seed: int = 0
) -> list[Correlation]:
    """Look along the time, or along the order of the rows where none is given, and within groups of candidate columns.

    Args:
        scores: PIT scores of the rows, (n, r).
        time: of the rows, (n,).
        groups: candidate columns by name, (n,) each; those without a repeated value are left out.
        seed: of the permutations.

    Returns:
        What each look found.
    """
    n = len(scores)
    order = slice(None) if time is None else np.argsort(time_ranks(time, n), kind="stable")
    ordered = np.asarray(scores, dtype=np.float64)[order]
    looks: list[tuple[str, _InOrder | _WithinGroups]] = [("row order" if time is None else "time", _InOrder())]
    for name, column in (groups or {}).items():
        labels = np.unique(np.asarray(column), return_inverse=True)[1].reshape(-1)[order]
        if labels.max(initial=0) + 1 < n:
            looks.append((name, _WithinGroups(labels)))
    found: list[Correlation] = []
    level = LEVEL / len(looks)
    for name, look in looks:
        rng = stream(seed, "permutations of rows", len(found))
        value, p_value = _tested(ordered, look, level, rng)
        if p_value <= level:
            # Six outliers at the end of a file have scores at the end of their range, one after the other. Rows that
            # are correlated are so without any handful of them, too.
            few = look.most(ordered)
            _, of_rest = _tested(ordered[~few], look.of_rows(~few), _LEVEL_OF_REST, rng)
            p_value = p_value if of_rest <= _LEVEL_OF_REST else of_rest
        found.append(Correlation(name, value, p_value, p_value <= level))
    return found


class _InOrder:
    """Lag-1 correlation of columns of scores (..., n, r)."""

    def __call__(self, scores: Array) -> Array:
        return lag_correlations(scores)

    def most(self, scores: Array) -> Array:
        """Those of a few rows one after the other that make the most of it, (n,)."""
        centred = scores[:, int(np.argmax(self(scores)))]
        centred = centred - centred.mean()
        sums = np.cumsum(np.append(0.0, centred[1:] * centred[:-1]))
        count = len(scores)
        few = min(max(_FEW, int(_SHARE * count)), count - 2)
        start = int(np.argmax(sums[few - 1 :] - sums[: count - few + 1]))
        rows = np.arange(count)
        return np.asarray((rows >= start) & (rows < start + few))

    def of_rows(self, _: Array) -> _InOrder:
        """The same of some rows."""
        return self


@dataclass(frozen=True)
class _WithinGroups:
    """Mean product of two rows of one group over the mean square, of columns of scores (..., n, r)."""

    labels: Array

    def __call__(self, scores: Array) -> Array:
        centred = scores - scores.mean(axis=-2, keepdims=True)
        sizes = np.bincount(self.labels)
        pairs = float(np.sum(sizes * (sizes - 1.0)))
        squares = np.sum(centred**2, axis=-2)
        within = self._products(centred).sum(axis=-2) / pairs
        rows = scores.shape[-2]
        return np.asarray(np.divide(within, squares / rows, out=np.zeros_like(within), where=squares > 0))

    def most(self, scores: Array) -> Array:
        """Those of the group that makes the most of it, (n,)."""
        products = self._products(scores - scores.mean(axis=0))
        return np.asarray(self.labels == np.argmax(products[:, int(np.argmax(self(scores)))]))

    def of_rows(self, kept: Array) -> _WithinGroups:
        """The same of some rows."""
        return _WithinGroups(self.labels[kept])

    def _products(self, centred: Array) -> Array:
        """Twice the products of every two rows of each group, summed, (..., groups, r)."""
        *shape, _, columns = centred.shape
        sets, groups = int(np.prod(shape)), int(np.max(self.labels)) + 1
        cells = (self.labels + groups * np.arange(sets)[:, None]).ravel()
        sums, squares = (
            np.stack([np.bincount(cells, column, sets * groups) for column in values.reshape(-1, columns).T], axis=-1)
            for values in (centred, centred**2)
        )
        return np.asarray(sums**2 - squares).reshape(*shape, groups, columns)


def _tested(
    scores: Array, statistic: Callable[[Array], Array], level: float, rng: np.random.Generator
) -> tuple[float, float]:
    """The largest value over the scores, and the p-value of that by permutations.

    They stop once so many have reached it that it cannot be found at ``level`` (Besag and Clifford 1991).
    """
    observed, reached = float(np.max(statistic(scores))), 0
    draws = int(np.clip(_VALUES // scores.size, 399, PERMUTATIONS))
    together = int(np.clip(_VALUES_TOGETHER // scores.size, 1, 32))
    for done in range(0, draws, together):
        orders = np.stack([rng.permutation(len(scores)) for _ in range(min(together, draws - done))])
        for drawn, value in enumerate(np.max(statistic(scores[orders]), axis=-1), done + 1):
            reached += bool(value >= observed)
            if 1 + reached > level * (draws + 1):
                return observed, (1 + reached) / (drawn + 1)
    return observed, (1 + reached) / (draws + 1)


WINDOWS = 4
"""Stretches of time that a sample of rows is of."""

_PURPOSE = "rows that a recalibration is fitted on"


@dataclass(frozen=True)
class HoldOut:
    """Two parts of some rows, as masks (n,): a row beside a cut of time is in neither."""

    fitting: Array
    held_out: Array


def hold_out(keys: Any, dependence: RowDependence | None = None) -> HoldOut:
    """About half of the rows to fit on, the same half for every version, whatever the order of the rows.

    Independent rows by their keys (n,), groups by their values. Of time the earlier rows are fitted on and the later
    ones held out, with a tenth of the rows between them in neither.
    """
    if dependence is not None and dependence.groups is None:
        place = _places(dependence.time)
        margin = 0.5 / FEWEST_BLOCKS
        return HoldOut(place < 0.5 - margin, place >= 0.5 + margin)
    named = keys if dependence is None else dependence.groups
    fitting = np.asarray(keyed_uniforms(named, 0, _PURPOSE) < 0.5)
    return HoldOut(fitting, ~fitting)


@dataclass(frozen=True)
class Folds:
    """The fold of every row, (n,), and which rows a fit without their neighbours' fold must leave out, (n,)."""

    numbers: Array
    beside_cuts: Array


def folds(keys: Any, count: int, seed: int, purpose: str, blocks: DependentBlocks | None = None) -> Folds:
    """``count`` folds: of equal sizes by the keys of independent rows, of whole groups, or of stretches of time."""
    n = len(keys)
    if blocks is None:
        numbers = np.empty(n, dtype=np.intp)
        numbers[np.argsort(keyed_uniforms(keys, seed, purpose), kind="stable")] = np.arange(n) % count
        return Folds(numbers, np.zeros(n, dtype=bool))
    if blocks.kind != "time":
        of_block = stream(seed, purpose).permutation(blocks.count) % count
        return Folds(of_block[blocks.labels], np.zeros(n, dtype=bool))
    of_block = np.arange(blocks.count) * count // blocks.count
    cut = np.append(of_block[1:] != of_block[:-1], False)
    return Folds(of_block[blocks.labels], cut[blocks.labels])


def sample(dependence: RowDependence, rows: int, seed: int, purpose: str) -> Array:
    """Numbers of some ``rows``, ascending: whole groups, at least ten, or a few stretches of time."""
    rng = stream(seed, purpose)
    if dependence.groups is not None:
        _, labels, sizes = np.unique(dependence.groups, return_inverse=True, return_counts=True)
        order = rng.permutation(len(sizes))
        enough = int(np.searchsorted(np.cumsum(sizes[order]), rows, side="right"))
        chosen = order[: max(enough, min(FEWEST_BLOCKS, len(order)))]
        return np.flatnonzero(np.isin(labels.reshape(-1), chosen))
    length, order = rows // WINDOWS, np.argsort(_places(dependence.time), kind="stable")
    free = len(order) - WINDOWS * length
    starts = np.sort(rng.integers(0, free + 1, WINDOWS)) + length * np.arange(WINDOWS)
    return np.sort(np.concatenate([order[start : start + length] for start in starts.tolist()]))


def _places(time: Array | None) -> Array:
    """The share of rows before each time, (n,): rows of one time have one place."""
    assert time is not None, "rows depend on each other within groups or near in time"
    return np.searchsorted(np.sort(time), time, side="left") / len(time)
