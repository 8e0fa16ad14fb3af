"""Known truth: amounts that cannot fall below 0, a third of them there."""

from pathlib import Path

import numpy as np
import pandas as pd
from table import Table, drawn, of_truth

from congruence.kernels import CensoredNormal


def truth(x: pd.DataFrame) -> CensoredNormal:
    """A normal distribution of mean 1 + 2 x0 and standard deviation exp(x1 / 4), below 0 set to 0 (Tobin 1958)."""
    location, scale = (1.0 + 2.0 * x["x0"]).to_numpy(), np.exp(0.25 * x["x1"]).to_numpy()
    return CensoredNormal(location, scale, np.zeros(len(x)), np.full(len(x), np.inf))


def table(data: Path | None) -> Table:  # noqa: ARG001
    """Five inputs, three of which do nothing."""
    return of_truth("amounts-from-zero", "known truth: normal, censored at 0", "real", *drawn(6, 5), truth)
