"""The predictive laws of a report's rows, as far as a page can draw them."""

from __future__ import annotations

from typing import Any

import numpy as np

from congruence.kernels.arrays import Array
from congruence.kernels.calibration.decomposition import QUANTILE_LEVELS
from congruence.kernels.distributions import Distribution
from congruence.tasks.report.packing import numbers

DRAWN = 3_000
"""Rows whose laws are written down; of all others mean and spread are known, which for normal laws is everything."""

_COUNTS = 96
_TAIL = 1e-3


def drawn_laws(predictive: Distribution, rows: Array) -> dict[str, Any]:
    """The laws of the first ``DRAWN`` of ``rows``: nothing for normal laws, masses of counts, else quantiles.

    Masses are those of ``first`` and the counts after it, a row at a time, at most 96; what is left out beyond is at
    most .1 % on either side. Laws of wider counts go by quantiles.
    """
    chosen = rows[:DRAWN]
    if predictive.family == "normal":
        return {"kind": "normal"}
    laws = predictive[chosen]
    if predictive.is_discrete:
        low, high = laws.quantile(np.array([_TAIL, 1.0 - _TAIL])[None, :]).T
        if np.max(high - low) < _COUNTS:
            counts = low[:, None] + np.arange(int(np.max(high - low)) + 1)
            mass = np.exp(laws.log_prob(counts))
            return {"kind": "mass", "rows": len(chosen), "width": counts.shape[1],
                    "first": numbers(low), "mass": numbers(mass)}  # fmt: skip
    quantiles = laws.predictive_quantile(QUANTILE_LEVELS[None, :])
    return {"kind": "quantiles", "rows": len(chosen), "levels": QUANTILE_LEVELS.tolist(), "at": numbers(quantiles)}
