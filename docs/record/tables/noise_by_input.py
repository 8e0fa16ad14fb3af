"""Known truth: a normal target whose spread depends on another input than its mean."""

from pathlib import Path

import numpy as np
import pandas as pd
from table import Table, drawn, of_truth

from congruence.kernels import Normal


def truth(x: pd.DataFrame) -> Normal:
    """Mean 2 x0 + sin(2 x1), standard deviation exp(x2 / 2)."""
    return Normal((2.0 * x["x0"] + np.sin(2.0 * x["x1"])).to_numpy(), np.exp(0.5 * x["x2"]).to_numpy())


def table(data: Path | None) -> Table:  # noqa: ARG001
    """Six inputs, three of which do nothing."""
    return of_truth("noise-by-input", "known truth: normal, spread by another input", "real", *drawn(1, 6), truth)
