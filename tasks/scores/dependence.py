"""Rows of an evaluation that depend on each other: as the split says, or as its PIT scores show without being asked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from congruence.kernels.arrays import Array
from congruence.kernels.conditional_calibration.local_reading import LocalReading
from congruence.kernels.dependence.blocks import RowDependence
from congruence.kernels.dependence.correlation import Correlation, correlations, dependence_scores
from congruence.kernels.distributions import Distribution
from congruence.kernels.engine.blocks import FoundBlocks, found_blocks
from congruence.tasks.scores.evaluation import Columns
from congruence.tasks.scores.metrics.registry import ROW_GROUP, ROW_TIME, mean_columns

MOST_EMBEDDED = 50_000
"""Rows beyond which identical inputs are not looked for."""

LARGEST_GROUP = 50
"""Rows of a group on average, beyond which a column is a category of rows rather than what one row shares with few."""

_SORTED = 0.98
_MOST_ROWS, _RUNS = 250_000, 16


def dependence_of(scores: Columns, rows: Array | None = None) -> RowDependence | None:
    """Which rows of a table of scores may depend on each other: of those chosen, by a mask or numbers."""
    found = {}
    for role, name in (("groups", ROW_GROUP), ("time", ROW_TIME)):
        if name in scores:
            values = scores[name].to_numpy()
            found[role] = values if rows is None else values[rows]
    return RowDependence.of(len(next(iter(found.values()))), **found) if found else None


def blocks_of_means(
    dependence: RowDependence | None, points: Mapping[str, Array], predictive: Distribution, targets: Array
) -> FoundBlocks:
    """Blocks for means over points: runs of time as long as PIT scores or what is averaged depend on each other.

    However slowly that decays: what looks like a slow fault of the version varies from one stretch of time to the next,
    and an interval has to say so.
    """

    def scores() -> Array:
        averaged = [
            points[name] for name in mean_columns().values() if name in points and np.isfinite(points[name]).all()
        ]
        return np.column_stack([dependence_scores(targets, predictive), *averaged])

    return found_blocks(dependence, scores, targets if predictive.is_discrete else None, noisy=True)


def correlated_rows(
    targets: Array,
    predictive: Distribution,
    reading: LocalReading | None,
    *,
    keys: Array,
    labels: pd.DataFrame,
    embeddings: Array | None,
    seed: int,
) -> Correlation | None:
    """What correlation of rows was found that nobody named: the most certain one, or None.

    What the inputs explain of the scores is taken off first, so that a fault of the version is not taken for it. Rows
    that are sorted by their target are not looked at in their order. Of more than 250,000 rows, 16 runs of neighbours
    are looked at, 250,000 rows in all.

    Args:
        targets: (n,) or (n, q).
        predictive: n laws.
        reading: at the rows of ``runs_looked_at``, where there is one.
        keys: of the rows, (n,).
        labels: slice columns of the rows.
        embeddings: (n, d), for identical inputs; None where they are too many.
        seed: of the permutations.
    """
    rows = runs_looked_at(len(targets))
    if len(rows) < len(targets):
        targets, predictive, keys, labels = targets[rows], predictive[rows], keys[rows], labels.iloc[rows]
    scores = dependence_scores(targets, predictive)
    if reading is not None:
        scores -= reading.scores
    named: dict[str, Array | pd.Series[Any]] = {"key": keys, **{str(name): labels[name] for name in labels.columns}}
    if embeddings is not None:
        named["identical inputs"] = np.unique(embeddings, axis=0, return_inverse=True)[1].reshape(-1)
    groups = {name: codes for name, values in named.items() if (codes := _few_together(values)) is not None}
    looks = correlations(scores, groups=groups, seed=seed)
    found = [look for look in looks if look.is_found and not (look.along == "row order" and _is_sorted(targets))]
    return min(found, key=lambda look: (look.p_value, -look.value), default=None)


def runs_looked_at(count: int) -> Array:
    """The numbers of the rows among ``count`` that ``correlated_rows`` looks at: all, or runs of neighbours."""
    if count <= _MOST_ROWS:
        return np.arange(count)
    size = _MOST_ROWS // _RUNS
    starts = np.linspace(0, count - size, _RUNS).astype(np.intp)
    return np.asarray((starts[:, None] + np.arange(size)).ravel())


def _few_together(values: Array | pd.Series[Any]) -> Array | None:
    """Codes of a column that a few rows share each; None of one that all rows differ in, or that makes categories."""
    codes, distinct = pd.factorize(values)
    rows, count = len(codes), len(distinct)
    if (codes < 0).any() or count == rows or count < 10 or rows > LARGEST_GROUP * count:
        return None
    return np.asarray(codes)


def _is_sorted(targets: Array) -> bool:
    columns = targets.reshape(len(targets), -1)
    rising = np.mean(np.diff(columns, axis=0) >= 0.0, axis=0)
    falling = np.mean(np.diff(columns, axis=0) <= 0.0, axis=0)
    return bool(np.any(np.maximum(rising, falling) >= _SORTED))
