"""Excess risk of the target coverage (ERT): how far intervals are from covering their level at each input.

A classifier that reads the inputs predicts, on rows that it has not seen, which targets lie inside. What it gains over
the constant level is a lower bound of the mean distance between the coverage at each input and that level: 0 if the
version is right, and by chance a little less. Braun, Holzmüller, Jordan and Bach (2025), Conditional Coverage
Diagnostics for Conformal Prediction; computed by MAPIE's ``metrics.conditional`` where that and covmetrics are
installed.
"""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec

import numpy as np
import pandas as pd
from threadpoolctl import threadpool_limits

from congruence.kernels.arrays import Array
from congruence.kernels.distributions import Distribution
from congruence.kernels.scores import central_intervals
from congruence.kernels.streams import stream
from congruence.tasks.scores.evaluation import MetricValue, finite_metrics
from congruence.tasks.scores.segments import is_numeric
from congruence.tasks.scores.summary import slice_groups

LEVEL = 0.9
FEWEST_ROWS, MOST_ROWS = 500, 10_000
CLASSIFIER = {"max_iter": 50, "max_leaf_nodes": 8, "random_state": 0}
"""Of scikit-learn's HistGradientBoostingClassifier: a fifth of the time of its defaults, and as much found."""


@cache
def is_available() -> bool:
    """Whether MAPIE has the measure, and what it is computed by is installed, too."""
    return all(find_spec(name) is not None for name in ("mapie", "covmetrics")) and (
        find_spec("mapie.metrics.conditional") is not None
    )


def coverage_risk(inputs: pd.DataFrame, targets: Array, predictive: Distribution, seed: int) -> dict[str, MetricValue]:
    """``ert_90`` of the central 90 % intervals of n scalar laws; of more than 10,000 rows, of as many at random.

    None of counts, whose intervals cover more than their level though they are right; none of fewer than 500 rows, or
    where the packages are not installed.

    Args:
        inputs: numbers or words, (n, k).
        targets: (n,).
        predictive: n laws.
        seed: of the rows drawn.
    """
    if not is_available() or predictive.is_discrete or targets.ndim != 1 or inputs.empty or len(targets) < FEWEST_ROWS:
        return {}
    from mapie.metrics.conditional import excess_risk_target_coverage  # type: ignore[import-untyped]  # and torch

    rows = stream(seed, "rows of the excess risk of coverage").permutation(len(targets))[:MOST_ROWS]
    ((low, high),) = central_intervals(predictive[rows], (LEVEL,))
    with threadpool_limits(limits=1):  # on a busy machine OpenMP's threads wait for each other
        found = excess_risk_target_coverage(
            _numbers(inputs.iloc[rows]),
            targets[rows],
            LEVEL,
            y_intervals=np.column_stack([low, high]),
            model_kwargs=CLASSIFIER,
            random_state=0,
        )
    return finite_metrics({"ert_90": found})


def _numbers(inputs: pd.DataFrame) -> Array:
    """Numbers as they are, words by their codes; what is missing lies below all that is known."""
    columns = []
    for name in inputs.columns:
        column = inputs[name]
        if is_numeric(column):
            values = column.to_numpy(float, na_value=np.nan)
            known = values[np.isfinite(values)]
            columns.append(np.where(np.isfinite(values), values, known.min() - 1.0 if len(known) else 0.0))
        else:
            columns.append(slice_groups(column)[0].astype(float))
    return np.column_stack(columns)
