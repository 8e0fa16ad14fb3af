"""Known truth: proportions, of beta's distribution."""

from pathlib import Path

import numpy as np
import pandas as pd
from scipy.special import expit
from table import Table, drawn, of_truth

from congruence.kernels import Beta


def truth(x: pd.DataFrame) -> Beta:
    """Mean expit(x0 - x1 / 2), and a precision of 5 exp(x2)."""
    mean, precision = expit(x["x0"] - 0.5 * x["x1"]).to_numpy(), 5.0 * np.exp(x["x2"]).to_numpy()
    return Beta(mean * precision, (1.0 - mean) * precision)


def table(data: Path | None) -> Table:  # noqa: ARG001
    """Five inputs, two of which do nothing."""
    return of_truth("proportions", "known truth: beta, precision by the inputs", "proportion", *drawn(5, 5), truth)
