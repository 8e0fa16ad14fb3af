"""Quantile boosting by LightGBM: one model a level."""

import numpy as np
from lightgbm import LGBMRegressor
from table import Table

NAME = "LightGBM quantiles"
LEVELS = [round(float(level), 2) for level in np.arange(0.05, 0.96, 0.05)]


def fit(table: Table) -> tuple[object, str]:
    """19 levels."""
    x, y = table.fitted
    return {q: LGBMRegressor(objective="quantile", alpha=q, verbose=-1).fit(x, y) for q in LEVELS}, "ours"
