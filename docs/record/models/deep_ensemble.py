"""A deep ensemble: five networks that state a mean and a spread each, as a mixture (Lakshminarayanan et al. 2017)."""

import numpy as np
import pandas as pd
import torch
from network import trained
from table import Table

from congruence.kernels import Mixture, Normal

NAME = "deep ensemble"


def fit(table: Table) -> tuple[object, str]:
    """They differ by their seeds."""
    networks = [trained(table, 1, seed=seed) for seed in range(5)]

    def predict(rows: pd.DataFrame) -> Mixture:
        with torch.no_grad():
            found = [network(torch.tensor(rows.to_numpy()).float()) for network in networks]
        return Mixture(np.full(5, 0.2), [Normal(each.mean.numpy(), each.stddev.numpy()) for each in found])

    return predict, "ours"
