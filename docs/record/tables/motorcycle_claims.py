"""Wasa insurance: claims of a motorcycle policy, 1 in 100."""

from pathlib import Path

import pandas as pd
from table import TARGET, Table, shuffled

INPUTS = ["agarald", "man", "zon", "mcklass", "fordald", "bonuskl", "duration"]


def table(data: Path | None) -> Table | None:
    """62,474 policies with their duration among the inputs."""
    if data is None:
        return None
    rows = pd.read_csv(data / "motor-claims" / "motorcycle-claims.csv.gz").query("duration > 0")
    kept = rows.assign(man=rows["kon"] == "M", **{TARGET: rows["antskad"]})[[*INPUTS, TARGET]]
    about = "Ohlsson and Johansson 2010; claims of a motorcycle policy, 99 % of them 0"
    return Table("motorcycle-claims", about, "counts", shuffled(kept))
