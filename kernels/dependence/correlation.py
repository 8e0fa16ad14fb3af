"""How the dependence of rows is seen: by scores of outcomes beside predictions, and by a look that nobody asked for.

The look is along time, along the order of the rows, and within groups.

The PIT scores of independent rows are exchangeable if the model is the truth, so each look is an exact test by
permutations of the rows; Bonferroni over the looks keeps false alarms at most 1 % in all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from congruence.kernels.arrays import Array
from congruence.kernels.calibration.pit import pit_values
from congruence.kernels.calibration.pit_scores import mean_scores, pit_scores
from congruence.kernels.dependence.blocks import DependentBlocks, RowDependence, lag_correlations, time_ranks
from congruence.kernels.distributions import Distribution
from congruence.kernels.streams import stream

LEVEL = 0.01
PERMUTATIONS = 1_999
_VALUES = 20_000_000  # of n times permutations, beyond which fewer are drawn


def dependence_scores(y: Array, predictive: Distribution) -> Array:
    """Of n rows, (n, r): the four PIT scores without noise of our own; of vector targets, standardised residuals."""
    if y.ndim == 2:
        spread = predictive.std()
        return np.asarray((y - predictive.mean()) / np.where(spread > 0.0, spread, 1.0))
    if predictive.has_steps:
        return mean_scores(*predictive.pit_range(y))
    return pit_scores(pit_values(y, predictive))


def version_blocks(dependence: RowDependence | None, y: Array, *models: Distribution) -> DependentBlocks | None:
    """Blocks of rows that may depend on each other beside what a version predicts; None of independent rows.

    For the difference of several versions: runs of time as long as the longest of theirs.

    Raises:
        InvalidInputError: fewer than ten groups or runs of time, of counts fewer than ten that hold any.
    """
    if dependence is None:
        return None
    noisy = any(predictive.is_discrete for predictive in models)

    def scores() -> Array:
        return np.hstack([dependence_scores(y, predictive) for predictive in models])

    return dependence.blocks(scores, noisy=noisy, counts=y if noisy else None)


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
    looks: list[tuple[str, Callable[[Array], Array]]] = [("row order" if time is None else "time", lag_correlations)]
    for name, column in (groups or {}).items():
        labels = np.unique(np.asarray(column), return_inverse=True)[1].reshape(-1)[order]
        if labels.max(initial=0) + 1 < n:
            looks.append((name, _WithinGroups(labels)))
    found: list[Correlation] = []
    level = LEVEL / len(looks)
    for name, statistic in looks:
        value, p_value = _tested(ordered, statistic, level, stream(seed, "permutations of rows", len(found)))
        found.append(Correlation(name, value, p_value, p_value <= level))
    return found


@dataclass(frozen=True)
class _WithinGroups:
    """Mean product of two rows of one group over the mean square."""

    labels: Array

    def __call__(self, scores: Array) -> Array:
        centred = scores - scores.mean(axis=0)
        sizes = np.bincount(self.labels)
        pairs = float(np.sum(sizes * (sizes - 1.0)))
        sums = np.column_stack([np.bincount(self.labels, column) for column in centred.T])
        squares = np.sum(centred**2, axis=0)
        within = (np.sum(sums**2, axis=0) - squares) / pairs
        return np.asarray(np.divide(within, squares / len(scores), out=np.zeros_like(within), where=squares > 0))


def _tested(
    scores: Array, statistic: Callable[[Array], Array], level: float, rng: np.random.Generator
) -> tuple[float, float]:
    """The largest value over the scores, and the p-value of that.

    Permutations stop once so many have reached it that it cannot be found at ``level`` (Besag and Clifford 1991).
    """
    observed, reached = float(np.max(statistic(scores))), 0
    draws = int(np.clip(_VALUES // scores.size, 399, PERMUTATIONS))
    for drawn in range(1, draws + 1):
        reached += float(np.max(statistic(rng.permutation(scores)))) >= observed
        if 1 + reached > level * (draws + 1):
            return observed, (1 + reached) / (drawn + 1)
    return observed, (1 + reached) / (draws + 1)
