"""Known truth: Student's t with 3 degrees of freedom."""

from pathlib import Path

import numpy as np
import pandas as pd
from table import Table, drawn, of_truth

from congruence.kernels import StudentT


def truth(x: pd.DataFrame) -> StudentT:
    """Location x0 + x1^2 / 2, scale 1 + |x2| / 2."""
    location = (x["x0"] + 0.5 * x["x1"] ** 2).to_numpy()
    return StudentT(np.full(len(x), 3.0), location, 1.0 + 0.5 * np.abs(x["x2"]).to_numpy())


def table(data: Path | None) -> Table:  # noqa: ARG001
    """Six inputs, three of which do nothing."""
    return of_truth("heavy-tails", "known truth: Student's t, 3 degrees of freedom", "real", *drawn(2, 6), truth)
