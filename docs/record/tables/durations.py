"""Known truth: durations until an event, log-normal."""

from pathlib import Path

import numpy as np
import pandas as pd
from table import Table, drawn, of_truth

from congruence.kernels import LogNormal


def truth(x: pd.DataFrame) -> LogNormal:
    """Median 10 exp(x0 / 2 + x1 x3 / 4), standard deviation of the logarithm exp(x2 / 4) / 2."""
    median = 10.0 * np.exp(0.5 * x["x0"] + 0.25 * x["x1"] * x["x3"]).to_numpy()
    return LogNormal(0.5 * np.exp(0.25 * x["x2"]).to_numpy(), median)


def table(data: Path | None) -> Table:  # noqa: ARG001
    """Six inputs, two of which do nothing."""
    return of_truth("durations", "known truth: log-normal, spread by an input", "positive", *drawn(4, 6), truth)
