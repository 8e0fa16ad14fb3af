"""A classifier of a dozen bins with about as many targets each."""

import numpy as np
import pandas as pd
from sklearn.ensemble import HistGradientBoostingClassifier
from table import Table

from congruence.kernels import Histogram

NAME = "histogram of a classifier"


def fit(table: Table) -> tuple[object, str]:
    """Counts lie in the middle of their bins."""
    x, y = table.fitted
    borders = np.unique(np.quantile(y, np.linspace(0, 1, 13)))
    if table.target == "counts":
        borders = np.unique(np.append(np.floor(borders) - 0.5, y.max() + 0.5))
    bins = np.clip(np.searchsorted(borders, y, side="right") - 1, 0, len(borders) - 2)
    model = HistGradientBoostingClassifier(max_iter=40, learning_rate=0.08, min_samples_leaf=10).fit(x, bins)
    seen = model.classes_.astype(int)

    def predict(rows: pd.DataFrame) -> Histogram:
        shares = np.zeros((len(rows), len(borders) - 1))
        shares[:, seen] = model.predict_proba(rows)
        return Histogram(borders, shares, tail_share=0.2)

    return predict, "ours"
