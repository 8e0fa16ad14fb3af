"""UCI: physicochemical properties of protein tertiary structure."""

from pathlib import Path

import pandas as pd
from table import TARGET, Table, shuffled


def table(data: Path | None) -> Table | None:
    """45,730 structures."""
    if data is None:
        return None
    rows = shuffled(pd.read_csv(data / "protein" / "data.csv.gz", header=None))
    rows.columns = [*(f"x{j}" for j in range(rows.shape[1] - 1)), TARGET]
    return Table("protein", "Rana 2013 (UCI); deviation of a protein's predicted structure, scaled", "real", rows)
