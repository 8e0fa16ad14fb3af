"""Known truth: counts that vary more than Poisson's."""

from pathlib import Path

import numpy as np
import pandas as pd
from table import Table, drawn, of_truth

from congruence.kernels import NegativeBinomial


def truth(x: pd.DataFrame) -> NegativeBinomial:
    """Mean exp(1 + x0 / 2 - x1 / 4), variance mean + mean^2 / 2."""
    return NegativeBinomial(np.exp(1.0 + 0.5 * x["x0"] - 0.25 * x["x1"]).to_numpy(), np.full(len(x), 0.5))


def table(data: Path | None) -> Table:  # noqa: ARG001
    """Five inputs, three of which do nothing."""
    return of_truth("varying-counts", "known truth: negative binomial", "counts", *drawn(3, 5), truth)
