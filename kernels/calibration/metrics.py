"""uncertainty-toolbox's metrics under its names, for every family of predictive distributions.

The toolbox (Chung et al. 2021) knows normal predictions; here intervals and quantiles are those of the family, and for
``Normal`` the numbers are the toolbox's. Draws (``Samples``) are judged as draws: by ranks, fair scores and
``predictive_quantile``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from congruence.kernels.arrays import Array, row_slices
from congruence.kernels.calibration.groups import calibration_error, miscalibration_area, proportions
from congruence.kernels.calibration.pit import pit_values
from congruence.kernels.distributions.base import Distribution
from congruence.kernels.scores import matched_targets, negative_log_likelihood, pinball, sharpness, winkler

LEVELS = np.linspace(0.01, 0.99, 99)
_BLOCK_ROWS = 8_192


def regression_metrics(
    y: Any, predictive: Distribution, *, bins: int = 100, seed: int = 0, keys: Any | None = None
) -> dict[str, float]:
    """mae, rmse, mdae, marpd, r2, corr, rms_cal, ma_cal, miscal_area, sharp, nll, crps, check, interval.

    Metrics that do not exist are left out: nll for laws without a density, r2 and corr for constant targets (corr also
    for constant predictions). nll is infinite if one observation has probability 0.

    Args:
        predictive: n scalar distributions.
        y: targets (n,).
        bins: levels of the calibration metrics, from 0 to 1.
        seed: of the randomised PIT of counts.
        keys: row keys of the randomised PIT.
    """
    targets = matched_targets(predictive, y)
    metrics = accuracy(predictive.mean(), targets)
    expected, observed = proportions(pit_values(targets, predictive, seed=seed, keys=keys), bins=bins)
    metrics["rms_cal"] = calibration_error(expected, observed, "root_mean_sq")
    metrics["ma_cal"] = calibration_error(expected, observed, "mean_abs")
    metrics["miscal_area"] = miscalibration_area(expected, observed)
    metrics["sharp"] = sharpness(predictive)
    if predictive.has_density():
        metrics["nll"] = float(np.mean(negative_log_likelihood(targets, predictive, infinite="keep")))
    metrics["crps"] = float(np.mean(predictive.crps(targets)))
    metrics["check"] = float(np.mean(check_score(predictive, targets)))
    metrics["interval"] = float(np.mean(mean_interval_score(predictive, targets)))
    return metrics


def accuracy(mean: Array, targets: Array) -> dict[str, float]:
    """mae, rmse, mdae, marpd (per cent), r2 and corr of point predictions; see ``regression_metrics``."""
    error = targets - mean
    size = np.abs(mean) + np.abs(targets)
    relative = np.divide(2.0 * np.abs(error), size, out=np.zeros_like(size), where=size > 0.0)
    result = {
        "mae": float(np.mean(np.abs(error))),
        "rmse": float(np.sqrt(np.mean(error**2))),
        "mdae": float(np.median(np.abs(error))),
        "marpd": float(100.0 * np.mean(relative)),
    }
    spread = np.std(targets)
    if spread > 0.0:
        result["r2"] = float(1.0 - np.mean(error**2) / spread**2)
        if np.std(mean) > 0.0:
            result["corr"] = float(np.corrcoef(targets, mean)[0, 1])
    return result


def check_score(predictive: Distribution, y: Any, levels: Array = LEVELS) -> Array:
    """Pinball score averaged over ``levels``, (n,): half the CRPS in the limit of many levels."""
    targets = matched_targets(predictive, y)
    result = np.empty(len(targets))
    for rows in row_slices(len(targets), _BLOCK_ROWS):
        quantiles = predictive[rows].predictive_quantile(levels[None, :])
        result[rows] = pinball(targets[rows, None] - quantiles, levels).mean(axis=1)
    return result


def mean_interval_score(predictive: Distribution, y: Any, levels: Array = LEVELS) -> Array:
    """Interval score of the central intervals, averaged over ``levels``, (n,)."""
    targets = matched_targets(predictive, y)
    result = np.empty(len(targets))
    for rows in row_slices(len(targets), _BLOCK_ROWS):
        lower, upper = (predictive[rows].predictive_quantile((0.5 + half * levels)[None, :]) for half in (-0.5, 0.5))
        result[rows] = winkler(targets[rows, None], lower, upper, levels).mean(axis=1)
    return result
