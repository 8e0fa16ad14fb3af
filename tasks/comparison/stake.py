"""What is at stake in a metric: how much better a version is than the law of all targets, which knows no input."""

from __future__ import annotations

import numpy as np
import pandas as pd

from congruence.kernels.arrays import Array
from congruence.kernels.calibration.decomposition import marginal_crps
from congruence.tasks.comparison.compared import ComparedVersion

_DISTINCT = 0.5  # of the rows: fewer distinct values are counted, more have a density


def skill_of(version: ComparedVersion, metric: str, value: float) -> float:
    """How much lower ``value`` of ``metric`` is than that of the law of all targets of the split, not below 0.

    0, too, where the split has no single numeric column of targets: then nothing is known to be at stake.
    """
    if "target" not in version.scores:
        return 0.0
    targets = pd.to_numeric(version.scores["target"], errors="coerce").to_numpy(np.float64)
    targets = targets[version.scores["valid"].to_numpy(bool) & np.isfinite(targets)]
    return max(0.0, marginal_value(metric, targets) - value) if len(targets) > 1 else 0.0


def marginal_value(metric: str, y: Array) -> float:
    """NLL, CRPS, MAE or RMSE that the law of all targets y (n,) has on them.

    The NLL is the entropy: of the frequencies of the values where most come again, else of the density, from spacings
    of the sorted targets (Vasicek 1976; ``scipy.stats.differential_entropy``).
    """
    if metric == "crps_mean":
        return float(np.mean(marginal_crps(y)))
    if metric == "mae":
        return float(np.mean(np.abs(y - np.mean(y))))
    if metric == "rmse":
        return float(np.std(y))
    _, counts = np.unique(y, return_counts=True)
    if len(counts) < _DISTINCT * len(y):
        shares = counts / len(y)
        return float(-np.sum(shares * np.log(shares)))
    from scipy.stats import differential_entropy  # a second of imports that a refusal need not wait for

    return float(differential_entropy(y))
